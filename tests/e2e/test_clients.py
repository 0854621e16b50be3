"""`modserve.connect` over HTTP and gRPC, to a server of this process and to one of another, with and without TLS."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from authority import Authority
from repositories import EXAMPLES, write_identity
from server_process import serving

import modserve
from modserve import Client, ClientError, ClientTimeoutError, Code, Settings
from modserve.testing import Serving, serve

ONES = np.ones((1, 16), np.int32)
INPUTS = {"INPUT0": ONES, "INPUT1": ONES}
QUICK: dict[str, list[int]] = {"IN": [4, 5], "DELAY": [0, 0], "WAIT": [0]}
SLOW: dict[str, list[int]] = {"IN": [4, 5], "DELAY": [0, 60_000], "WAIT": [0]}
"""The second response would come after a minute."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    more = tmp_path_factory.mktemp("models")
    write_identity(more, "text", "BYTES")
    write_identity(more, "large", "FP32")
    with serve(Settings(model_repository=[EXAMPLES, more])) as served:
        yield served


@pytest.fixture(params=["http", "grpc"])
def url(served: Serving, request: pytest.FixtureRequest) -> str:
    return served.http_url if request.param == "http" else served.grpc_url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with modserve.connect(url) as client:
        yield client


def run(url: str, use: Callable[[modserve.AsyncClient], Any], **options: Any) -> Any:
    async def with_client() -> Any:
        async with modserve.connect_async(url, **options) as client:
            return await use(client)

    return asyncio.run(with_client())


def test_arrays_and_plain_values(client: Client, url: str) -> None:
    result = client.infer("simple", INPUTS, request_id="x", outputs=["OUTPUT0"], parameters={"own": "1"})
    assert (result.model, result.version, result.id, list(result)) == ("simple", 1, "x", ["OUTPUT0"])
    assert result["OUTPUT0"].tolist() == [[2] * 16]
    assert client.infer("text", {"INPUT0": "ü"}).plain("OUTPUT0") == "ü"
    assert client.infer("simple", {"INPUT0": [1] * 16, "INPUT1": ONES}, version=1).plain("OUTPUT0") == [[2] * 16]
    texts = run(url, lambda client: client.infer("text", {"INPUT0": [["a"], ["b"]]}))
    assert texts.plain("OUTPUT0") == [["a"], ["b"]]


def test_long_tensors(client: Client, url: str) -> None:
    array = np.arange(2_000_000, dtype=np.float32).reshape(1, -1)
    sent = {"INPUT0": array}
    assert np.array_equal(client.infer("large", sent)["OUTPUT0"], array)
    assert np.array_equal(client.infer("large", sent, timeout=60)["OUTPUT0"], array)
    assert np.array_equal(run(url, lambda client: client.infer("large", sent))["OUTPUT0"], array)


def test_streams(client: Client, url: str) -> None:
    assert [result.plain("OUT") for result in client.stream("repeat", QUICK)] == [4, 5]
    assert [fields["OUT"] for fields in client.generate_stream("repeat", QUICK)] == [4, 5]

    async def read(client: modserve.AsyncClient) -> list[Any]:
        return [result.plain("OUT") async for result in client.stream("repeat", QUICK)]

    assert run(url, read) == [4, 5]


def test_leaving_a_stream_cancels_its_request(client: Client, url: str, served: Serving) -> None:
    stream = client.stream("repeat", SLOW)
    assert next(stream).plain("OUT") == 4
    stream.close()

    async def leave(client: modserve.AsyncClient) -> None:
        stream = client.stream("repeat", SLOW)
        assert (await anext(stream)).plain("OUT") == 4
        await stream.aclose()
        reading = asyncio.ensure_future(anext(client.stream("repeat", {**SLOW, "DELAY": [60_000, 0]})))
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    run(url, leave)
    until(lambda: not served.server.in_flight())


