"""Trace settings as `tritonclient` calls them, and the files that come of them, read as Triton's own tool does."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repositories import EXAMPLES
from server_here import serving_here
from server_process import LOADED, Server, eventually, started
from test_client_flavours import FLAVOURS, A, B, Client, opened
from wire import http

COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
REQUEST = ["REQUEST_START", "QUEUE_START", *COMPUTE, "INFER_RESPONSE_COMPLETE", "REQUEST_END"]
ACTIVITIES = {
    "http": ["HTTP_RECV_START", "HTTP_RECV_END", *REQUEST, "HTTP_SEND_START", "HTTP_SEND_END"],
    "grpc": ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", *REQUEST, "GRPC_SEND_START", "GRPC_SEND_END"],
}
SPANS = {
    "INFER": {"http": ("HTTP_RECV_START", "HTTP_SEND_END"), "grpc": ("GRPC_WAITREAD_END", "GRPC_SEND_END")},
    "SEND": {"http": ("HTTP_SEND_START", "HTTP_SEND_END"), "grpc": ("GRPC_SEND_START", "GRPC_SEND_END")},
    "REQUEST": dict.fromkeys(("http", "grpc"), ("REQUEST_START", "REQUEST_END")),
    "QUEUE": dict.fromkeys(("http", "grpc"), ("QUEUE_START", "COMPUTE_START")),
    "COMPUTE": dict.fromkeys(("http", "grpc"), ("COMPUTE_START", "COMPUTE_END")),
}
FILE_TEXT = "trace file location can not be updated through network protocol"


@dataclass
class Traced:
    """What a file says of one request."""

    model: tuple[str, int] | None = None
    request_id: str = ""
    stamps: list[tuple[str, int]] = field(default_factory=list)
    tensors: dict[tuple[str, str], Any] = field(default_factory=dict)

    @property
    def activities(self) -> list[str]:
        return [name for name, _ in self.stamps]

    @property
    def protocol(self) -> str:
        return "http" if "HTTP_RECV_START" in self.activities else "grpc"

    def spans(self) -> dict[str, int]:
        """Durations in nanoseconds, as Triton's `trace_summary.py` takes them."""
        at = dict(self.stamps)
        assert len(at) == len(self.stamps)
        return {name: at[ends[self.protocol][1]] - at[ends[self.protocol][0]] for name, ends in SPANS.items()}


def read(path: Path) -> list[Traced]:
    """The traces of a file, in the order of their ids."""
    found: dict[int, Traced] = {}
    for record in json.loads(path.read_bytes()):
        trace = found.setdefault(record["id"], Traced())
        if "model_name" in record:
            assert "parent_id" not in record
            trace.model = record["model_name"], record["model_version"]
            trace.request_id = record.get("request_id", "")
        for stamp in record.get("timestamps", []):
            trace.stamps.append((stamp["name"], stamp["ns"]))
        if "activity" in record:
            tensor = record["tensor"]
            shape = [int(size) for size in tensor["shape"].split(",")]
            values = np.array([float(text) for text in tensor["data"].split(",")]).reshape(shape)
            trace.tensors[record["activity"], tensor["name"]] = values.astype(tensor["dtype"].lower())
    return [found[trace_id] for trace_id in sorted(found)]


def begun(path: Path, count: int) -> list[Traced]:
    """The traces of a file that is being written, when there are as many."""
    eventually(lambda: path.exists() and len(_whole(path)) >= count)
    return read(path)


def _whole(path: Path) -> list[Traced]:
    try:
        return read(path)
    except ValueError:
        return []  # it is being written


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces") / "trace.json"


@pytest.fixture(scope="module")
def own_server(file: Path) -> Iterator[Server]:
    """Traces nothing yet."""
    options = [f"--trace-config=triton,file={file}", "--trace-config=rate=1"]
    with serving_here(EXAMPLES, options=options) as running:
        yield running


