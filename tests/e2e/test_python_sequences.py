"""Models written in Python under schedulers: batches, sequences, requests that run again or are cancelled."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
from python_models import (
    EVERY_MODE,
    TRITON,
    Response,
    at_once,
    every_mode,
    infer,
    infer_inputs,
    serving_python,
    stream,
    tensors,
    write_python,
)
from server_process import eventually
from tritonclient.utils import InferenceServerException
from wire import HOST, connect

BATCH = """
import time

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.2)
        count = len(requests)
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if (value == 13).any():
                error = pb_utils.TritonError("13 is refused", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            if (value == 21).any():
                raise ValueError("21 is refused")
            made = [pb_utils.Tensor("OUT", value), pb_utils.Tensor("COUNT", np.full(value.shape, count, np.int32))]
            responses.append(pb_utils.InferenceResponse(made))
        return responses
"""

CONTROLLED = """
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            values = {tensor.name(): tensor.as_numpy().ravel()[0] for tensor in request.inputs()}
            id = values["CORRID"]
            id = id.decode() if isinstance(id, bytes) else int(id)
            if not values["READY"]:  # a place in the batch that has no request now
                made = [pb_utils.Tensor("OUT", np.array([["{}"]], np.object_))]
                responses.append(pb_utils.InferenceResponse(made))
                continue
            if values["START"]:
                self.sums[id] = 0
            self.sums[id] += int(values["IN"])
            seen = {name: bool(values[name]) for name in ("START", "END", "READY")}
            seen.update(id=id, sum=self.sums[id], flags=request.flags(), known=len(self.sums),
                        same=request.correlation_id() == id)
            if values["END"]:
                del self.sums[id]
            made = [pb_utils.Tensor("OUT", np.array([[json.dumps(seen)]], np.object_))]
            responses.append(pb_utils.InferenceResponse(made))
        return responses
"""

STATEFUL = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            total = value + pb_utils.get_input_tensor_by_name(request, "SUM").as_numpy()
            made = [pb_utils.Tensor("OUT", total), pb_utils.Tensor("SUM_OUT", total)]
            responses.append(pb_utils.InferenceResponse(made))
        return responses
"""

AGAIN = """
class TritonPythonModel:
    def initialize(self, args):
        self.runs = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            self.runs += 1
            (left,) = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if self.runs < left:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                wrong = left == 99
                responses.append(self.response(0) if wrong else None)
            else:
                responses.append(self.response(self.runs))
                self.runs = 0
        return responses

    def response(self, number):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))])
"""

ITERATIVE = """
class TritonPythonModel:
    def initialize(self, args):
        self.left = None

    def execute(self, requests):
        for request in requests:
            if self.left is None:
                (self.left,) = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender = request.get_response_sender()
            self.left -= 1
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.left], np.int32))])
            if self.left <= 0:
                sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                self.left = None
            else:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                sender.send(response)
        return None
"""

CANCELLED = """
import threading
import time

def wait(of, note):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if of.is_cancelled():
            note("cancelled ")
            return
        time.sleep(0.01)
    note("late ")

def note(text):
    with open(PATH, "a") as file:
        file.write(text)

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            note("not " if not request.is_cancelled() else "early ")
            if DECOUPLED:
                threading.Thread(target=self.run, args=(request.get_response_sender(),)).start()
            else:
                wait(request, note)
                error = pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED)
                responses.append(pb_utils.InferenceResponse(error=error))
        return responses or None

    def run(self, sender):
        wait(sender, note)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

ASYNC_CANCELLED = """
import asyncio

class TritonPythonModel:
    async def execute(self, requests):
        (request,) = requests
        with open(PATH, "a") as file:
            file.write("not ")
            file.flush()
            for _ in range(6000):
                await asyncio.sleep(0.01)
                if request.is_cancelled():
                    file.write("cancelled ")
                    break
        sender = request.get_response_sender()
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

CONTROLS = """
sequence_batching {{ {strategy} {{ }} max_sequence_idle_microseconds: 60000000 control_input [
  {{ name: "START" control [ {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }} ] }},
  {{ name: "END" control [ {{ kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] }} ] }},
  {{ name: "READY" control [ {{ kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] }} ] }},
  {{ name: "CORRID" control [ {{ kind: CONTROL_SEQUENCE_CORRID data_type: {id} }} ] }}
] }}
"""

STATE = """
sequence_batching { direct { } state [
  { input_name: "SUM" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ]
    initial_state: { name: "ten" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } }
] }
"""


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notes")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, notes: Path) -> Iterator[Any]:
    repository = tmp_path_factory.mktemp("python_sequences")
    number = tensors("input", IN="INT32 1") + tensors("output", OUT="INT32 1")
    batch = number + tensors("output", COUNT="INT32 1") + "max_batch_size: 8 dynamic_batching { }"
    write_python(repository, "batch", BATCH, batch)
    for strategy, id in (("direct", "TYPE_UINT64"), ("oldest", "TYPE_STRING")):
        config = tensors("input", IN="INT32 1") + tensors("output", OUT="BYTES 1") + "max_batch_size: 4"
        write_python(
            repository, strategy, CONTROLLED, config + CONTROLS.format(strategy=strategy, id=id), modes=EVERY_MODE
        )
    write_python(repository, "stateful", STATEFUL, number + "max_batch_size: 4" + STATE, modes=EVERY_MODE)
    iterative = "sequence_batching { iterative_sequence: true }"
    write_python(repository, "again", AGAIN, number + iterative, modes=EVERY_MODE)
    decoupled = "model_transaction_policy { decoupled: true }"
    write_python(repository, "iterative", ITERATIVE, number + iterative + decoupled)
    for name, more in (("waits", ""), ("waits_decoupled", decoupled)):
        code = CANCELLED.replace("DECOUPLED", str(bool(more))).replace("PATH", repr(f"{notes}/{name}_MODE"))
        write_python(repository, name, code, number + more)
    code = ASYNC_CANCELLED.replace("PATH", repr(f"{notes}/waits_async_MODE"))
    write_python(repository, "waits_async", code, number + decoupled)
    with serving_python(repository, errors=["Traceback"]) as running:
        yield running


# Batches


def test_requests_of_a_batch(server: Any, mode: str) -> None:
    def run(index: int) -> Response:
        return infer(server, "grpc", f"batch_{mode}", {"IN": [[index]] * (1 + index % 2)})

    responses = at_once(9, run)
    assert [each["OUT"] for each in responses] == [[[index]] * (1 + index % 2) for index in range(9)]
    assert max(each["COUNT"][0][0] for each in responses) > 1


def test_an_error_in_a_batch_is_that_of_one_request(server: Any, mode: str) -> None:
    responses = at_once(6, lambda index: infer(server, "grpc", f"batch_{mode}", {"IN": [[index + 10]]}))
    texts = [each.message or each["OUT"] for each in responses]
    assert texts == [[[10]], [[11]], [[12]], "13 is refused", *texts[4:]]
    assert texts[4:] == [[[index + 10]] for index in (4, 5)]


def test_what_is_raised_fails_the_batch(server: Any, mode: str) -> None:
    """As in Triton, those of the same batch fail with it: the model has run, and may have done anything."""
    responses = at_once(6, lambda index: infer(server, "grpc", f"batch_{mode}", {"IN": [[index + 20]]}))
    for index, response in enumerate(responses):
        if response.message:
            assert "ValueError: 21 is refused" in response.message
        else:
            assert (index != 1, response["OUT"]) == (True, [[index + 20]])
    assert responses[1].message


# Sequences


@every_mode
@pytest.mark.parametrize(("strategy", "ids"), [("direct", [5, 2**60]), ("oldest", ["five", "six"])])
def test_controls_of_sequences(server: Any, mode: str, strategy: str, ids: list[Any]) -> None:
    seen: dict[Any, list[Any]] = {id: [] for id in ids}
    for step in range(3):
        for id in ids:
            how: dict[str, Any] = {"sequence_id": id, "sequence_start": step == 0, "sequence_end": step == 2}
            response = infer(server, "grpc", f"{strategy}_{mode}", {"IN": [[step + 1]]}, **how)
            seen[id].append(json.loads(response["OUT"][0][0]))
    for place, id in enumerate(ids):
        for step, each in enumerate(seen[id]):
            start, end = step == 0, step == 2
            known = (2 if place or not start else 1) if not (place and end) else 1
            common = {"READY": True, "id": id, "known": known, "same": True}
            assert each == common | {"START": start, "END": end, "flags": start + 2 * end, "sum": (1, 3, 6)[step]}


@every_mode
def test_sequences_of_several_clients(server: Any, mode: str) -> None:
    def run(index: int) -> list[Any]:
        id = f"client {index}"
        sums = []
        for step in range(10):
            how: dict[str, Any] = {"sequence_id": id, "sequence_start": step == 0, "sequence_end": step == 9}
            response = infer(server, "grpc", f"oldest_{mode}", {"IN": [[index]]}, **how)
            sums.append(json.loads(response["OUT"][0][0])["sum"])
        return sums

    assert at_once(8, run) == [[index * step for step in range(1, 11)] for index in range(8)]


@every_mode
def test_states_that_the_server_keeps(server: Any, mode: str, protocol: str) -> None:
    """Beyond Triton, where Python models get their states, but what they give is not kept."""
    sums = []
    for step in range(3):
        how: dict[str, Any] = {"sequence_id": 9, "sequence_start": step == 0, "sequence_end": step == 2}
        sums.append(infer(server, protocol, f"stateful_{mode}", {"IN": [[step + 1]]}, **how)["OUT"])
    assert sums == [[[1]], [[3]], [[6]]]


@every_mode
def test_a_sequence_must_begin(server: Any, mode: str, protocol: str) -> None:
    response = infer(server, protocol, f"direct_{mode}", {"IN": [[1]]}, sequence_id=77)
    assert "must specify the START flag on the first request of the sequence" in response.message


# Requests that run again


@every_mode
def test_requests_that_run_again(server: Any, mode: str, protocol: str) -> None:
    for times in (3, 1, 20):
        assert infer(server, protocol, f"again_{mode}", {"IN": [times]})["OUT"] == [times]


@every_mode
def test_several_requests_that_run_again(server: Any, mode: str) -> None:
    results = at_once(4, lambda _: infer(server, "grpc", f"again_{mode}", {"IN": [1]})["OUT"])
    assert results == [[1]] * 4


@every_mode
def test_a_request_that_runs_again_has_no_response(server: Any, mode: str, protocol: str) -> None:
    response = infer(server, protocol, f"again_{mode}", {"IN": [99]})
    assert "Expected a None object in the execute function return list for reschduled request" in response.message


@pytest.mark.parametrize("count", [1, 3, 50])
def test_streams_of_requests_that_run_again(server: Any, mode: str, count: int) -> None:
    with stream(server) as opened:
        for _ in range(2):
            opened.send(f"iterative_{mode}", {"IN": [count]})
            assert [each["OUT"] for each in opened.until_final()] == [[left] for left in reversed(range(count))]


# Requests that are cancelled


@pytest.fixture
def before(notes: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    return {path.name: path.read_text() for path in notes.iterdir()}


def expect(notes: Path, name: str, before: dict[str, str], text: str) -> None:
    file = notes / name
    whole = before.get(name, "") + text
    eventually(lambda: file.exists() and file.read_text() == whole)


@pytest.mark.parametrize("name", ["waits", "waits_decoupled", "waits_async"])
def test_a_client_cancels_its_stream(server: Any, mode: str, notes: Path, before: dict[str, str], name: str) -> None:
    with stream(server) as opened:
        opened.send(f"{name}_{mode}", {"IN": [1]})
        expect(notes, f"{name}_{mode}", before, "not ")
        opened.client.stop_stream(cancel_requests=True)
        response = opened.next()
    assert response.status == "CANCELLED"
    expect(notes, f"{name}_{mode}", before, "not cancelled ")


def test_a_client_cancels_a_call(server: Any, mode: str, notes: Path, before: dict[str, str]) -> None:
    outcomes: list[Any] = []
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        inputs = infer_inputs("grpc", {"IN": [1]})
        call = client.async_infer(f"waits_{mode}", inputs, lambda result, error: outcomes.append(error))
        expect(notes, f"waits_{mode}", before, "not ")
        call.cancel()
        eventually(lambda: outcomes)
    assert isinstance(outcomes[0], InferenceServerException)
    assert outcomes[0].status() == "StatusCode.CANCELLED"
    expect(notes, f"waits_{mode}", before, "not cancelled ")


@pytest.mark.skipif(bool(TRITON), reason="Triton hears of it only when it responds")
def test_a_client_of_http_leaves(server: Any, mode: str, notes: Path, before: dict[str, str]) -> None:
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}]})
    with closing(connect(server.http_port)) as connection:
        connection.request("POST", f"/v2/models/waits_{mode}/infer", body)
        expect(notes, f"waits_{mode}", before, "not ")
    expect(notes, f"waits_{mode}", before, "not cancelled ")


def test_others_go_on_after_a_cancellation(server: Any, mode: str) -> None:
    """A stream that is cancelled in the middle does not take another one along, which hears of its own end."""
    with stream(server) as kept, stream(server) as gone:
        gone.send(f"iterative_{mode}", {"IN": [100_000]})
        gone.next()
        gone.client.stop_stream(cancel_requests=True)
        kept.send(f"waits_decoupled_{mode}", {"IN": [1]}, "kept")
        kept.client.stop_stream(cancel_requests=True)
        assert kept.next().status == "CANCELLED"
