"""Sequences of requests to real models, with `tritonclient` over HTTP and over a gRPC stream."""

import itertools
import queue
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from repositories import write_accumulator, write_sequence_echo, write_text_keeper
from server_here import serving_here, started_here
from server_process import LOADED, Server, eventually
from tritonclient.utils import InferenceServerException
from wire import HOST, SECONDS, http, metric, statistics

DIRECT = "direct { }"
OLDEST = "oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 500 }"
PATIENT = "max_sequence_idle_microseconds: 600000000"
NO_START = (
    "inference request for sequence {} to model '{}' must specify the START flag on the first request of the sequence"
)
STEPS = [(1, {"sequence_start": True}), (2, {}), (30, {"sequence_end": True})]
SUMS = [1, 3, 33]


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`sum_…` add up, `echo…` tell what they are told, `text` keeps strings; `brief` forgets after 50 ms.

    The others forget nothing while a test runs, but for `usual`, which says nothing of that.
    """
    repository = tmp_path_factory.mktemp("sequences")
    for strategy, text in (("direct", DIRECT), ("oldest", OLDEST)):
        write_accumulator(repository, f"sum_{strategy}", text, PATIENT)
    write_accumulator(repository, "usual", OLDEST)
    write_accumulator(repository, "brief", DIRECT, "max_sequence_idle_microseconds: 50000")
    hundred = 'initial_state: { name: "f" data_type: TYPE_INT32 dims: [ 1 ] data_file: "hundred" }'
    write_accumulator(repository, "from_file", DIRECT, PATIENT, initial=hundred)
    (repository / "from_file" / "initial_state").mkdir()
    (repository / "from_file" / "initial_state" / "hundred").write_bytes((100).to_bytes(4, "little"))
    half = "direct { max_queue_delay_microseconds: 600000000 minimum_slot_utilization: 0.5 }"
    write_sequence_echo(repository, "echo", f"{half} {PATIENT}")
    write_sequence_echo(repository, "echo_text", f"{DIRECT} {PATIENT}", id_type="BYTES")
    write_text_keeper(repository, "text", PATIENT)
    with serving_here(repository, options=["--log-verbose=1"]) as running:
        yield running


def given(client: Any, *values: Any, shape: tuple[int, ...] = (1, 1), datatype: str = "INT32") -> list[Any]:
    found = client.InferInput("INPUT", shape, datatype)
    found.set_data_from_numpy(np.array(values, np.int32 if datatype == "INT32" else object).reshape(shape))
    return [found]


class Http:
    """One request after the other."""

    def __init__(self, server: Server) -> None:
        self._client = tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}", network_timeout=SECONDS)

    def __call__(self, model: str, value: Any, id: Any, **how: Any) -> Any:
        return self._client.infer(model, given(tritonclient.http, value), sequence_id=id, **how)

    def close(self) -> None:
        self._client.close()


class Stream:
    """A gRPC stream, of which the answer is awaited each time."""

    def __init__(self, server: Server) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}")
        self._told: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: self._told.put((result, error)))

    def send(self, model: str, value: Any, id: Any, **how: Any) -> None:
        self._client.async_stream_infer(model, given(tritonclient.grpc, value), sequence_id=id, **how)

    def next(self) -> Any:
        result, error = self._told.get(timeout=SECONDS)
        if error is not None:
            raise error
        return result

    def __call__(self, model: str, value: Any, id: Any, **how: Any) -> Any:
        self.send(model, value, id, **how)
        return self.next()

    def vanish(self) -> None:
        self._client.stop_stream(cancel_requests=True)

    def close(self) -> None:
        self._client.close()


@pytest.fixture(params=[Http, Stream], ids=["http", "stream"])
def ask(request: pytest.FixtureRequest, sequences: Server) -> Iterator[Any]:
    client = request.param(sequences)
    yield client
    client.close()


@pytest.fixture
def stream(sequences: Server) -> Iterator[Stream]:
    client = Stream(sequences)
    yield client
    client.close()


def value(result: Any, output: str = "OUTPUT") -> Any:
    [found] = result.as_numpy(output).ravel().tolist()
    return found


@pytest.mark.parametrize("id", [7, 2**62 + 1, "seven"], ids=["number", "large number", "text"])
@pytest.mark.parametrize("model", ["sum_direct", "sum_oldest"])
def test_a_sequence_adds_up(ask: Any, model: str, id: Any) -> None:
    assert [value(ask(model, each, id, **how)) for each, how in STEPS] == SUMS
    with pytest.raises(InferenceServerException, match="must specify the START flag") as caught:
        ask(model, 1, id)
    assert caught.value.message() == NO_START.format(id, model)


def test_a_start_begins_anew(ask: Any) -> None:
    assert [value(ask("sum_direct", 5, 8, sequence_start=True)) for _ in range(2)] == [5, 5]
    assert value(ask("sum_direct", 5, 8, sequence_end=True)) == 10


def test_many_sequences_at_once_each_have_their_sum(sequences: Server, stream: Stream) -> None:
    before = statistics(sequences, "sum_direct")["inference_count"]
    count = 9  # more than there are places for
    for each, how in STEPS:
        for id in range(1, count + 1):
            stream.send("sum_direct", each * id, id, request_id=str(id), **how)
    sums: dict[str, list[int]] = {}
    for _ in range(count * len(STEPS)):
        result = stream.next()
        sums.setdefault(result.get_response().id, []).append(value(result))
    assert sums == {str(id): [id * each for each in SUMS] for id in range(1, count + 1)}
    assert statistics(sequences, "sum_direct")["inference_count"] - before == count * len(STEPS)


def test_the_controls_of_each_row_and_the_rows_of_absent_sequences(sequences: Server, stream: Stream) -> None:
    """Two of four rows are enough to run; nobody counts the fillers."""
    told = []
    for pair in ((11, 12), (13, 14)):  # of three that come at once, all may run, and a fourth alone would wait
        for id in pair:
            stream.send("echo", id, id, sequence_start=True)
        told += [stream.next() for _ in pair]
    assert {
        (value(each), value(each, "SAW_START"), value(each, "SAW_READY"), value(each, "SAW_CORRID")) for each in told
    } == {(id, 1, 1, id) for id in (11, 12, 13, 14)}
    before = statistics(sequences, "echo")
    for id in (12, 14):
        stream.send("echo", id, id, sequence_end=True)
    assert sorted(value(stream.next()) for _ in range(2)) == [12, 14]
    after = statistics(sequences, "echo")
    assert after["inference_count"] - before["inference_count"] == 2
    assert after["execution_count"] - before["execution_count"] == 1
    for id in (11, 13):
        stream.send("echo", id, id, sequence_end=True)
    assert sorted(value(stream.next()) for _ in range(2)) == [11, 13]


def test_text_ids_are_told_to_the_model(ask: Any) -> None:
    result = ask("echo_text", 1, "sätze", sequence_start=True, sequence_end=True)
    assert value(result, "SAW_CORRID").decode() == "sätze"
    with pytest.raises(InferenceServerException) as caught:
        ask("echo_text", 1, 5, sequence_start=True)
    assert caught.value.message() == (
        "[request id: <id_unknown>] sequence batching control 'CORRID' data-type is 'UINT64', but model 'echo_text' "
        "expects 'BYTES'"
    )


def test_a_state_from_a_file(ask: Any) -> None:
    assert value(ask("from_file", 1, 3, sequence_start=True, sequence_end=True)) == 101


def test_a_growing_state_of_strings(sequences: Server) -> None:
    with tritonclient.http.InferenceServerClient(f"{HOST}:{sequences.http_port}") as client:
        for number, text in enumerate(["second", "third"]):
            inputs = given(tritonclient.http, text, shape=(1,), datatype="BYTES")
            result = client.infer("text", inputs, sequence_id=4, sequence_start=not number, sequence_end=bool(number))
    assert result.as_numpy("OUTPUT").tolist() == [b"first", b"second", b"third"]


def test_a_silent_sequence_is_forgotten(sequences: Server, stream: Stream) -> None:
    ids = itertools.count(21)

    def remembered() -> int:
        """A sequence that had its second request in time."""
        id = next(ids)
        assert value(stream("brief", 1, id, sequence_start=True)) == 1
        try:
            assert value(stream("brief", 1, id)) == 2
        except InferenceServerException as error:
            if error.message() != NO_START.format(id, "brief"):
                raise
            return 0
        return id

    id = eventually(remembered)
    sequences.wait_for(f"sequence {id} of model 'brief' is ended")
    with pytest.raises(InferenceServerException) as caught:
        stream("brief", 1, id)
    assert caught.value.message() == NO_START.format(id, "brief")


def test_a_client_that_vanishes_takes_its_waiting_sequence_along(sequences: Server, stream: Stream) -> None:
    """It waits for others to run with, for longer than this test."""
    gone = Stream(sequences)
    gone.send("echo", 1, 31, sequence_start=True)
    eventually(lambda: metric(sequences, "nv_inference_pending_request_count", model="echo") == 1)
    gone.vanish()
    gone.close()

    def refused() -> bool:
        try:
            stream.send("echo", 1, 31, sequence_end=True)
            stream.next()
        except InferenceServerException as error:
            message: str = error.message()
            return message == NO_START.format(31, "echo")
        return False

    assert eventually(refused)


def test_a_batch_of_two_is_refused(sequences: Server) -> None:
    with tritonclient.http.InferenceServerClient(f"{HOST}:{sequences.http_port}") as client:
        inputs = given(tritonclient.http, 1, 2, shape=(2, 1))
        with pytest.raises(InferenceServerException) as caught:
            client.infer("sum_direct", inputs, sequence_id=1, sequence_start=True)
        assert caught.value.message() == (
            "inference request to model 'sum_direct' must specify batch-size 1 due to requirements of sequence batcher"
        )
        assert "sequence" in client.get_server_metadata()["extensions"]
        config = client.get_model_config("usual")["sequence_batching"]
    assert (config["max_sequence_idle_microseconds"], config["oldest"]["preferred_batch_size"]) == (1000000, [4])


def test_at_shutdown_open_sequences_go_on_over_their_stream(tmp_path: Path) -> None:
    write_accumulator(tmp_path, "sum", DIRECT, PATIENT)
    with started_here(tmp_path) as server:
        server.wait_for(LOADED)
        client = Stream(server)
        assert value(client("sum", 1, 5, sequence_start=True)) == 1
        server.begin_stop()
        server.wait_for("stopping: no new requests")

        def refusal() -> str:
            """Of a sequence of one request."""
            try:
                client("sum", 1, 6, sequence_start=True, sequence_end=True)
            except InferenceServerException as error:
                return str(error.message())
            return ""

        stopping = "Server is stopping, scheduler for model has stopped accepting new inference requests"
        assert eventually(refusal) == stopping
        assert [value(client("sum", 1, 5)), value(client("sum", 1, 5, sequence_end=True))] == [2, 3]
        with pytest.raises(InferenceServerException, match="GRPC server is shutting down"):
            client.next()
        server.wait(0)
        client.close()


def test_at_a_reload_open_sequences_go_on_in_the_old_model(tmp_path: Path) -> None:
    write_accumulator(tmp_path, "sum", DIRECT, PATIENT)
    load = "/v2/repository/models/sum/load"
    with started_here(tmp_path, options=["--model-control-mode=explicit", "--load-model=sum"]) as server:
        server.wait_for(LOADED)
        client, ask = Stream(server), Http(server)
        assert value(client("sum", 1, 5, sequence_start=True)) == 1
        assert value(ask("sum", 1, 6, sequence_start=True)) == 1
        shutil.copytree(tmp_path / "sum" / "1", tmp_path / "sum" / "2")
        assert http(server.http_port, "POST", load).status == 200
        config = tmp_path / "sum" / "config.pbtxt"
        config.write_text(config.read_text() + "\n# another")
        assert http(server.http_port, "POST", load).status == 200
        told = [ask("sum", 10, 6), ask("sum", 5, 7, sequence_start=True), ask("sum", 5, 7, sequence_end=True)]
        assert [(value(each), each.get_response()["model_version"]) for each in told] == [
            (11, "1"),
            (5, "2"),
            (10, "2"),
        ]
        assert value(ask("sum", 1, 6, sequence_end=True)) == 12
        ask.close()
        server.begin_stop()
        server.wait_for("stopping: no new requests")
        assert [value(client("sum", 1, 5)), value(client("sum", 1, 5, sequence_end=True))] == [2, 3]
        with pytest.raises(InferenceServerException, match="GRPC server is shutting down"):
            client.next()
        server.wait(0)
        client.close()