async def settings(client: Client, method: str, **named: Any) -> dict[str, Any]:
    """As HTTP shows them, whichever the protocol."""
    if client.protocol == "http":
        found: dict[str, Any] = await client.call(method, **named)
        return found
    answer = await client.call(method, **named, as_json=True)
    values = {name: setting["value"] for name, setting in answer["settings"].items()}
    return {name: value if name == "trace_level" else value[0] for name, value in values.items()}


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_settings(own_server: Server, file: Path, flavour: str) -> None:
    start = {
        "trace_level": ["OFF"],
        "trace_rate": "1",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": str(file),
        "trace_mode": "triton",
    }
    async with opened(flavour, own_server) as client:
        assert await settings(client, "get_trace_settings") == start
        assert await settings(client, "get_trace_settings", model_name="simple") == start
        own = {**start, "trace_rate": "12", "log_frequency": "34"}
        asked: dict[str, Any] = {"trace_rate": "12", "log_frequency": "34"}
        assert await settings(client, "update_trace_settings", model_name="simple", settings=asked) == own
        asked = {"trace_rate": "56", "trace_count": "78", "trace_level": ["TENSORS", "TIMESTAMPS"]}
        changed = {**start, "trace_rate": "56", "trace_count": "78", "trace_level": ["TIMESTAMPS", "TENSORS"]}
        assert await settings(client, "update_trace_settings", settings=asked) == changed
        assert await settings(client, "get_trace_settings", model_name="simple") == {
            **changed,
            "trace_rate": "12",
            "log_frequency": "34",
        }
        cleared = {"trace_rate": None, "trace_count": None, "trace_level": None, "log_frequency": None}
        assert await settings(client, "update_trace_settings", settings=cleared) == start
        assert await settings(client, "get_trace_settings", model_name="simple") == own
        assert await settings(client, "update_trace_settings", model_name="simple", settings=cleared) == start
        bad = "400" if client.protocol == "http" else "StatusCode.INVALID_ARGUMENT"
        none = "501" if client.protocol == "http" else "StatusCode.UNIMPLEMENTED"
        for named, status, text in (
            ({"model_name": "nosuch", "settings": {}}, bad, "Request for unknown model : nosuch"),
            ({"settings": {"trace_file": "x"}}, none, FILE_TEXT),
            ({"settings": {"trace_rate": "x"}}, bad, "Unable to parse 'trace_rate', got: x"),
        ):
            assert await client.refused("update_trace_settings", **named) == (status, text)
        assert await client.refused("get_trace_settings", model_name="nosuch") == (
            bad,
            "Request for unknown model : nosuch",
        )


async def test_requests_of_all_clients(own_server: Server, file: Path) -> None:
    async with opened("http", own_server) as control:
        await control.call("update_trace_settings", settings={"trace_level": ["TIMESTAMPS", "TENSORS"]})
        for flavour in FLAVOURS:
            async with opened(flavour, own_server) as client:
                await client.call("infer", "simple", client.simple(), request_id=flavour)
                await client.refused("infer", "simple", client.simple()[:1])
        await control.call("update_trace_settings", settings={"trace_level": None})
        await control.call("infer", "simple", control.simple(), request_id="not traced")
    traces = begun(file, 8)
    assert len(traces) == 8
    answered, refused = traces[::2], traces[1::2]
    assert [trace.request_id for trace in answered] == FLAVOURS
    for trace in answered:
        assert trace.model == ("simple", 1)
        assert trace.activities == ACTIVITIES[trace.protocol]
        times = [ns for _, ns in trace.stamps]
        assert times == sorted(times)
        spans = trace.spans()
        assert min(spans.values()) >= 0
        assert spans["INFER"] >= spans["REQUEST"] >= spans["QUEUE"] + spans["COMPUTE"] > 0
        assert {place: values.tolist() for place, values in trace.tensors.items()} == {
            ("TENSOR_QUEUE_INPUT", "INPUT0"): A.tolist(),
            ("TENSOR_QUEUE_INPUT", "INPUT1"): B.tolist(),
            ("TENSOR_BACKEND_OUTPUT", "OUTPUT0"): (A + B).tolist(),
            ("TENSOR_BACKEND_OUTPUT", "OUTPUT1"): (A - B).tolist(),
        }
    assert Counter(trace.protocol for trace in answered) == {"http": 2, "grpc": 2}
    for trace in refused:
        ends = ACTIVITIES[trace.protocol]
        assert trace.activities == ends[:2] + ends[-2:]


def infer(server: Server, times: int) -> None:
    tensors = [
        {"name": name, "shape": [1, 16], "datatype": "INT32", "data": list(range(16))} for name in ("INPUT0", "INPUT1")
    ]
    body = json.dumps({"inputs": tensors}).encode()
    for _ in range(times):
        assert http(server.http_port, "POST", "/v2/models/simple/infer", body).status == 200


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_files_are_whole_after_the_end(tmp_path: Path, how: signal.Signals) -> None:
    file = tmp_path / "t"
    options = [f"--trace-file={file}", "--trace-level=TIMESTAMPS", "--trace-rate=2", "--trace-log-frequency=2"]
    with started(EXAMPLES, options=options) as server:
        server.wait_for(LOADED)
        infer(server, 7)
        begun(tmp_path / "t.1", 1)
        server.signal(how)
        server.wait(0 if how is signal.SIGTERM else -how)
    assert {path.name: len(read(path)) for path in tmp_path.iterdir()} == {"t.0": 2, "t.1": 1}


def test_a_place_that_can_not_be_written_to(tmp_path: Path) -> None:
    options = [
        f"--trace-config=triton,file={tmp_path}/nosuch/t",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
    ]
    with serving_here(EXAMPLES, options=options, errors=["a trace cannot be written.*nosuch"]) as server:
        infer(server, 3)
