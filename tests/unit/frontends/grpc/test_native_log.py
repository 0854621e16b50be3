"""What the access log gets of calls, and the ids that these have."""

import gzip
from typing import Any

import pytest
from hyperframe.frame import RstStreamFrame
from native_client import SERVICE, Answer, Client, Port, client_fixture, framed, port_fixture, request
from test_grpc_stream import turns

from modserve.core.configuration.log_settings import AccessSettings
from modserve.core.version import ModelId
from modserve.core.wire.grpc_status import NAMES
from modserve.frontends.http2.frames import CANCEL
from modserve.observability.access_log import AccessLog
from modserve.pb import inference as pb

WATCH = "/grpc.health.v1.Health/Watch"


class Kept(AccessLog):
    """Has the fields of each line, but for times."""

    def __init__(self) -> None:
        super().__init__(AccessSettings(), start=False)
        self.lines: list[dict[str, Any]] = []

    def record(
        self,
        protocol: str,
        client: object,
        call: str,
        model: str,
        version: int,
        status: int,
        received: int,
        sent: int,
        responses: int,
        id: str,
        request_id: str,
        start_ns: int,
        queue_ns: int,
        timing: object,
        trace: str = "",
        tenant: str = "",
    ) -> None:
        assert protocol == "gRPC"
        assert start_ns
        counts = {"received": received, "sent": sent, "responses": responses}
        about = {"call": call, "model": model, "version": version, "status": NAMES[status], "id": request_id}
        self.lines.append({**about, **counts})


@pytest.fixture
def log() -> Kept:
    return Kept()


@pytest.fixture
async def logged(port: Port, log: Kept) -> Client:
    return port.again(access=log, codings=("gzip",)).client()


def typed() -> bytes:
    """A request that is no plain one."""
    message = pb.ModelInferRequest(model_name="simple")
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="INT32", shape=(1, 2)).contents.int_contents.extend([1, 2])
    return bytes(message.SerializeToString())


def echoed(answer: Answer) -> str:
    return answer.fields[0]["x-request-id"]


@pytest.mark.parametrize("make", [request, typed])
@pytest.mark.parametrize("accepted", ["", "gzip"])
async def test_an_inference(logged: Client, log: Kept, make: Any, accepted: str) -> None:
    """With the size that the response has before it is compressed."""
    message = make()
    more = (("grpc-accept-encoding", accepted),) if accepted else ()
    answer = await logged.ask("ModelInfer", framed(message), more=more)
    assert answer.status == 0
    assert log.lines == [
        {
            "call": "ModelInfer",
            "model": "simple",
            "version": 3,
            "status": "OK",
            "id": echoed(answer),
            "received": len(message),
            "sent": len(gzip.decompress(answer.messages[0]) if accepted else answer.messages[0]),
            "responses": 1,
        }
    ]


async def test_the_id_is_the_client_s(logged: Client, log: Kept) -> None:
    answer = await logged.ask("ModelInfer", framed(request()), more=(("x-request-id", "mine"),))
    assert (echoed(answer), log.lines[0]["id"]) == ("mine", "mine")


async def test_a_call_that_is_no_inference(logged: Client, log: Kept) -> None:
    answer = await logged.ask("ServerLive", framed(b""))
    expected = {"call": "ServerLive", "model": "", "version": -1, "status": "OK", "id": echoed(answer)}
    assert log.lines == [{**expected, "received": 0, "sent": 2, "responses": 1}]


@pytest.mark.parametrize("more", [(), (("grpc-accept-encoding", "gzip"),)])
async def test_a_failure(logged: Client, log: Kept, more: tuple[tuple[str, str], ...]) -> None:
    answer = await logged.ask("ModelInfer", framed(request("nosuch")), more=more)
    (line,) = log.lines
    assert (line["model"], line["status"], line["sent"]) == ("nosuch", "NOT_FOUND", 0)
    assert line["id"] == echoed(answer)


@pytest.mark.parametrize("make", [request, typed])
async def test_a_client_that_goes(logged: Client, log: Kept, port: Port, make: Any) -> None:
    port.loader.loaded[ModelId("simple", 3)].automatic = False
    stream = logged.call("ModelInfer", framed(make()))
    await turns()
    assert log.lines == []
    logged.wire.send(RstStreamFrame(stream, error_code=CANCEL))
    await turns()
    (line,) = log.lines
    assert (line["model"], line["status"], line["sent"]) == ("simple", "CANCELLED", 0)


@pytest.mark.parametrize(
    ("name", "more", "status"),
    [
        ("Nosuch", (), "UNIMPLEMENTED"),
        ("ModelInfer", (("x", "y" * 20_000),), "RESOURCE_EXHAUSTED"),
        ("ModelInfer", (("grpc-encoding", "snappy"),), "UNIMPLEMENTED"),
    ],
)
async def test_what_is_refused_by_its_head(
    logged: Client, log: Kept, name: str, more: tuple[tuple[str, str], ...], status: str
) -> None:
    """With the status that the client gets."""
    answer = await logged.ask(name, framed(request()), more=more)
    (line,) = log.lines
    assert (line["call"], line["status"]) == (SERVICE + name, status)
    assert NAMES[answer.status] == status


async def test_a_stream_of_responses(logged: Client, log: Kept) -> None:
    stream = logged.call(WATCH, framed(b""))
    await turns()
    assert len(logged.look()[stream].messages) == 1
    logged.wire.send(RstStreamFrame(stream, error_code=CANCEL))
    await turns()
    (line,) = log.lines
    assert (line["call"], line["status"], line["sent"], line["responses"]) == ("Watch", "CANCELLED", 2, 1)


async def test_streams_of_inferences_log_their_requests_only(logged: Client, log: Kept) -> None:
    assert (await logged.ask("ModelStreamInfer", framed(request()))).status == 0
    assert log.lines == []


async def test_without_a_log_there_are_no_ids(client: Client) -> None:
    assert "x-request-id" not in (await client.ask("ModelInfer", framed(request()))).fields[0]
