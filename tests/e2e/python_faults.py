"""What is needed to break Python models, and to see what is left of them."""

import json
import os
import re
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

MODEL = Path(__file__).parent / "faulty_model.py"
MARK = "MODSERVE_TEST_FAULTS"
"""A variable that all processes of a server have, whoever started them."""
_PATIENCE_S = 20.0


class Outcome(NamedTuple):
    """Of a request: the status, 0 where the client has given up, and the error, or the body."""

    status: int
    text: str


def write_faulty(repository: Path, name: str, *, instances: int = 1, config: str = "", code: str = "") -> None:
    """A model that doubles INPUT, with `code` in place of `faulty_model`."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    if code:
        (version / "model.py").write_text(code)
    else:
        shutil.copy(MODEL, version / "model.py")
    (version.parent / "config.pbtxt").write_text(
        'backend: "python" max_batch_size: 4\n'
        'input { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        'output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        f"instance_group {{ count: {instances} kind: KIND_CPU }}\n{config}"
    )


def call(port: int, path: str, body: object = None, seconds: float = _PATIENCE_S) -> Outcome:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/{path}", data, seconds) as response:
            status, text = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read().decode()
            if text:
                text = json.loads(text).get("error", text)
    except OSError:
        status, text = 0, ""
    return Outcome(status, text)


def infer(port: int, model: str, fault: str = "", seconds: float = _PATIENCE_S) -> Outcome:
    body = {
        "inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}],
        "parameters": {"fault": fault} if fault else {},
    }
    return call(port, f"models/{model}/infer", body, seconds)


def is_right(outcome: Outcome) -> bool:
    return outcome.status == 200 and json.loads(outcome.text)["outputs"][0]["data"] == [2.0, 4.0]


@dataclass
class Neighbour:
    """Asks a model again and again that nothing is wrong with."""

    port: int
    model: str
    wrong: list[Outcome] = field(default_factory=list)
    count: int = 0

    @contextmanager
    def asking(self) -> "Iterator[Neighbour]":
        over = threading.Event()

        def ask() -> None:
            while not over.wait(0.02):
                outcome = infer(self.port, self.model)
                self.count += 1
                if not is_right(outcome):
                    self.wrong.append(outcome)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()


def processes(mark: str) -> dict[int, str]:
    """All processes of the server with this mark, zombies too, with their command lines."""
    return {pid: text for pid in all_processes() if (text := _command_line(pid, mark)) is not None}


def all_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _command_line(pid: int, mark: str) -> str | None:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return text.replace(b"\0", b" ").decode() if f"{MARK}={mark}".encode() in environment.split(b"\0") else None


def zombies_of(pid: int) -> list[int]:
    found = []
    for each in all_processes():
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] == "Z" and int(fields[1]) == pid:
            found.append(each)
    return found


def open_files(pid: int) -> list[str]:
    """What the server has open, but for connections of clients, which come and go."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue
    return sorted([re.sub(r"\d+", "N", each) for each in found if not each.startswith("socket:")])


def mappings(pid: int) -> int:
    """Of shared memory."""
    return Path(f"/proc/{pid}/maps").read_text().count("/memfd:")


def named_memory(mark: str) -> list[str]:
    """What the server and its workers have of shared memory that has a name, which would outlive them."""
    found = []
    for pid in processes(mark):
        try:
            found += re.findall(r"/dev/shm/.*", Path(f"/proc/{pid}/maps").read_text())
        except OSError:
            continue
    return found


def metric(port: int, name: str, **labels: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_PATIENCE_S) as page:
        text = page.read().decode()
    total = 0.0
    for line in text.splitlines():
        if line.startswith(name + "{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            total += float(line.rsplit(" ", 1)[1])
    return total


def at_once(*actions: Callable[[], object]) -> None:
    """Run all of them, each on a thread, to their ends."""
    failures: list[BaseException] = []

    def run(action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
