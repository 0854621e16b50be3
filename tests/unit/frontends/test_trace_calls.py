"""Trace settings through both front ends, and the traces of requests that they take."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from fastapi import FastAPI
from puppet_server import MANY, MAX_JSON, PuppetLoader, Stage, infer, infer_streams, server_over, stage
from rpc_calls import FakeCall, call_table
from test_grpc_service import Stub, asked
from test_grpc_stream import Exchange, turns
from test_grpc_stream import asked as stream_asked

from modserve.core.configuration.trace_settings import TraceLevel, TraceSettings
from modserve.core.errors import ModserveError, invalid
from modserve.core.requests.response import InferenceResponse
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.version import ModelId
from modserve.frontends.http.rest.app import create_app
from modserve.observability.trace import Tracer
from modserve.observability.trace_file import Writer
from modserve.pb import inference as pb
from modserve.server.local import LocalServer
from modserve.settings import HttpSettings

CANCELLED = ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
REQUEST = ["REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE", "REQUEST_END"]
HTTP = ["HTTP_RECV_START", "HTTP_RECV_END", *REQUEST, "HTTP_SEND_START", "HTTP_SEND_END"]
GRPC = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", *REQUEST, "GRPC_SEND_START", "GRPC_SEND_END"]
UNREAD = ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"]


class AtOnce(Writer):
    def put(self, work: Callable[[], None], size: int = 0) -> bool:
        self._do(work, 0)
        return True


class Traces:
    """A tracer of everything, and what it has written."""

    def __init__(self, path: Path, level: TraceLevel = TraceLevel.TIMESTAMPS) -> None:
        self._path = path / "trace.json"
        self.tracer = Tracer(TraceSettings(level, 1, file=str(self._path)), AtOnce())

    @property
    def records(self) -> list[dict[str, Any]]:
        return json.loads(self._path.read_bytes()) if self._path.exists() else []

    @property
    def activities(self) -> list[list[str]]:
        """Of each trace, in their order; the times ascend."""
        found: dict[int, list[str]] = {}
        last: dict[int, int] = {}
        for record in self.records:
            names = found.setdefault(record["id"], [])
            for stamp in record.get("timestamps", []):
                assert stamp["ns"] >= last.get(record["id"], 1)
                last[record["id"]] = stamp["ns"]
                names.append(stamp["name"])
        return list(found.values())


# Settings

START = (
    b'{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1","log_frequency":"0","trace_file":"",'
    b'"trace_mode":"triton"}'
)


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> LocalServer:
    """Model echo has failed to load."""
    loader = PuppetLoader(failures={ModelId("echo", 1): invalid("no good")})
    found = server_over(tmp_path_factory.mktemp("repository"), loader)
    asyncio.run(found.load())
    return found


@pytest.fixture(scope="module")
def app(one_server: LocalServer) -> FastAPI:
    """Made once, since that takes long."""
    return create_app(one_server, HttpSettings(max_json=MAX_JSON))


@pytest.fixture
def server(one_server: LocalServer) -> LocalServer:
    """Nobody has changed its trace settings."""
    one_server.tracer = Tracer()
    return one_server


@pytest.fixture
async def client(server: LocalServer, app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        yield found


@pytest.mark.parametrize("path", ["/v2/trace/setting", "/v2/models/simple/trace/setting"])
async def test_settings_over_http(client: httpx.AsyncClient, server: LocalServer, path: str) -> None:
    answer = await client.get(path)
    assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, "application/json", START)
    changed = START.replace(b'"1000"', b'"5"')
    answer = await client.post(path, content=b'{"trace_rate":"5"}')
    assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, "application/json", changed)
    assert server.tracer.settings("simple").rate == 5
    assert server.tracer.settings().rate == (1000 if "models" in path else 5)
    assert (await client.post(path)).content == changed
    assert (await client.post(path, content=b'{"trace_rate":null}')).content == START


@pytest.mark.parametrize("model", ["", "simple"])
async def test_settings_over_grpc(server: LocalServer, model: str) -> None:
    call = Stub(server)
    value = pb.TraceSettingRequest.SettingValue
    asked_for = pb.TraceSettingRequest(settings={"trace_rate": value(value=["5"])}, model_name=model)
    answer = await call("TraceSetting", asked_for)
    assert list(answer.settings["trace_rate"].value) == ["5"]
    assert len(answer.settings) == 6
    assert server.tracer.settings("simple").rate == 5
    assert await call("TraceSetting", pb.TraceSettingRequest(model_name=model)) == answer
    cleared = pb.TraceSettingRequest(settings={"trace_rate": value()}, model_name=model)
    assert list((await call("TraceSetting", cleared)).settings["trace_rate"].value) == ["1000"]


NO_FILE = "Attempting to set invalid trace setting :trace file name is not given"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("GET", "/v2/models/nosuch/trace/setting", b"", 400, "Request for unknown model : nosuch"),
        ("POST", "/v2/models/nosuch/trace/setting", b"{}", 400, "Request for unknown model : nosuch"),
        ("GET", "/v2/models/echo/trace/setting", b"", 400, "Request for unknown model : echo"),
        ("GET", "/v2/models/simple/versions/1/trace/setting", b"", 404, "Not Found"),
        ("PUT", "/v2/trace/setting", b"", 405, "Method Not Allowed"),
        ("POST", "/v2/trace/setting", b'{"trace_level":["TIMESTAMPS"]}', 400, NO_FILE),
        ("POST", "/v2/models/simple/trace/setting", b'{"trace_level":["TENSORS"]}', 400, NO_FILE),
        (
            "POST",
            "/v2/trace/setting",
            b'{"trace_rate":"1","trace_file":"x"}',
            501,
            "trace file location can not be updated through network protocol",
        ),
        ("POST", "/v2/trace/setting", b'{"trace_rate":"x"}', 400, "Unable to parse 'trace_rate', got: x"),
    ],
)
async def test_what_is_refused_over_http(
    client: httpx.AsyncClient, server: LocalServer, method: str, path: str, body: bytes, status: int, text: str
) -> None:
    answer = await client.request(method, path, content=body)
    assert (answer.status_code, answer.json()) == (status, {"error": text})
    assert server.tracer.settings("simple") == TraceSettings()


@pytest.mark.parametrize(
    ("model", "name", "values", "code", "text"),
    [
        ("nosuch", "trace_rate", ["1"], "INVALID_ARGUMENT", "Request for unknown model : nosuch"),
        ("", "trace_level", ["TIMESTAMPS"], "INVALID_ARGUMENT", NO_FILE),
        ("", "trace_rate", ["x"], "INVALID_ARGUMENT", "Unable to parse 'trace_rate', got: x"),
        (
            "simple",
            "trace_file",
            ["x"],
            "UNIMPLEMENTED",
            "trace file location can not be updated through network protocol",
        ),
    ],
)
async def test_what_is_refused_over_grpc(
    server: LocalServer, model: str, name: str, values: list[str], code: str, text: str
) -> None:
    value = pb.TraceSettingRequest.SettingValue(value=values)
    message = pb.TraceSettingRequest(settings={name: value}, model_name=model)
    assert await Stub(server).failure("TraceSetting", message) == (grpc.StatusCode[code], text)
    assert server.tracer.settings("simple") == TraceSettings()


async def test_settings_of_a_model_outlive_it(tmp_path: Path) -> None:
    server = server_over(tmp_path, PuppetLoader())
    await server.load()
    server.tracer_for("simple").change({"rate": 5}, "simple")
    await server._control.stop()
    with pytest.raises(ModserveError, match="Request for unknown model : simple"):
        server.tracer_for("simple")
    await server.load()
    assert server.tracer_for("simple").settings("simple").rate == 5


def test_the_extension_is_listed(server: LocalServer) -> None:
    assert "trace" in server.extensions


# Traces over HTTP


def traced_stage(found: Stage, path: Path, level: TraceLevel = TraceLevel.TIMESTAMPS) -> Traces:
    traces = Traces(path, level)
    found.server.tracer = traces.tracer
    return traces


async def test_requests_over_http(tmp_path: Path) -> None:
    async with stage(tmp_path) as found:
        traces = traced_stage(found, tmp_path)
        client = found.connect()
        whole = infer()
        client.send(whole[:40], whole[40:])
        await client.receive()
        client.send(whole)
        await client.receive(2)
        client.send(infer(b'{"inputs":[]}'))
        await client.receive(3)
        client.send(infer().replace(b"/simple/", b"/nosuch/"))
        assert [answer.status for answer in await client.receive(4)] == [200, 200, 400, 404]
        assert traces.activities == [HTTP, HTTP, UNREAD]
        assert traces.records[0] == {"id": 1, "model_name": "simple", "model_version": 3}
        stamps = [record["timestamps"][0]["ns"] for record in traces.records[1:3]]
        assert stamps[0] < stamps[1], "its first part came before its last"


async def test_a_client_that_goes_away(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as found:
        traces = traced_stage(found, tmp_path)
        client = found.connect()
        client.send(infer())
        assert traces.activities == []
        client.transport.lose()
        assert traces.activities == [["HTTP_RECV_START", "HTTP_RECV_END", *CANCELLED]]


async def test_tensors(tmp_path: Path) -> None:
    async with stage(tmp_path) as found:
        traces = traced_stage(found, tmp_path, TraceLevel.TENSORS)
        client = found.connect()
        client.send(infer())
        await client.receive()
        told = [(record["activity"], *record["tensor"].values()) for record in traces.records if "activity" in record]
        assert told == [
            ("TENSOR_QUEUE_INPUT", "INPUT0", "1,2", "1,2", "INT32"),
            ("TENSOR_QUEUE_INPUT", "INPUT1", "10,10", "1,2", "INT32"),
            ("TENSOR_BACKEND_OUTPUT", "OUTPUT0", "11,12", "1,2", "INT32"),
            ("TENSOR_BACKEND_OUTPUT", "OUTPUT1", "-9,-8", "1,2", "INT32"),
        ]
        assert traces.activities == [[]]


async def test_the_stamps_of_an_execution(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as found:
        traces = traced_stage(found, tmp_path)
        client = found.connect()
        client.send(infer())
        (inflight,) = found.simple.submitted
        timing = inflight.timing = ExecutionTiming()
        timing.compute_start_ns = inflight.request_start_ns + 1
        timing.compute_input_end_ns = timing.compute_output_start_ns = timing.compute_end_ns = timing.compute_start_ns
        found.simple.answer_all()
        await client.receive()
        compute = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
        assert traces.activities == [[*HTTP[:4], *compute, *HTTP[4:]]]


async def test_requests_through_the_application(tmp_path: Path, server: LocalServer, client: httpx.AsyncClient) -> None:
    traces = Traces(tmp_path)
    server.tracer = traces.tracer
    assert (await client.post("/v2/models/simple/infer", content=infer().partition(b"\r\n\r\n")[2])).status_code == 200
    assert traces.activities == [HTTP]


# Traces over gRPC


@pytest.mark.parametrize(
    ("message", "expected"),
    [(asked(id="mine"), GRPC), (pb.ModelInferRequest(model_name="simple"), GRPC[:2] + GRPC[-2:])],
)
async def test_a_call(tmp_path: Path, server: LocalServer, message: pb.ModelInferRequest, expected: list[str]) -> None:
    traces = Traces(tmp_path)
    server.tracer = traces.tracer
    call = FakeCall(message.SerializeToString())
    await call_table(server).serve(f"/{pb.SERVICE}/ModelInfer", call)
    assert (call.code is None) == bool(message.id)
    assert traces.activities == []
    call.end()
    assert traces.activities == [expected]
    assert traces.records[0].get("request_id", "") == message.id


async def test_a_stream(tmp_path: Path, server: LocalServer) -> None:
    traces = Traces(tmp_path)
    server.tracer = traces.tracer
    exchange = Exchange(server, infer_streams(server))
    exchange.send(stream_asked("a"), stream_asked("b"), pb.ModelInferRequest(model_name="simple", id="c"))
    exchange.half_close()
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    assert traces.activities == [GRPC, GRPC, GRPC[:2] + GRPC[-2:]]
    assert [record["request_id"] for record in traces.records if "request_id" in record] == ["a", "b", "c"]


async def test_a_stream_that_is_cut_off(tmp_path: Path) -> None:
    loader = PuppetLoader()
    server = server_over(tmp_path, loader)
    await server.load()
    simple = loader.loaded[ModelId("simple", 3)]
    simple.automatic = False
    traces = Traces(tmp_path)
    server.tracer = traces.tracer
    exchange = Exchange(server, infer_streams(server))
    exchange.send(stream_asked("a"))
    await turns()
    assert len(simple.submitted) == 1
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.task
    assert traces.activities == [[*GRPC[:2], *CANCELLED]]


async def test_several_answers(tmp_path: Path) -> None:
    loader = PuppetLoader({"many": MANY}, {"many": (1,)})
    server = server_over(tmp_path, loader)
    await server.load()
    many = loader.loaded[ModelId("many", 1)]
    many.automatic = False
    traces = Traces(tmp_path)
    server.tracer = traces.tracer
    exchange = Exchange(server, infer_streams(server))
    message = pb.ModelInferRequest(model_name="many", id="a", raw_input_contents=[bytes(4)])
    message.inputs.add(name="IN", datatype="INT32", shape=[1])
    exchange.send(message)
    await turns()
    (inflight,) = many.submitted
    for _ in range(2):
        inflight.settle(InferenceResponse("many", 1, {}, "a"), final=False)
    await turns()
    assert traces.activities == []
    inflight.settle(None)
    exchange.half_close()
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    (activities,) = traces.activities
    assert (activities[:4], activities.count("INFER_RESPONSE_COMPLETE")) == (GRPC[:4], 2)
    assert (activities.count("GRPC_SEND_START"), activities.count("GRPC_SEND_END")) == (2, 2)
    assert activities.count("REQUEST_END") == 1
