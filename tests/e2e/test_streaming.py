"""ModelStreamInfer with the streaming clients of `tritonclient`, and with a plain stub where they hide things."""

import queue
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from repositories import HELD, write_held, write_identity
from server_here import serving_here, started_here
from server_process import LOADED, Server, eventually
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException
from wire import HOST, SECONDS, Ask, Input, channel, ints, message, metric, stub

STOPPING = "GRPC server is shutting down and has stopped accepting new requests."
NO_MODEL = "Request for unknown model: 'nosuch' is not found"


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`quick`, `slow` (a second each), and `stuck`, which waits for a batch that never gets full."""
    repository = tmp_path_factory.mktemp("streaming")
    write_identity(repository, "quick")
    write_identity(repository, "slow", parameters={"execute_delay_ms": 1000})
    batching = "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 60000000 }"
    write_identity(repository, "stuck", extra=batching)
    with serving_here(repository) as running:
        yield running


def given(*values: int) -> Any:
    array = np.array([values], dtype=np.int32)
    found = tritonclient.grpc.InferInput("INPUT0", array.shape, "INT32")
    found.set_data_from_numpy(array)
    return [found]


class Told(NamedTuple):
    """What a client's callback was told: a result's id and values, or the error's status and message."""

    id: str | None = None
    values: list[int] | None = None
    error: tuple[str | None, str] | None = None


def told(result: Any, error: InferenceServerException | None) -> Told:
    if error is not None:
        return Told(error=(error.status(), error.message()))
    response = result.get_response()
    assert response.parameters["triton_final_response"].bool_param
    return Told(response.id, result.as_numpy("OUTPUT0").ravel().tolist())


