"""Workers of Python models die at random moments under load: is every request answered right, or failed once?

    python benchmarks/faults.py                 # 1,000 deaths, some minutes
    python benchmarks/faults.py --kills 100 --seed 7

Clients of both protocols ask plain models, a model that calls another, and a decoupled one, with small tensors and with
such that go through shared memory. Meanwhile workers are killed, stopped and killed, and end themselves in the middle
of requests, some also while they load; models are loaded again under load, which lets instances return sooner. Every
response is compared with the right one. In the end nothing may be left: no process, no file, no mapping, and not much
memory. Exit code 1 otherwise.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio
import tritonclient.http.aio
from grpc.aio import insecure_channel
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

MODEL = Path(__file__).parent / "fault_model.py"
INSTANCES = {"plain_0": 4, "plain_1": 4, "caller_0": 4, "stream_0": 4}
SMALL, LARGE = 16, 100_000
"""Elements of an input, of 4 bytes: in the message, and in shared memory."""
_PATIENCE_S = 60.0
"""A request without an answer for so long is missing."""
_YOUNG_S = 1.0
"""A worker may take so long to load. Few are killed before: a model that loads has no requests."""
_BYTES_MB = 100.0
"""So much the server's memory may grow: buffers of clients, and what its allocator keeps."""

EXPECTED = (
    (r"was lost: its process \d+ was killed by SIG(\w+)", r"its process was killed by SIG\1"),
    (r"was lost: its process \d+ exited with status (\d+)", r"its process exited with status \1"),
    (r"was lost: its process \d+ had closed its connection", "its process had closed its connection"),
    (r"was lost and cannot be replaced", "it was lost and could not be replaced"),
)
"""What a failed request may say, and how it is counted."""


@dataclass
class Tally:
    """What became of the requests."""

    sent: int = 0
    right: int = 0
    failed: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def adds_up(self) -> bool:
        return self.sent == self.right + self.failed.total() + len(self.wrong) + len(self.missing)

    async def count(self, kind: str, request: Awaitable[str]) -> bool:
        """`request` gives what is wrong with its outcome, or an empty text. Whether it was answered right."""
        self.sent += 1
        try:
            async with asyncio.timeout(_PATIENCE_S):
                wrong = await request
        except TimeoutError:
            self.missing.append(kind)
        except asyncio.CancelledError as error:  # nobody here cancels anything
            self.wrong.append(f"{kind}: {error!r}")
        except InferenceServerException as error:
            text = str(error)
            for pattern, name in EXPECTED:
                if match := re.search(pattern, text):
                    self.failed[match.expand(name)] += 1
                    return False
            self.wrong.append(f"{kind}: {text}")
        else:
            if wrong:
                self.wrong.append(f"{kind}: {wrong}")
            else:
                self.right += 1
                return True
        return False


@dataclass
class Server:
    """The server, and how to look into it."""

    pid: int
    http: int
    grpc: int
    log: Path

    def post(self, path: str) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}/v2/{path}", b"{}")
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as response:
            response.read()

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/v2/{path}", timeout=_PATIENCE_S) as response:
            return json.loads(response.read())

    def workers(self) -> list[int]:
        """Its children that have not ended."""
        found = []
        for task in Path(f"/proc/{self.pid}/task").glob("*/children"):
            with suppress(OSError):
                found += [int(pid) for pid in task.read_text().split() if _state(int(pid)) not in "ZX"]
        return found

    def held(self) -> dict[str, int]:
        """What it holds that could leak; its own memory in MB."""
        files = []
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            with suppress(OSError):
                files.append(os.readlink(f"/proc/{self.pid}/fd/{name}"))
        status = Path(f"/proc/{self.pid}/status").read_text()
        return {
            "processes": len(_children(self.pid)),
            "files": len([each for each in files if not each.startswith("socket:")]),
            "sockets": len([each for each in files if each.startswith("socket:")]),
            "mappings": Path(f"/proc/{self.pid}/maps").read_text().count("/memfd:"),
            "MB": int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) // 1024,
        }


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def _children(pid: int) -> list[str]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += task.read_text().split()
    return found


