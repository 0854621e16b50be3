"""gRPC calls as Ray's proxies hand them over, and the application that they start."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from modserve import InferenceServer, Settings
from modserve.frontends.http.application import scope_server
from modserve.pb import health as health_pb
from modserve.pb import inference as pb
from modserve.process.listeners import access_control
from modserve.ray.lifespan import without_lifespan
from modserve.ray.proxied_calls import ProxyCalls, StreamFailure, address
from modserve.ray.servicers import add_services
from modserve.settings import GrpcSettings

INFER, STREAM = (f"/{pb.SERVICE}/{name}" for name in ("ModelInfer", "ModelStreamInfer"))


class FakeContext:
    """Implements `ProxyContext`."""

    def __init__(self, *metadata: tuple[str, str | bytes]) -> None:
        self.metadata = metadata
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.trailers: list[tuple[str, str]] = [("request_id", "of-ray")]

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.metadata

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1234"

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def trailing_metadata(self) -> list[tuple[str, str]]:
        return self.trailers

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str]]) -> None:
        self.trailers = trailing_metadata


@pytest.fixture
async def calls() -> AsyncIterator[ProxyCalls]:
    settings = Settings(model_repository=["model_repository"], model_control_mode="explicit", load_model=["simple"])
    async with InferenceServer(settings) as server:
        yield ProxyCalls(server, GrpcSettings())


def request(model: str = "simple", id: str = "") -> bytes:
    message = pb.ModelInferRequest(model_name=model, id=id)
    for name in ("INPUT0", "INPUT1"):
        tensor = message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        tensor.contents.int_contents.extend([3] * 16)
    return message.SerializeToString()


async def messages(*data: bytes) -> AsyncIterator[bytes]:
    for each in data:
        yield each


async def test_an_inference(calls: ProxyCalls) -> None:
    context = FakeContext()
    response = pb.ModelInferResponse.FromString(
        (await calls.unary(INFER, request(id="mine"), context)).SerializeToString()
    )
    assert (response.id, response.model_name, context.code) == ("mine", "simple", None)
    assert response.raw_output_contents[0] == (6).to_bytes(4, "little") * 16


async def test_a_failure_is_in_the_context(calls: ProxyCalls) -> None:
    context = FakeContext()
    assert (await calls.unary(INFER, request("nosuch"), context)).SerializeToString() == b""
    assert context.code is grpc.StatusCode.NOT_FOUND
    assert "unknown model: 'nosuch'" in context.details
    assert [name for name, _ in context.trailers] == ["request_id", "x-request-id"]


async def test_a_message_that_is_none(calls: ProxyCalls) -> None:
    context = FakeContext()
    await calls.unary(INFER, b"\xff", context)
    assert context.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream(calls: ProxyCalls) -> None:
    context = FakeContext()
    sent = messages(request(id="1"), request("nosuch"), request(id="2"))
    outcomes = [pb.ModelStreamInferResponse.FromString(each.SerializeToString())
                async for each in calls.stream(STREAM, sent, context)]  # fmt: skip
    assert [each.infer_response.id for each in outcomes] == ["1", "", "2"]
    assert "unknown model" in outcomes[1].error_message
    assert context.code is None


async def test_a_stream_that_fails_as_a_whole(calls: ProxyCalls) -> None:
    context = FakeContext(("triton_grpc_error", "true"))
    with pytest.raises(StreamFailure):
        _ = [each async for each in calls.stream(STREAM, messages(request("nosuch")), context)]
    assert context.code is grpc.StatusCode.NOT_FOUND


async def test_a_stream_that_is_left_ends_its_call(calls: ProxyCalls) -> None:
    stream = calls.stream(f"/{health_pb.SERVICE}/Watch", b"", FakeContext())
    first = health_pb.HealthCheckResponse.FromString((await anext(stream)).SerializeToString())
    assert first.status == health_pb.HealthCheckResponse.SERVING
    await stream.aclose()
    await calls.wait_for_streams()


async def test_a_stream_with_many_messages_that_is_left_ends_its_call(calls: ProxyCalls) -> None:
    """Its task waits for room for another message at that moment."""
    stream = calls.stream(STREAM, messages(*(request(id=str(number)) for number in range(200))), FakeContext())
    await anext(stream)
    await stream.aclose()
    await calls.wait_for_streams()


async def test_a_caller_without_the_key() -> None:
    settings = Settings(
        model_repository=["model_repository"],
        model_control_mode="explicit",
        load_model=["simple"],
        api_key="secret-of-a-caller-0",
    )
    access = access_control(settings)
    assert access is not None
    access.start()
    try:
        async with InferenceServer(settings) as server:
            calls = ProxyCalls(scope_server(server, access.authority), settings.grpc, access.authority)
            context = FakeContext()
            await calls.unary(INFER, request(), context)
            assert context.code is grpc.StatusCode.UNAUTHENTICATED
            context = FakeContext(("x-api-key", "secret-of-a-caller-0"))
            response = await calls.unary(INFER, request(), context)
            assert (context.code, bool(response.SerializeToString())) == (None, True)
    finally:
        access.stop()


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("ipv4:192.0.2.1:1234", ("192.0.2.1", 1234)),
        ("ipv6:[2001:db8::1]:1234", ("2001:db8::1", 1234)),
        ("ipv6:%5B2001:db8::1%5D:1234", ("2001:db8::1", 1234)),
        ("unix:/tmp/socket", None),
        ("", None),
    ],
)
def test_the_address_of_a_client(peer: str, expected: tuple[str, int] | None) -> None:
    assert address(peer) == expected


def test_every_service_is_registered_with_bytes_for_messages() -> None:
    class FakeServer:
        def __init__(self) -> None:
            self.kinds: dict[str, tuple[bool, bool]] = {}

        def add_generic_rpc_handlers(self, handlers: tuple[Any]) -> None:
            for path, each in handlers[0]._method_handlers.items():
                assert each.request_deserializer is None
                self.kinds[path] = each.request_streaming, each.response_streaming

    server = FakeServer()
    add_services(object(), server)
    assert server.kinds[INFER] == (False, False)
    assert server.kinds[STREAM] == (True, True)
    assert server.kinds[f"/{health_pb.SERVICE}/Watch"] == (False, True)
    assert len(server.kinds) == len(pb.METHODS) + len(health_pb.METHODS)


async def test_ray_may_start_and_stop_the_application() -> None:
    served: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        served.append(scope["type"])

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    sent: list[str] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])

    whole = without_lifespan(app)
    for kind in ("lifespan", "http", "websocket"):
        await whole({"type": kind}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]
    assert served == ["http"]