class Stream:
    """`tritonclient.grpc`'s stream, and what comes back on it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._told: queue.SimpleQueue[Told] = queue.SimpleQueue()

    def callback(self, result: Any, error: InferenceServerException | None) -> None:
        self._told.put(told(result, error))

    def send(self, model: str, id: str, *values: int, **how: Any) -> None:
        self.client.async_stream_infer(model, given(*values), request_id=id, **how)

    def next(self) -> Told:
        return self._told.get(timeout=SECONDS)

    @property
    def quiet(self) -> bool:
        return self._told.empty()


@contextmanager
def stream(server: Server, **how: Any) -> Iterator[Stream]:
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        found = Stream(client)
        client.start_stream(found.callback, **how)
        yield found


def pending(server: Server, model: str) -> float:
    return metric(server, "nv_inference_pending_request_count", model=model)


def raw(model: str, id: str, *values: int) -> service_pb2.ModelInferRequest:
    return message(Ask((Input("INPUT0", "INT32", (1, len(values)), ints(*values)),), model=model, id=id))


# tritonclient.grpc


def test_many_requests_come_back_in_order(streaming: Server) -> None:
    count = 2000  # more than a stream may have outstanding
    with stream(streaming) as opened:
        for number in range(count):
            opened.send("quick", str(number), number, -number)
        opened.client.stop_stream()
        assert [opened.next() for _ in range(count)] == [
            Told(str(number), [number, -number]) for number in range(count)
        ]
        assert opened.quiet


def test_a_quick_model_waits_for_the_slow_one_before_it(streaming: Server) -> None:
    with stream(streaming) as opened:
        opened.send("slow", "first", 1)
        opened.send("quick", "second", 2, enable_empty_final_response=True)
        opened.client.stop_stream()  # waits for what is outstanding
        assert [opened.next(), opened.next()] == [Told("first", [1]), Told("second", [2])]
        assert opened.quiet


def test_errors_leave_the_stream_open(streaming: Server) -> None:
    with stream(streaming) as opened:
        opened.send("nosuch", "x", 1)
        opened.send("quick", "good", 2)
        assert opened.next() == Told(error=(None, NO_MODEL))
        assert opened.next() == Told("good", [2])
        opened.send("quick", "again", 3)
        assert opened.next() == Told("again", [3])
        opened.client.stop_stream()
        assert opened.quiet


def test_hard_errors_end_it(streaming: Server) -> None:
    with stream(streaming, headers={"triton_grpc_error": "true"}) as opened:
        opened.send("quick", "good", 1)
        opened.send("nosuch", "x", 2)
        opened.send("stuck", "lost", 3)
        assert opened.next() == Told("good", [1])
        assert opened.next() == Told(error=("StatusCode.NOT_FOUND", NO_MODEL))
        eventually(lambda: pending(streaming, "stuck") == 0)
        opened.client.stop_stream()
        assert opened.quiet


def test_a_cancelled_stream_takes_its_requests_with_it(streaming: Server) -> None:
    with stream(streaming) as opened:
        for number in range(3):
            opened.send("stuck", str(number), number)
        eventually(lambda: pending(streaming, "stuck") == 3)
        opened.client.stop_stream(cancel_requests=True)
        assert opened.next() == Told(error=("StatusCode.CANCELLED", "Locally cancelled by application!"))
        eventually(lambda: pending(streaming, "stuck") == 0)


def test_a_stream_that_takes_too_long(streaming: Server) -> None:
    with stream(streaming, stream_timeout=0.3) as opened:
        opened.send("slow", "x", 1)
        opened.send("slow", "y", 1)
        told = opened.next()
        # The client's own words, which tell whether its clock or the end of the stream came first.
        assert told in [
            Told(error=("StatusCode.DEADLINE_EXCEEDED", text))
            for text in ("Deadline Exceeded", "Stream removed (Deadline Exceeded)")
        ]
        eventually(lambda: pending(streaming, "slow") == 0)
        opened.client.stop_stream()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_a_compressed_stream(streaming: Server, algorithm: str) -> None:
    with stream(streaming, compression_algorithm=algorithm) as opened:
        opened.send("quick", "x", *[7] * 1000)
        assert opened.next() == Told("x", [7] * 1000)
        opened.client.stop_stream()


def test_two_streams_do_not_wait_for_each_other(streaming: Server) -> None:
    with stream(streaming) as waits, stream(streaming) as runs:
        waits.send("stuck", "x", 1)
        eventually(lambda: pending(streaming, "stuck") == 1)
        runs.send("quick", "y", 2)
        assert runs.next() == Told("y", [2])
        waits.client.stop_stream(cancel_requests=True)
        runs.client.stop_stream()


# tritonclient.grpc.aio


async def aio_stream(server: Server, *asks: tuple[str, str, int], **how: Any) -> list[Told]:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for model, id, value in asks:
            yield {"model_name": model, "inputs": given(value), "request_id": id}

    found = []
    async with tritonclient.grpc.aio.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        async for result, error in client.stream_infer(requests(), **how):
            found.append(told(result, error))
    return found


async def test_the_aio_client(streaming: Server) -> None:
    asks = [("slow", "a", 1), ("nosuch", "b", 2), ("quick", "c", 3)]
    assert await aio_stream(streaming, *asks) == [
        Told("a", [1]),
        Told(error=(None, NO_MODEL)),
        Told("c", [3]),
    ]


async def test_the_aio_client_with_hard_errors(streaming: Server) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:  # this client hands it on as it is
        await aio_stream(streaming, ("nosuch", "b", 2), headers={"triton_grpc_error": "true"})
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.NOT_FOUND, NO_MODEL)


# A plain stub


def test_the_answer_to_a_refused_request(streaming: Server) -> None:
    with channel(streaming.grpc_port) as opened:
        answers = list(stub(opened).ModelStreamInfer(iter([raw("nosuch", "x", 1)]), timeout=SECONDS))
    assert answers == [
        service_pb2.ModelStreamInferResponse(
            error_message=NO_MODEL, infer_response=service_pb2.ModelInferResponse(id="x")
        )
    ]


def test_a_stream_without_requests(streaming: Server) -> None:
    with channel(streaming.grpc_port) as opened:
        call = stub(opened).ModelStreamInfer(iter([]), timeout=SECONDS)
        assert list(call) == []
        assert call.code() is grpc.StatusCode.OK


def test_a_client_that_disappears(streaming: Server) -> None:
    """Its connection is closed with requests outstanding, and answers on their way."""
    requests = [raw("quick", str(number), number) for number in range(50)] + [raw("stuck", "x", 1)]
    over = threading.Event()

    def kept_open() -> Iterator[service_pb2.ModelInferRequest]:
        """The requests, and no half-close; grpc's own thread is in here until the test is over."""
        yield from requests
        over.wait(SECONDS)

    with channel(streaming.grpc_port) as opened:
        try:
            call = stub(opened).ModelStreamInfer(kept_open(), timeout=SECONDS)
            next(call)
            eventually(lambda: pending(streaming, "stuck") == 1)
            opened.close()
            eventually(lambda: pending(streaming, "stuck") == 0)
        finally:
            over.set()


# Shutdown


def test_shutdown_answers_what_was_taken_and_ends_every_stream(tmp_path: Path) -> None:
    gate = write_held(tmp_path, "held")
    with started_here(tmp_path, environment=HELD) as server:
        server.wait_for(LOADED)
        with stream(server) as idle, stream(server) as busy:
            busy.send("held", "a", 1)
            busy.send("held", "b", 2)
            eventually(lambda: gate.begun == 1)
            eventually(lambda: pending(server, "held") == 1)
            server.begin_stop()
            ended = Told(error=("StatusCode.UNAVAILABLE", STOPPING))
            assert idle.next() == ended
            assert busy.quiet
            gate.open()
            assert [busy.next(), busy.next(), busy.next()] == [Told("a", [1]), Told("b", [2]), ended]
            server.wait(0)
            idle.client.stop_stream()
            busy.client.stop_stream()
