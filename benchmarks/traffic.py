"""Kinds of real traffic, in which no two requests are alike, beside Triton: `overhead.py --traffic` measures them.

Each row has a kind, a letter, and prepares thousands of requests, which wrk sends over HTTP and `traffic_replay` over
gRPC. The best case of a protocol is the same request again and again, sent by the same program: the ratio to it is the
price of variety.
"""

import argparse
import json
import os
import pickle
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson

import gateway_stage
from bar_chart import Panel, draw
from modserve.access.key_file import digest, new_secret
from modserve.commands.bench.http2 import frame
from modserve.pb import inference as pb
from overhead import (
    CONNECTIONS,
    ROOT,
    WRK_REPORT,
    Load,
    ServerProcess,
    read_wrk,
    run_program,
    server,
    triton,
    write_repository,
)
from traffic_heads import ENVOY, GRPC_CLIENTS, H2LOAD, HTTP_CLIENTS, WRK, GrpcClient, HttpClient
from traffic_hpack import blocks, call_frames, fields
from traffic_replay import Script

SCRIPTS = 16
"""So many sequences of requests are prepared; more connections share them."""
REQUESTS = 256
"""Of each, before they begin again."""
HOST = "localhost:8000"
ATTEMPTS = 5
MODELS = tuple(f"simple{number}" for number in range(8))
PATH = f"/{pb.SERVICE}/ModelInfer"
_OPENING = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(4, 0, 0, bytes([0, 2, 0, 0, 0, 0, 0, 4, 0, 16, 0, 0]))  # no pushed streams, windows of a megabyte
    + frame(8, 0, 0, (1 << 30).to_bytes(4, "big"))
)
_INPUTS = ("INPUT0", "INPUT1")
_ROW_BYTES = 64

Lines = Callable[[], Sequence[str]]
"""A caller's own lines of a head, other ones at each call."""
Body = Callable[[], tuple[bytes, int | None]]
"""A request's body, and the length of its JSON if tensors follow it."""


def binary(**more: Callable[[], object]) -> Body:
    """The tensors of tritonclient's form, with other values at each call, and other values of these members."""
    inputs = [
        {"name": name, "shape": [1, 16], "datatype": "INT32", "parameters": {"binary_data_size": _ROW_BYTES}}
        for name in _INPUTS
    ]

    def body() -> tuple[bytes, int]:
        changing = {name: make() for name, make in more.items()}
        text = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}, **changing})
        return text + random.randbytes(2 * _ROW_BYTES), len(text)

    return body


def whole_json(**more: Callable[[], object]) -> Body:
    """A document of JSON in the same way."""

    def body() -> tuple[bytes, None]:
        inputs = [
            {"name": name, "datatype": "INT32", "shape": [1, 16], "data": random.choices(range(100_000), k=16)}
            for name in _INPUTS
        ]
        return orjson.dumps({**{name: make() for name, make in more.items()}, "inputs": inputs}), None

    return body


def own_id() -> str:
    return str(uuid.UUID(int=random.getrandbits(128), version=4))


def own_parameters() -> dict[str, object]:
    return {"binary_data_output": True, "user": f"u{random.randrange(1000)}", "attempt": random.randrange(10)}


def request_id() -> list[str]:
    return [f"X-Request-Id: {own_id()}"]


def trace() -> list[str]:
    """What OpenTelemetry and a vendor of it add."""
    trace_id, span = f"{random.getrandbits(128):032x}", f"{random.getrandbits(64):016x}"
    return [
        f"traceparent: 00-{trace_id}-{span}-01",
        f"tracestate: dd=s:1;o:rum;p:{span}",
        f"baggage: user.id={random.randrange(100_000)},region=eu-west-1",
    ]


def nothing() -> list[str]:
    return []


def request(client: HttpClient, model: str, body: bytes, json_length: int | None, own: Sequence[str]) -> bytes:
    kind = "application/json" if json_length is None else "application/octet-stream"
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1"]
    lines += client.lines.format(host=HOST, length=len(body), type=kind).split(" | ")
    if json_length is not None:
        lines.append(f"Inference-Header-Content-Length: {json_length}")
    return "\r\n".join([*lines, *own, "", ""]).encode() + body