def write_repository(path: Path) -> None:
    for name, count in INSTANCES.items():
        (path / name / "1").mkdir(parents=True)
        shutil.copy(MODEL, path / name / "1" / "model.py")
        decoupled = "model_transaction_policy { decoupled: true }\n" if name.startswith("stream") else ""
        (path / name / "config.pbtxt").write_text(
            f'backend: "python"\n{decoupled}'
            'input { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] }\n'
            'output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] }\n'
            f"instance_group {{ count: {count} kind: KIND_CPU }}\n"
        )


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server with all models loaded, its log in a file."""
    write_repository(folder / "models")
    log = folder / "log"
    command = [sys.executable, "-m", "modserve", "serve", "--model-repository", str(folder / "models")]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--model-control-mode=explicit"]
    command += ["--load-model=*", "--backend-config=python,stop-timeout-seconds=2"]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        ports: dict[str, str] = {}
        end = time.monotonic() + _PATIENCE_S
        while len(ports) < 2 or "load time" not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the server did not start:\n{log.read_text()}")
            ports = dict(re.findall(r"^(HTTP|gRPC) listening on \S+:(\d+)$", log.read_text(), re.MULTILINE))
            time.sleep(0.05)
        yield Server(process.pid, int(ports["HTTP"]), int(ports["gRPC"]), log)
    finally:
        process.terminate()
        process.wait(timeout=60)


@dataclass
class Stage:
    """What clients and killer share."""

    server: Server
    http: Any
    grpc: Any
    streams: Any
    chance: random.Random
    over: asyncio.Event = field(default_factory=asyncio.Event)
    tally: Tally = field(default_factory=Tally)
    deaths: collections.Counter[str] = field(default_factory=collections.Counter)
    suicides_due: int = 0
    """Requests that are to end their workers, not sent yet."""
    loads: int = 0
    failed_loads: collections.Counter[str] = field(default_factory=collections.Counter)
    held: list[dict[str, int]] = field(default_factory=list)
    """What the server held after each hundredth death."""
    number: int = 0


def _arrays(chance: random.Random) -> np.ndarray[Any, Any]:
    size = LARGE if chance.random() < 0.25 else SMALL
    return np.arange(size, dtype=np.float32) % 997 + chance.randrange(1_000_000)


def _asked(stage: Stage) -> dict[str, Any]:
    """The parameters of a request: now and then it is to end its worker, here or there."""
    if not stage.suicides_due:
        return {}
    stage.suicides_due -= 1
    stage.deaths["itself"] += 1
    where = stage.chance.choice(("begin", "middle", "end", "any time"))
    return {"die": where, "after_us": stage.chance.randrange(8000)}


async def unary(stage: Stage, client: Any, module: Any, model: str) -> str:
    """One request; what is wrong with its response."""
    array = _arrays(stage.chance)
    stage.number += 1
    id = str(stage.number)
    tensor = module.InferInput("INPUT", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    result = await client.infer(model, [tensor], request_id=id, parameters=_asked(stage))
    response = result.get_response()
    said = response["id"] if isinstance(response, dict) else response.id
    expected = array * 2 + 1
    if model.startswith("caller"):
        expected = expected * 2 + 1
    if said != id:
        return f"the response to request {said} in place of {id}"
    return "" if np.array_equal(result.as_numpy("OUTPUT"), expected) else "wrong values"


async def stream(stage: Stage) -> str:
    """A request with several responses, on a stream of its own."""
    array, count = _arrays(stage.chance), stage.chance.randint(0, 6)
    stage.number += 1
    id = str(stage.number)
    request = service_pb2.ModelInferRequest(model_name="stream_0", id=id, raw_input_contents=[array.tobytes()])
    request.inputs.add(name="INPUT", datatype="FP32", shape=array.shape)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, value in {"count": count, **_asked(stage)}.items():
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(request.parameters[name], kind, value)
    index, final, failure = 0, False, ""
    async for message in stage.streams(iter([request])):
        response = message.infer_response
        if final:
            return "something after the end"
        if response.id != id:
            return f"a response to request {response.id} in place of {id}"
        if message.error_message:
            failure, final = message.error_message, True
            continue
        final = response.parameters["triton_final_response"].bool_param
        if final and not response.outputs:
            continue
        if response.raw_output_contents[0] != (array + np.float32(index)).tobytes():
            return f"response {index} is wrong"
        index += 1
    if failure:
        raise InferenceServerException(failure)
    if not final:
        return "no end"
    return "" if index == count else f"{index} of {count} responses"


async def client(stage: Stage, kind: str, request: Callable[[], Awaitable[str]]) -> None:
    while not stage.over.is_set():
        right = await stage.tally.count(kind, request())
        # Who is refused at once, since all instances are gone, need not ask as often.
        await asyncio.sleep(stage.chance.random() * (0.02 if right else 0.2))


async def killer(stage: Stage, kills: int, pause_s: float) -> None:
    """End workers, one way or another, until enough have died."""
    chance, since = stage.chance, dict[int, float]()
    while (deaths := stage.deaths.total()) < kills:
        if deaths >= 100 * (len(stage.held) + 1):
            stage.held.append(stage.server.held())
        await asyncio.sleep(chance.random() * 2 * pause_s)
        workers, now = stage.server.workers(), time.monotonic()
        if len(workers) < sum(INSTANCES.values()) / 2:
            continue  # there is hardly anything left under way to be interrupted
        since = {pid: since.get(pid, now) for pid in workers}
        workers = [pid for pid in workers if now - since[pid] > _YOUNG_S or chance.random() < 0.1]
        how = chance.choice(("SIGKILL", "SIGSEGV", "SIGSTOP and SIGKILL", "itself"))
        if how == "itself":
            if stage.suicides_due < 3:
                stage.suicides_due += 1
            continue
        if not workers:
            continue
        pid = chance.choice(workers)
        with suppress(ProcessLookupError):
            if how == "SIGSTOP and SIGKILL":
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(chance.random() * 0.2)
                os.kill(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.Signals[how])
            stage.deaths[how] += 1
    stage.suicides_due = 0


async def loader(stage: Stage, pause_s: float) -> None:
    """Load models again, one after the other; a load fails where its workers are killed."""
    while not stage.over.is_set():
        for name in INSTANCES:
            model = stage.server.log.parent / "models" / name / "1" / "model.py"
            await asyncio.to_thread(os.utime, model)
            try:
                await asyncio.to_thread(stage.server.post, f"repository/models/{name}/load")
                stage.loads += 1
            except urllib.error.HTTPError as error:
                text = json.loads(error.read())["error"].partition("state: ")[2].partition(";")[0]
                stage.failed_loads[re.sub(r"process \d+", "process", text)] += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(stage.over.wait(), pause_s)


async def drive(server: Server, kills: int, seed: int, clients: int = 12, pause_s: float = 0.1) -> Stage:
    """Ask and kill until `kills` workers have died."""
    address = f"127.0.0.1:{server.http}"
    async with (
        tritonclient.http.aio.InferenceServerClient(address, conn_limit=clients) as http,
        tritonclient.grpc.aio.InferenceServerClient(f"127.0.0.1:{server.grpc}") as grpc,
        insecure_channel(f"127.0.0.1:{server.grpc}") as channel,
    ):
        streams = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer
        stage = Stage(server, http, grpc, streams, random.Random(seed))
        kinds: list[tuple[str, Callable[[], Awaitable[str]]]] = [
            *[
                (f"{name}, {model}", lambda c=c, m=m, model=model: unary(stage, c, m, model))
                for model in ("plain_0", "plain_1", "caller_0")
                for name, c, m in (("HTTP", http, tritonclient.http), ("gRPC", grpc, tritonclient.grpc))
            ],
            *[("gRPC, stream_0", lambda: stream(stage))] * 2,
        ]
        async with asyncio.TaskGroup() as tasks:
            for number in range(clients):
                kind, request = kinds[number % len(kinds)]
                tasks.create_task(client(stage, kind, request))
            tasks.create_task(loader(stage, 2.0))
            await killer(stage, kills, pause_s)
            stage.over.set()
    return stage


def recoveries(log: str) -> tuple[list[float], list[float]]:
    """Seconds from each loss to the new instance, and those without the wait before it is made."""
    lost: dict[str, tuple[float, float]] = {}
    whole, work = [], []
    for line in log.splitlines():
        if match := re.search(r"^(\S+) ERROR .*instance '(\w+)' was lost", line):
            lost[match[2]] = _seconds(match[1]), 0.0
        wait = re.search(r"(?:a new one will be made|the next attempt is) in ([\d.]+) s", line)
        if wait and lost:
            name = next(reversed(lost))
            lost[name] = lost[name][0], lost[name][1] + float(wait[1])
        if (match := re.search(r"^(\S+) INFO .*instance '(\w+)' runs again", line)) and match[2] in lost:
            began, waited = lost.pop(match[2])
            whole.append(_seconds(match[1]) - began)
            work.append(whole[-1] - waited)
    return whole, work


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def quiet(server: Server, before: dict[str, int] | None = None, seconds: float = 30.0) -> dict[str, int]:
    """Unload everything; what the server still holds, once it has had its time: until it is no more than `before`."""
    for name in INSTANCES:
        server.post(f"repository/models/{name}/unload")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        held = server.held()
        if not held["processes"] + held["mappings"] and not (before and leaks(before, held)):
            break
        time.sleep(0.1)  # its threads close the pipes of a worker that has ended a little later
    return held


def load_all(server: Server) -> None:
    for name in INSTANCES:
        server.post(f"repository/models/{name}/load")


def run(folder: Path, kills: int, seed: int, pause_s: float) -> tuple[Stage, dict[str, int], dict[str, int], str]:
    """The whole: a stage, what the server held before and after, and its log."""
    with serving(folder) as server:
        asyncio.run(drive(server, kills // 10, seed + 1, pause_s=pause_s))  # what is made once, and kept
        before = quiet(server)
        load_all(server)
        stage = asyncio.run(drive(server, kills, seed, pause_s=pause_s))
        after = quiet(server, before)
    return stage, before, after, server.log.read_text()


def leaks(before: dict[str, int], after: dict[str, int]) -> list[str]:
    allowed = {"MB": _BYTES_MB, "sockets": 2}
    return [
        f"{name}: {before[name]} → {after[name]}"
        for name in before
        if after[name] > before[name] + allowed.get(name, 0)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two kills, on average")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        stage, before, after, log = run(Path(directory), arguments.kills, arguments.seed, arguments.pause)
    tally = stage.tally
    print(f"{stage.deaths.total()} deaths in {time.monotonic() - began:.0f} s: {dict(stage.deaths)}")
    print(
        f"{stage.loads} loads under load, {stage.failed_loads.total()} failed ones; {log.count('runs again')} restarts"
    )
    print(f"\n{tally.sent} requests: {tally.right} right, {tally.failed.total()} failed, ", end="")
    print(f"{len(tally.wrong)} wrong, {len(tally.missing)} missing\n\n| failure | requests |\n|---|---|")
    for text, count in tally.failed.most_common():
        print(f"| {text} | {count} |")
    for name, values in zip(("whole", "without the wait before it"), recoveries(log), strict=True):
        if len(values) > 1:
            cuts = statistics.quantiles(values, n=100, method="inclusive")
            print(f"\nrecovery, {name}: p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s", end="")
    print(f"\n\nheld before: {before}\nheld after:  {after}")
    for number, held in enumerate(stage.held, 1):
        print(f"after {number}00 deaths: {held}")
    print(f"\nfailed loads: {dict(stage.failed_loads)}")
    for text, count in collections.Counter([*tally.wrong, *tally.missing]).most_common(20):
        print(f"{count} × {text}", file=sys.stderr)
    if tally.wrong or tally.missing or not tally.adds_up or leaks(before, after):
        print("leaks:", leaks(before, after), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