def until(fact: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(2000):
        if fact():
            return
        waiting.wait(0.01)
    raise AssertionError("not true within 20 s")


def test_time_outs(client: Client, url: str, served: Serving) -> None:
    def is_in_time(seconds: float) -> bool:
        """The first response, on this machine; the second is not."""
        received: list[Any] = []
        with pytest.raises(ClientTimeoutError):
            received.extend(each.plain("OUT") for each in client.stream("repeat", SLOW, timeout=seconds))
        assert received in ([], [4])
        return received == [4]

    assert any(map(is_in_time, (0.2, 2, 20)))

    async def wait(client: modserve.AsyncClient) -> None:
        with pytest.raises(ClientTimeoutError):
            assert [result async for result in client.stream("repeat", SLOW, timeout=0.2)] == []
        assert await client.ready()  # and the client goes on

    run(url, wait)
    assert client.ready()
    until(lambda: not served.server.in_flight())


@pytest.mark.parametrize(
    ("model", "code", "status"), [("nosuch", Code.NOT_FOUND, 404), ("simple", Code.INVALID_ARG, 400)]
)
def test_failures_are_the_same_over_both(client: Client, url: str, model: str, code: Code, status: int) -> None:
    async def fail(client: modserve.AsyncClient) -> None:
        await client.infer(model, {"IN": ONES})

    async def fail_in_a_stream(client: modserve.AsyncClient) -> None:
        async for _ in client.stream(model, {"IN": ONES}):
            pass

    calls: list[Callable[[], object]] = [
        lambda: client.infer(model, {"IN": ONES}),
        lambda: list(client.stream(model, {"IN": ONES})),
        lambda: run(url, fail),
        lambda: run(url, fail_in_a_stream),
    ]
    messages = set()
    for call in calls:
        with pytest.raises(ClientError) as caught:
            call()
        assert (caught.value.code, caught.value.status) == (code, status)
        messages.add(caught.value.message)
    assert len(messages) == 1
    assert client.infer("simple", INPUTS).version == 1  # on the same connection


def test_all_other_calls(client: Client, url: str, served: Serving) -> None:
    here = served.client
    assert client.metadata("simple") == here.metadata("simple")
    assert client.config("simple") == here.config("simple")
    assert client.models() == here.models()
    assert client.server() == here.server()
    assert client.statistics("simple")[0].keys() == here.statistics("simple")[0].keys()
    assert client.live()
    assert client.ready()
    assert client.model_ready("simple")
    assert not client.model_ready("nosuch")

    async def ask(client: modserve.AsyncClient) -> list[Any]:
        return [
            await client.metadata("simple"),
            await client.config("simple"),
            await client.models(),
            await client.server(),
            await client.live(),
            await client.model_ready("nosuch"),
        ]

    assert run(url, ask) == [
        here.metadata("simple"),
        here.config("simple"),
        here.models(),
        here.server(),
        True,
        False,
    ]


def test_many_calls_at_once(url: str) -> None:
    async def many(client: modserve.AsyncClient) -> set[int]:
        inputs = [{"INPUT0": ONES * value, "INPUT1": ONES} for value in range(50)]
        results = await asyncio.gather(*(client.infer("simple", each) for each in inputs))
        return {int(result["OUTPUT0"][0, 0]) for result in results}

    assert run(url, many) == set(range(1, 51))


def test_a_closed_client(url: str) -> None:
    client = modserve.connect(url)
    client.close()
    with pytest.raises(ClientError, match="is closed"):
        client.ready()


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_nobody_is_there(scheme: str) -> None:
    with socket.socket() as bound:  # and never listening
        bound.bind(("127.0.0.1", 0))
        url = f"{scheme}://127.0.0.1:{bound.getsockname()[1]}"
        with (
            pytest.raises(ClientError, match=f"cannot reach a server at {url}") as caught,
            modserve.connect(url) as client,
        ):
            client.live()
        assert (caught.value.code, caught.value.status) == (Code.UNAVAILABLE, None)
        with pytest.raises(ClientError, match=f"cannot reach a server at {url}"):
            run(url, lambda client: client.live())


def test_somebody_else_is_there(served: Serving) -> None:
    for port in (served.ports.grpc, served.ports.metrics):
        url = f"http://127.0.0.1:{port}"
        with modserve.connect(url) as client, pytest.raises(ClientError):
            client.server()
        with pytest.raises(ClientError):
            run(url, lambda client: client.server())


def test_a_server_that_was_started_again(tmp_path: Path) -> None:
    """Connections that are kept are not used when the server has closed them."""
    with serve(EXAMPLES) as first:
        port = first.ports.http
        client = modserve.connect(f"http://127.0.0.1:{port}")
        assert client.infer("simple", INPUTS).version == 1
    with serving(EXAMPLES, options=[f"--http-port={port}"]):
        assert client.infer("simple", INPUTS).version == 1
    client.close()


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_tls_with_certificates_and_restricted_calls(tmp_path: Path, scheme: str) -> None:
    authority = Authority(tmp_path, "authority")
    server, user = authority.issue("server"), authority.issue("user")
    settings = {
        f"{scheme}_use_ssl_mutual": True,
        f"{scheme}_server_cert": str(server.certificate),
        f"{scheme}_server_key": str(server.key),
        f"{scheme}_root_cert": str(authority.certificate),
        "http_restricted_api": {"inference": ("secret", "open")},
        "grpc_restricted_protocol": {"inference": ("secret", "open")},
    }
    header = "secret" if scheme == "http" else "triton-grpc-protocol-secret"
    with serve(EXAMPLES, **settings) as served:
        url = served.http_url if scheme == "http" else served.grpc_url
        assert url.startswith(f"{scheme}s://127.0.0.1:")
        options: dict[str, Any] = {
            "root_cert": authority.certificate,
            "client_cert": user.certificate,
            "client_key": user.key,
        }
        with modserve.connect(url, headers={header: "open"}, **options) as client:
            assert client.infer("simple", INPUTS).version == 1
        assert run(url, lambda client: client.infer("simple", INPUTS), headers={header: "open"}, **options).version == 1
        with modserve.connect(url, **options) as client, pytest.raises(ClientError):
            client.infer("simple", INPUTS)
        with modserve.connect(url) as client, pytest.raises(ClientError, match="cannot reach a server at"):
            client.live()
