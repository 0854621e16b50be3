"""Unary calls: messages, refusals, compression and metadata."""

import asyncio
import base64
import gzip
import zlib
from typing import Any

import pytest
from native_client import (
    SERVICE,
    SUM,
    Client,
    Port,
    call_block,
    client_fixture,
    continuation,
    framed,
    outputs,
    port_fixture,
    request,
)

from http2_client import FriendlyClient, Wire, data, headers
from modserve.frontends.grpc.rpc import RpcCall


async def test_an_inference_is_one_write(client: Client) -> None:
    stream = client.call("ModelInfer", framed(request()))
    while not client.wire.transport.written:  # noqa: ASYNC110  # a turn, no time
        await asyncio.sleep(0)
    assert len(client.wire.transport.written) == 1
    answer = await client.answer(stream)
    assert answer.fields == [{":status": "200", "content-type": "application/grpc"}, {"grpc-status": "0"}]
    (message,) = answer.messages
    assert outputs(message)[0] == SUM
    assert not client.wire.connection.streams


async def test_responses_of_one_turn_are_one_write(client: Client, port: Port) -> None:
    for puppet in port.loader.loaded.values():
        puppet.automatic = False
    streams = [client.call("ModelInfer", framed(request())) for _ in range(5)]
    await asyncio.sleep(0)
    for puppet in port.loader.loaded.values():
        puppet.answer_all()
    for _ in range(4):
        await asyncio.sleep(0)
    assert len(client.wire.transport.written) == 1
    assert [client.look()[stream].status for stream in streams] == [0] * 5


@pytest.mark.parametrize("name", ["ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex"])
async def test_other_calls(client: Client, name: str) -> None:
    answer = await client.ask(name, framed(b""))
    assert (answer.status, len(answer.messages)) == (0, 1)


async def test_the_h2_library(port: Port) -> None:
    client = FriendlyClient(Wire(port.port, greet=False))
    fields = [(":method", "POST"), (":scheme", "http"), (":path", SERVICE + "ServerLive"), (":authority", "a")]
    for _ in range(3):
        client.ask(framed(b""), [*fields, ("content-type", "application/grpc"), ("te", "trailers")])
        for _ in range(5):
            await asyncio.sleep(0)
        assert "TrailersReceived" in [type(each).__name__ for each in client.exchange()]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 50])
async def test_messages_in_pieces(client: Client, size: int) -> None:
    stream = client.call("ModelInfer", end=False)
    body = framed(request())
    for at in range(0, len(body), size):
        client.wire.send(data(stream, body[at : at + size]))
    client.wire.send(data(stream, b"", end=True))
    answer = await client.answer(stream)
    assert (answer.status, answer.reset) == (0, None)
    assert outputs(answer.messages[0])[0] == SUM


async def test_an_empty_message_in_pieces(client: Client) -> None:
    stream = client.call("ServerLive", end=False)
    client.wire.send(data(stream, b"\0\0\0"), data(stream, b"\0\0", end=True))
    assert (await client.answer(stream)).status == 0


async def test_a_second_message_is_dropped(client: Client) -> None:
    assert (await client.ask("ServerLive", framed(b""), framed(b""), b"\0\0\0\1")).status == 0


# Refusals

REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "an unknown call": ({"name": "Nothing"}, 12, "Method not found!"),
    "an unknown service": ({"name": "/a.B/C"}, 12, "Method not found!"),
    "an unknown coding": ({"name": "ServerLive", "more": (("grpc-encoding", "br"),)}, 12, "grpc-encoding 'br' is not"),
    "long metadata": ({"name": "ServerLive", "more": (("x", "y" * 9000), ("z", "y" * 9000))}, 8, "bytes of metadata"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_refused_by_its_head(client: Client, case: str) -> None:
    options, status, text = REFUSED[case]
    options = dict(options)
    name: Any = options.pop("name")
    if case == "long metadata":  # which takes two frames
        stream, whole = 1, call_block(SERVICE + name, *options["more"])
        first = headers(stream, whole[:16_000], end=True, whole=False)
        client.wire.send(first, continuation(stream, whole[16_000:]))
        answer = await client.answer(stream)
    else:
        answer = await client.ask(name, framed(b""), **options)
    assert (answer.status, len(answer.fields)) == (status, 1)
    assert text in answer.text
    if case == "an unknown coding":
        assert answer.fields[0]["grpc-accept-encoding"] == "identity, deflate, gzip"


@pytest.mark.parametrize("kind", ["", "application/json", "application/grpcx", "text/html"])
async def test_another_content_type(client: Client, kind: str) -> None:
    assert (await client.ask("ServerLive", framed(b""), kind=kind)).fields == [{":status": "415"}]


@pytest.mark.parametrize("kind", ["application/grpc+proto", "application/grpc;charset=x"])
async def test_content_types_of_grpc(client: Client, kind: str) -> None:
    assert (await client.ask("ServerLive", framed(b""), kind=kind)).status == 0


async def test_another_method(client: Client) -> None:
    assert (await client.ask("ServerLive", method="GET")).fields == [{":status": "405", "allow": "POST"}]


async def test_a_call_without_a_message(client: Client, port: Port) -> None:
    assert (await client.ask("ModelInfer")).status == 13
    stream = client.call("ServerLive", end=False)
    client.wire.send(data(stream, b"", end=True))
    assert (await client.answer(stream)).status == 13


@pytest.mark.parametrize("body", [b"\0", b"\0\0\0\0\5abc", framed(b"")[:4]])
async def test_a_message_that_ends_early(client: Client, body: bytes) -> None:
    answer = await client.ask("ModelInfer", body)
    assert (answer.status, answer.text) == (13, "the client ended the call in the middle of a message")


async def test_messages_that_cannot_be(client: Client) -> None:
    assert (await client.ask("ServerLive", b"\2\0\0\0\0")).status == 13
    assert (await client.ask("ServerLive", framed(b"x", 1))).status == 13
    assert (await client.ask("ServerLive", framed(b"x", 1), more=(("grpc-encoding", "identity"),))).status == 13


async def test_a_message_that_is_too_long(port: Port) -> None:
    client = port.again(max_message=100).client()
    for name in ("ModelInfer", "ModelStreamInfer"):
        stream = client.call(name, b"\0\0\0\0\x65", end=False)
        answer = await client.answer(stream)
        assert (answer.status, answer.text) == (8, "Received message larger than max (101 vs. 100)")
        assert answer.reset == 0  # the client need not send the rest
        client.wire.send(data(stream, bytes(101), end=True))
    assert (await client.ask("ModelInfer", framed(request()))).status in (0, 8)


async def test_a_message_for_which_there_is_no_memory(port: Port, client: Client) -> None:
    stream = client.call("ModelInfer", b"\0\0\x20\0\0", end=False)
    for _ in range(70):
        client.wire.send(data(stream, bytes(16_000)))
    answer = await client.answer(stream)
    assert answer.status == 8
    assert "memory" in answer.text
    assert port.held == 0


async def test_errors_and_their_texts(client: Client) -> None:
    answer = await client.ask("ModelInfer", framed(request("no% \n\u00fc\u4e2d")))
    assert answer.status == 5
    assert answer.text == "Request for unknown model: 'no%25 %0A%C3%BC%E4%B8%AD' is not found"


# Compression


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_requests_are_inflated(client: Client, coding: str, pack: Any) -> None:
    answer = await client.ask("ModelInfer", framed(pack(request()), 1), more=(("grpc-encoding", coding),))
    assert outputs(answer.messages[0])[0] == SUM


@pytest.mark.parametrize(
    ("codings", "accepted", "coding"),
    [
        (("gzip", "deflate"), "identity, deflate, gzip", "gzip"),
        (("deflate", "gzip"), "identity,deflate,gzip", "deflate"),
        (("deflate", "gzip"), "gzip", "gzip"),
        (("gzip", "deflate"), "identity", ""),
        (("gzip", "deflate"), "", ""),
        ((), "gzip", ""),
    ],
)
async def test_responses_are_compressed(port: Port, codings: tuple[str, ...], accepted: str, coding: str) -> None:
    port = port.again(codings=codings)

    async def respond(message: object, call: RpcCall) -> Any:
        return b"a" * 1000

    port.handle("ServerMetadata", respond)
    answer = await port.client().ask("ServerMetadata", framed(b""), more=(("grpc-accept-encoding", accepted),))
    assert answer.fields[0].get("grpc-encoding", "") == coding
    packed = answer.messages[0]
    unpack: dict[str, Any] = {"gzip": gzip.decompress, "deflate": zlib.decompress, "": bytes}
    assert unpack[coding](packed) == b"a" * 1000
    assert answer.body[0] == bool(coding)


# Metadata


async def test_metadata(port: Port, client: Client) -> None:
    seen: list[Any] = []

    async def look(message: object, call: RpcCall) -> Any:
        seen.extend(call.metadata)
        call.set_trailers((("cost", "a lot"),))
        return b""

    port.handle("ServerLive", look)
    binary = base64.b64encode(b"\xff\0").decode()
    more = (("user-agent", "x"), ("a-bin", binary), ("b-bin", binary.rstrip("=")), ("c-bin", f"{binary},{binary}"))
    answer = await client.ask("ServerLive", framed(b""), more=(*more, ("d-bin", "?"), ("grpc-timeout", "9S")))
    assert seen == [("user-agent", "x"), *[(name, b"\xff\0") for name in ("a-bin", "b-bin", "c-bin", "c-bin")]]
    assert answer.fields[-1] == {"grpc-status": "0", "cost": "a lot"}