Measured = Callable[[ServerProcess, int, int], Load]
"""A load on a server, of so many connections, for so many seconds."""

_WRK = """
local threads = 0
function setup(thread) thread:set("first", threads) threads = threads + 1 end
function init()
  requests, at = {{}}, 0
  for number = first, {last}, {threads} do
    local file = io.open("{folder}/" .. number, "rb")
    for length in file:lines() do requests[#requests + 1] = file:read(tonumber(length)) end
    file:close()
  end
end
function request() at = at % #requests + 1 return requests[at] end
"""


def http(
    folder: Path,
    body: Body,
    clients: Sequence[HttpClient] = HTTP_CLIENTS[:1],
    own: Lines = nothing,
    models: Sequence[str] = ("simple",),
) -> Measured:
    """With several clients, a thread of wrk is one of them, and so are its connections."""
    for number in range(SCRIPTS):
        client = clients[number % len(clients)]
        made = [request(client, models[at % len(models)], *body(), own()) for at in range(REQUESTS)]
        (folder / str(number)).write_bytes(b"".join(b"%d\n%b" % (len(each), each) for each in made))

    def load(target: ServerProcess, connections: int, seconds: int) -> Load:
        threads = min(connections, len(clients))
        script = folder / "wrk.lua"
        script.write_text(_WRK.format(folder=folder, threads=threads, last=SCRIPTS - 1) + WRK_REPORT)
        command = ["wrk", f"-t{threads}", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s", "-s", str(script)]
        before = target.cpu_seconds()
        text = run_program([*command, f"http://127.0.0.1:{target.http}"])
        return read_wrk(text, target.cpu_seconds() - before)

    return load


def infer_message(model: str, changing: bool, identified: bool) -> bytes:
    tensor = pb.ModelInferRequest.InferInputTensor
    return pb.ModelInferRequest(
        model_name=model,
        id=own_id() if identified else "",
        inputs=[tensor(name=name, datatype="INT32", shape=[1, 16]) for name in _INPUTS],
        raw_input_contents=[random.randbytes(_ROW_BYTES) if changing else bytes(_ROW_BYTES) for _ in _INPUTS],
    ).SerializeToString()


_UNITS: Mapping[str, int] = {"u": 1_000_000, "m": 1_000}


def deadline(client: GrpcClient) -> str:
    """What is left of five seconds after some other work."""
    return f"{round(random.uniform(4, 5) * _UNITS[client.timeout_unit])}{client.timeout_unit}"


def grpc(
    folder: Path,
    client: GrpcClient,
    own: Lines | None = None,
    models: Sequence[str] = ("simple",),
    changing: bool = True,
) -> Measured:
    """With metadata of its `own`, each call has a deadline and an id, too."""
    scripts = []
    for _ in range(SCRIPTS):
        calls, messages = [], []
        for at in range(REQUESTS if changing else 2):
            lines = [line.partition(": ") for line in own()] if own else []
            metadata = [(name.lower(), value) for name, _, value in lines]
            calls.append(fields(client, PATH, HOST, deadline(client) if own else "", metadata))
            messages.append(infer_message(models[at % len(models)], changing, own is not None))
        first, again = (
            [call_frames(client, *each) for each in zip(written, messages, strict=True)]
            for written in blocks(client, calls)
        )
        scripts.append(Script(_OPENING, first, again))
    file = folder / "calls"
    file.write_bytes(pickle.dumps(scripts))
    return partial(replay, file)


def replay(file: Path, target: ServerProcess, connections: int, seconds: int) -> Load:
    """Raises SystemExit if a call has failed."""
    script = str(Path(__file__).with_name("traffic_replay.py"))
    command = [sys.executable, script, str(target.grpc), str(file), str(connections), str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = target.cpu_seconds()
        words = process.communicate("\n")[0].split()
        cpu = target.cpu_seconds() - before
    if process.returncode:
        raise SystemExit(f"calls to port {target.grpc} have failed: see above")
    count, taken, p50, p99, p999 = int(words[0]), *map(float, words[1:])
    return Load(count / taken, p50, p99, p999, cpu / count * 1e6, count)


def traced() -> list[str]:
    return [*request_id(), *trace()]


@dataclass(frozen=True)
class Row:
    """A row of the table: `best` is the row of the best case, `setting` how the servers were started."""

    kind: str
    name: str
    best: str
    prepare: Callable[[Path], Measured]
    gateway: str = ""
    setting: str = ""


BINARY, JSON, GRPC = "HTTP binary, the same bytes", "HTTP JSON, the same bytes", "gRPC, the same bytes"
_CORE = GRPC_CLIENTS[0]


def key_line(secrets: Sequence[str]) -> list[str]:
    return [f"Authorization: Bearer {random.choice(secrets)}"]


def fixed(body: Body) -> Body:
    made = body()
    return lambda: made


def _http(kind: str, name: str, body: Body, gateway: str = "", setting: str = "", **more: Any) -> Row:
    best = JSON if body()[1] is None else BINARY
    return Row(kind, name, best, lambda folder: http(folder, body, **more), gateway, setting)


def _grpc(kind: str, name: str, client: GrpcClient, gateway: str = "", **more: Any) -> Row:
    return Row(kind, name, GRPC, lambda folder: grpc(folder, client, **more), gateway)


def rows(secrets: Sequence[str]) -> list[Row]:
    """All kinds, the proxied one first, and the best cases last."""
    ids, gateways = binary(id=own_id), gateway_stage.NAMES
    return [
        *(_http("b", f"through {each}, HTTP binary", ids, each, own=trace) for each in gateways),
        *(_grpc("b", f"through {each}, gRPC", _CORE, each, own=trace) for each in gateways),
        _http("c", "lines of Envoy and a tracer, HTTP binary", binary(), clients=[ENVOY], own=traced),
        _http("c", "lines of Envoy and a tracer, HTTP JSON", whole_json(), clients=[ENVOY], own=traced),
        *(_http("a", each.name, binary(), clients=[each]) for each in HTTP_CLIENTS[:3]),
        *(_grpc("a", f"{each.name}, gRPC", each) for each in GRPC_CLIENTS[:3]),
        _http("d", "other values and ids, HTTP binary", ids),
        _http("d", "other values, ids and parameters, HTTP binary", binary(id=own_id, parameters=own_parameters)),
        _http("d", "other values, HTTP JSON", whole_json()),
        _http("d", "other values and ids, HTTP JSON", whole_json(id=own_id)),
        _http("e", "eight models in turns, HTTP binary", binary(), models=MODELS),
        _grpc("e", "eight models in turns, gRPC", _CORE, models=MODELS),
        _http("f", "16 different clients, HTTP binary", binary(), clients=HTTP_CLIENTS),
        _http("g", "keys of 100 callers, HTTP binary", binary(), setting="keys", own=lambda: key_line(secrets)),
        *(_grpc("h", f"metadata, deadlines: {each.name}", each, own=traced) for each in (_CORE, *GRPC_CLIENTS[3:])),
        _http("i", "access log, traces of 1 %, HTTP binary", binary(), setting="logged", own=request_id),
        _http("", BINARY, fixed(binary()), clients=[WRK]),
        _http("", JSON, fixed(whole_json()), clients=[WRK]),
        _grpc("", GRPC, H2LOAD, changing=False),
    ]


KINDS = "abcdefghi"


def chosen(kinds: Sequence[str], secrets: Sequence[str]) -> list[Row]:
    """The rows of these kinds, and the best cases beside them. Raises SystemExit for an unknown kind."""
    wanted = set(KINDS) if not kinds or "all" in kinds else set(kinds)
    if unknown := sorted(wanted - set(KINDS)):
        raise SystemExit(f"--traffic: there is no kind {', '.join(unknown)}; the kinds are {', '.join(KINDS)}, and all")
    found = [each for each in rows(secrets) if each.kind in wanted]
    best = {each.best for each in found}
    return found + [each for each in rows(secrets) if each.kind == "" and each.name in best]


@dataclass
class Contender:
    """A server that is measured, and one `Load` a window, by row and connections."""

    name: str
    target: ServerProcess
    loads: dict[tuple[str, int], list[Load | None]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    """Windows that were measured again since calls had failed. This server's may not."""


def settings(setting: str, folder: Path, secrets: Sequence[str]) -> tuple[list[str], str]:
    """The options of this server for a setting, and the words that Triton's command gets.

    Triton has neither keys nor an access log: it does without.
    """
    if setting == "keys":
        keys = [{"name": f"k{n}", "sha256": digest(each), "scopes": {"*": ["infer"]}} for n, each in enumerate(secrets)]
        (folder / "keys.json").write_text(json.dumps({"keys": keys}))
        return [f"--auth-file={folder / 'keys.json'}"], ""
    if setting == "logged":
        traces = " ".join(f"--trace-config={each}" for each in ("level=TIMESTAMPS", "rate=100"))
        files = [f" --trace-config=triton,file={folder / name} {traces}" for name in ("mine.json", "tritons.json")]
        return ["--access-log=all", f"--log-file={folder / 'log'}", *files[0].split()], files[1]
    return [], ""


def write_models(directory: Path) -> Path:
    """`simple`, and eight more of it under other names."""
    repository = write_repository(directory)
    for name in MODELS:
        shutil.copytree(repository / "simple", repository / name)
        config = repository / name / "config.pbtxt"
        config.write_text(config.read_text().replace('"simple"', f'"{name}"'))
    return repository


@contextmanager
def started(
    arguments: argparse.Namespace, repository: Path, options: Sequence[str], tritons: str
) -> Iterator[list[Contender]]:
    """This source, the baseline if there is one, and Triton."""
    with ExitStack() as stack:
        trees = {"modserve": ROOT, "baseline": arguments.baseline} if arguments.baseline else {"modserve": None}
        found = [
            Contender(name, stack.enter_context(server(repository, tree, options))) for name, tree in trees.items()
        ]
        if template := os.environ.get("TRITON_SERVER_CMD"):
            target = stack.enter_context(triton(template + tritons, repository))
            if target is None:
                raise SystemExit(f"TRITON_SERVER_CMD: the server did not become ready{tritons and f' with{tritons}'}")
            found.append(Contender("Triton", target))
        yield found


def measure(row: Row, servers: Sequence[Contender], arguments: argparse.Namespace, folder: Path) -> None:
    """Window by window in turns, the first of one round being the last of the next."""
    random.seed(row.name)
    load = row.prepare(folder)
    with ExitStack() as stack:
        targets = []
        for each in servers:
            target = each.target
            if row.gateway:
                ports = [(target.http, target.grpc)] * gateway_stage.SERVER_COUNT
                before = stack.enter_context(gateway_stage.gateway(row.gateway, ports, folder / each.name))
                target = replace(target, http=before.http_port, grpc=before.grpc_port)
            targets.append((each, target))
        for connections in CONNECTIONS:
            for run in range(arguments.runs):
                for each, target in targets if run % 2 == 0 else reversed(targets):
                    windows = each.loads.setdefault((row.name, connections), [])
                    windows.append(window(row, each, partial(load, target, connections, arguments.seconds)))


def window(row: Row, contender: Contender, load: Callable[[], Load]) -> Load | None:
    """One load. Triton's is repeated if calls fail, as some do with its gRPC behind nginx; None if they always do."""
    for _ in range(ATTEMPTS):
        try:
            return load()
        except SystemExit:
            if contender.name != "Triton":
                raise
            contender.failed.append(row.name)
            sys.stderr.write(f"{contender.name}, {row.name}: calls failed, once more\n")
    return None


def table(found: Sequence[Row], servers: Sequence[Contender]) -> list[str]:
    """A row for each kind and number of connections: all servers' figures, and ratios of the first to the others."""
    names = [each.name for each in servers]
    columns = ["kind", "traffic", "connections", *(f"CPU a request, {name}" for name in names)]
    columns += [f"CPU / {name}" for name in names[1:]]
    columns += [f"p50, {name}" for name in names] + [f"p99, {name}" for name in names]
    columns += [f"p99 / {name}" for name in names[1:]] + ["CPU / best case"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in found:
        for connections in CONNECTIONS:
            loads = [each.loads[row.name, connections] for each in servers]
            cells = [row.kind or "best", row.name, str(connections)]
            cells += [middle(each, lambda load: load.cpu_us, "{:.1f} µs") for each in loads]
            cells += [ratio(loads[0], other, lambda load: load.cpu_us) for other in loads[1:]]
            cells += [middle(each, lambda load: load.p50_us / 1e3, "{:.2f} ms") for each in loads]
            cells += [middle(each, lambda load: load.p99_us / 1e3, "{:.2f} ms") for each in loads]
            cells += [ratio(loads[0], other, lambda load: load.p99_us) for other in loads[1:]]
            best = servers[0].loads.get((row.best, connections), [])
            cells.append(f"{cpu_us(loads[0]) / cpu_us(best):.2f}" if best else "")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


BARS: Mapping[str, Mapping[str, str]] = {
    "HTTP": {
        "through envoy, HTTP binary": "Envoy",
        "through nginx, HTTP binary": "nginx",
        "through haproxy, HTTP binary": "HAProxy",
        "lines of Envoy and a tracer, HTTP binary": "traced",
        BINARY: "repeated",
    },
    "gRPC": {
        "through envoy, gRPC": "Envoy",
        "through nginx, gRPC": "nginx",
        "through haproxy, gRPC": "HAProxy",
        "metadata, deadlines: grpc-go": "metadata",
        GRPC: "repeated",
    },
}
"""Rows of the picture by protocol, the proxied ones first, and what stands below their bars."""


def picture(lines: Sequence[str]) -> str:
    """An SVG of the CPU a request of each server, from the lines of a table; rows that it lacks are left out."""
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|"))
    servers = {head.index(name): name.rpartition(", ")[2] for name in head if name.startswith("CPU a request")}
    found = {(row[1], row[2]): row for row in rows}

    def panel(protocol: str, connections: str) -> Panel:
        groups = {
            label: {
                name: float(row[place].partition(" ")[0]) for place, name in servers.items() if row[place][0].isdigit()
            }
            for name_of_row, label in BARS[protocol].items()
            if (row := found.get((name_of_row, connections)))
        }
        return Panel(f"{protocol}, {connections} connections: µs of CPU a request", groups)

    return draw([[panel(protocol, each) for protocol in BARS] for each in ("16", "64")], list(servers.values()))


def middle(loads: Sequence[Load | None], figure: Callable[[Load], float], form: str) -> str:
    """The median of the windows."""
    figures = [figure(load) for load in loads if load is not None]
    return form.format(statistics.median(figures)) if figures else "calls fail"


def cpu_us(loads: Sequence[Load | None]) -> float:
    return statistics.median(load.cpu_us for load in loads if load is not None)


def ratio(mine: Sequence[Load | None], theirs: Sequence[Load | None], figure: Callable[[Load], float]) -> str:
    """The median of the windows' ratios."""
    pairs = [(a, b) for a, b in zip(mine, theirs, strict=True) if a is not None and b is not None]
    return f"{statistics.median(figure(a) / figure(b) for a, b in pairs):.2f}" if pairs else ""


def report(arguments: argparse.Namespace) -> str:
    secrets = [new_secret() for _ in range(100)]
    found = chosen(arguments.traffic, secrets)
    total: list[Contender] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repository = write_models(folder / "models")
        for kind, setting in dict.fromkeys((each.kind, each.setting) for each in found):
            options, tritons = settings(setting, folder, secrets)
            with started(arguments, repository, options, tritons) as servers:
                for row in found:
                    if (row.kind, row.setting) == (kind, setting):
                        measure(row, servers, arguments, folder)
                        sys.stderr.write("\n".join([*table([row], servers)[2:], ""]))  # a run is long
            for each, earlier in zip(servers, total or servers, strict=True):
                if earlier is not each:
                    earlier.loads.update(each.loads)
                    earlier.failed += each.failed
            total = total or servers
    lines = table(found, total)
    for each in total:
        counts = (f"{name}: {count}" for name, count in Counter(each.failed).items())
        if each.failed:
            lines += ["", f"Windows in which calls to {each.name} failed, and that were repeated: {', '.join(counts)}."]
    return "\n".join(lines)
