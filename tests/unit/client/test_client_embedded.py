"""A server in this process, called from threads and from event loops: a real engine, no sockets."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import modserve
from modserve import Client, ClientError, ClientTimeoutError, Code, InferenceServer, Settings
from modserve.client.embedded import EventLoopThread, Portal
from modserve.server import Phase

REPOSITORY = Path(__file__).parents[3] / "model_repository"
ONES = np.ones((1, 16), np.int32)
INPUTS = {"INPUT0": ONES, "INPUT1": ONES}
SLOW = {"IN": [1, 2], "DELAY": [0, 60_000], "WAIT": 0}
"""The second response of `repeat` would come after a minute."""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with modserve.connect(REPOSITORY) as client:
        yield client


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_arrays_in_arrays_out(client: Client) -> None:
    result = client.infer("simple", INPUTS, request_id="x", parameters={"p": 1})
    assert result["OUTPUT0"].tolist() == (ONES + ONES).tolist()
    assert (result.model, result.version, result.id) == ("simple", 1, "x")
    assert list(client.infer("simple", INPUTS, outputs=["OUTPUT1"])) == ["OUTPUT1"]
    assert client.infer("digits", {"image": [0.5] * 64}, version=1).version == 1


def test_plain_values(client: Client) -> None:
    assert client.infer("simple", {"INPUT0": list(range(16)), "INPUT1": [1] * 16}).plain("OUTPUT0") == [
        list(range(1, 17))
    ]
    assert client.metadata("simple") is client.metadata("simple")


def test_a_wrong_request_has_the_metadata_asked_for_again(client: Client) -> None:
    known = client.metadata("simple")
    with pytest.raises(ClientError):
        client.infer("simple", {"INPUT0": ONES})
    assert client.metadata("simple") is not known
    known = client.metadata("simple")
    with pytest.raises(ClientError):
        client.infer("simple", {"NO": 1})
    assert client.metadata("simple") is not known


def test_what_there_is(client: Client) -> None:
    assert client.live()
    assert client.ready()
    assert client.model_ready("simple")
    assert not client.model_ready("nosuch")
    assert not client.model_ready("simple", 9)
    assert client.server()["name"] == "modserve"
    assert {row["name"] for row in client.models()} >= {"simple", "repeat"}
    assert client.config("simple")["name"] == "simple"
    assert client.statistics("simple")[0]["name"] == "simple"


@pytest.mark.parametrize(
    ("model", "code", "status", "message"),
    [
        ("nosuch", Code.NOT_FOUND, 404, "Request for unknown model: 'nosuch' is not found"),
        ("repeat", Code.INVALID_ARG, 400, "[request id: <id_unknown>] expected 3 inputs but got 2"),
    ],
)
def test_failures(client: Client, model: str, code: Code, status: int, message: str) -> None:
    with pytest.raises(ClientError) as caught:
        client.infer(model, INPUTS)
    assert (caught.value.code, caught.value.status) == (code, status)
    assert caught.value.message.startswith(message)
    with pytest.raises(ClientError) as caught:
        list(client.stream(model, INPUTS))
    assert (caught.value.code, caught.value.status) == (code, status)


def test_loads_are_refused_as_everywhere(client: Client) -> None:
    for call in (client.load, client.unload):
        with pytest.raises(ClientError, match="explicit model load / unload is not allowed") as caught:
            call("simple")
        assert caught.value.status == 503


def test_models_come_and_go() -> None:
    settings = Settings(model_repository=REPOSITORY, model_control_mode="explicit")
    with modserve.connect(settings) as client:
        assert not client.model_ready("simple")
        client.load("simple")
        assert client.infer("simple", INPUTS).version == 1
        client.load("simple", config='{"max_batch_size": 2}')
        assert client.config("simple")["max_batch_size"] == 2
        client.unload("simple")
        assert not client.model_ready("simple")


def test_streams(client: Client) -> None:
    inputs = {"IN": [4, 5], "DELAY": [0, 0], "WAIT": 0}
    assert [result.plain("OUT") for result in client.stream("repeat", inputs)] == [4, 5]
    assert list(client.generate_stream("repeat", inputs)) == [{"OUT": 4, "IDX": 0}, {"OUT": 5, "IDX": 1}]
    assert client.generate("repeat", {"IN": [4], "DELAY": [0], "WAIT": 0}) == {"OUT": 4, "IDX": 0}
    with pytest.raises(ClientError, match="'x' is not an input of model 'repeat', which has DELAY, IN, WAIT"):
        client.generate("repeat", {"x": [1]})


def test_leaving_a_stream_cancels_the_request(client: Client) -> None:
    stream = client.stream("repeat", SLOW)
    assert next(stream).plain("OUT") == 1
    stream.close()
    assert client.statistics("repeat")[0]["name"] == "repeat"  # and the loop is free


def test_time_outs(client: Client) -> None:
    received: list[object] = []
    with pytest.raises(ClientTimeoutError) as caught:
        received.extend(response.plain("OUT") for response in client.stream("repeat", SLOW, timeout=0.05))
    assert received in ([], [1])
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(ClientError, match="timeout is 0, expected a number of seconds above 0"):
        client.infer("simple", INPUTS, timeout=0)
    assert client.infer("simple", INPUTS, timeout=float("inf")).version == 1


def test_from_many_threads(client: Client) -> None:
    def one(value: int) -> int:
        inputs = {"INPUT0": np.full((1, 16), value, np.int32), "INPUT1": ONES}
        return int(client.infer("simple", inputs)["OUTPUT0"][0, 0])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(200))) == list(range(1, 201))


def test_a_closed_client_says_so() -> None:
    before = threads()
    client = modserve.connect(REPOSITORY)
    client.close()
    client.close()
    with pytest.raises(ClientError, match="the client is closed"):
        client.infer("simple", INPUTS)
    assert "modserve" not in threads() - before


def test_calls_in_flight_end_when_the_client_closes() -> None:
    client = modserve.connect(Settings(model_repository=REPOSITORY, exit_timeout_secs=0))
    stream = client.stream("repeat", SLOW)
    next(stream)
    failures: list[ClientError] = []

    def read() -> None:
        try:
            next(stream)
        except ClientError as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    client.close()
    reader.join(30)
    assert not reader.is_alive()
    assert [type(error) for error in failures] == [ClientError]


def test_inside_an_event_loop_of_others() -> None:
    """As in a notebook: the cell runs on an event loop, and the server on another."""

    async def cell() -> int:
        with modserve.connect(REPOSITORY) as client:
            return client.infer("simple", INPUTS).version or 0

    assert asyncio.run(cell()) == 1


def test_a_running_server_from_another_thread_and_from_its_own() -> None:
    async def run() -> tuple[int, str, str]:
        async with InferenceServer(Settings(model_repository=REPOSITORY)) as server:

            def use() -> int:
                with modserve.connect(server) as client:
                    return client.infer("simple", INPUTS).version or 0

            version = await asyncio.to_thread(use)
            with pytest.raises(ClientError) as here:
                modserve.connect(server)
            async with modserve.connect_async(server) as client:
                assert (await client.infer("simple", INPUTS)).version == 1
            assert server.phase is Phase.RUNNING

            async def elsewhere() -> None:
                await modserve.connect_async(server).start()

            with pytest.raises(ClientError) as other:
                await asyncio.to_thread(asyncio.run, elsewhere())
            return version, here.value.message, other.value.message

    version, here, other = asyncio.run(run())
    assert version == 1
    assert "use modserve.connect_async here" in here
    assert "the server runs on another event loop" in other


def test_an_asynchronous_client() -> None:
    async def run() -> None:
        client = modserve.connect_async(REPOSITORY)
        with pytest.raises(ClientError, match="use 'async with' the client"):
            await client.live()
        async with client:
            result = await client.infer("simple", {"INPUT0": [1] * 16, "INPUT1": ONES})
            assert result.plain("OUTPUT0") == [[2] * 16]
            inputs = {"IN": [4, 5], "DELAY": [0, 0], "WAIT": 0}
            assert [each.plain("OUT") async for each in client.stream("repeat", inputs)] == [4, 5]
            assert [each["OUT"] async for each in client.generate_stream("repeat", inputs)] == [4, 5]
            assert (await client.generate("repeat", {"IN": [4], "DELAY": [0], "WAIT": 0}))["OUT"] == 4
            with pytest.raises(ClientTimeoutError):
                assert [each async for each in client.stream("repeat", SLOW, timeout=0.05)] == []
            reading = asyncio.ensure_future(anext(client.stream("repeat", {**SLOW, "DELAY": [60_000, 0]})))
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert await client.ready()
            assert await client.live()
            assert await client.model_ready("simple")
            assert (await client.server())["name"] == "modserve"
            assert len(await client.models()) == 6
            assert (await client.config("simple"))["name"] == "simple"
            assert (await client.statistics("simple"))[0]["name"] == "simple"
            for call in (client.load, client.unload):
                with pytest.raises(ClientError, match="explicit model load / unload"):
                    await call("simple")

    asyncio.run(run())


def test_what_there_is_no_client_of(tmp_path: Path) -> None:
    for target, message in (
        (str(tmp_path / "nosuch"), "there is no model repository or model file at"),
        ("localhost:8000", "the address of a server is http://localhost:8000 or grpc://localhost:8000"),
        ("http://", "is not the address"),
        ("grpc://host/path", "gRPC addresses have no path"),
    ):
        with pytest.raises(ClientError, match=message):
            modserve.connect(target)
    with pytest.raises(ClientError, match="headers and certificates need the address of a server"):
        modserve.connect(tmp_path, headers={"a": "b"})
    with pytest.raises(ClientError, match=r"cannot use .* for TLS: .*; expected PEM files"):
        modserve.connect("https://localhost", root_cert=tmp_path / "nosuch")
    with pytest.raises(ClientError, match=r"cannot use .* for TLS: .*; expected PEM files"):
        modserve.connect("grpcs://localhost", root_cert=tmp_path / "nosuch")


def test_one_model_file() -> None:
    with modserve.connect(REPOSITORY / "digits" / "1" / "model.onnx") as client:
        assert [row["state"] for row in client.models()] == ["READY"]


def test_a_fork_is_no_client() -> None:
    thread = EventLoopThread(asyncio.new_event_loop)
    portal = Portal(thread.loop)
    portal._process = os.getpid() + 1
    with pytest.raises(ClientError, match="does not survive a fork"):
        portal.call(asyncio.sleep(0))
    portal.end()
    thread.stop()


FORGOTTEN = """
import sys, modserve
client = modserve.connect(sys.argv[1])
print(client.ready())
"""


def test_a_client_that_nobody_closes_does_not_keep_the_process() -> None:
    command = [sys.executable, "-c", FORGOTTEN, str(REPOSITORY)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


def test_nothing_is_left_for_the_garbage_collector(client: Client) -> None:
    client.infer("simple", INPUTS)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            client.infer("simple", INPUTS)
        assert gc.collect() < 5  # what asyncio leaves of a call from another thread does not grow with it
    finally:
        gc.enable()
