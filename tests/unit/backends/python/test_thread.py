"""Instances in threads of the server, and what instances inside the server have in common."""

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_models import FakeModels, FakeRequest, engine, instance, result

from modserve.backends.python.local import as_core, convert_tensor
from modserve.backends.python.thread import PythonThreadInstance
from modserve.backends.python.worker.tensor import Tensor as WorkerTensor
from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.tensors.tensor import Tensor


def run(made: PythonThreadInstance, *requests: FakeRequest) -> None:
    """A batch, whose responses are delivered as the server does it."""
    finals = made.execute_requests(engine(*requests))
    for request, final in zip(requests, finals or (), strict=False):
        outputs: Any = final.outputs
        request.respond(outputs, parameters=final.parameters, final=True)


def test_requests_of_a_batch(tmp_path: Path) -> None:
    made = instance(PythonThreadInstance, tmp_path)
    requests = [FakeRequest(1, 2), FakeRequest(3, raw=True)]
    run(made, *requests)
    assert [each.events for each in requests] == [[{"OUT": [2, 4]}], [{"OUT": [6]}]]
    made.close()


def test_what_a_request_says(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        (each,) = requests
        said = (each.request_id(), each.correlation_id(), each.flags(), each.timeout(), each.priority,
                each.parameters(), each.model_name, each.model_version, each.requested_output_names())
        return [pb_utils.InferenceResponse([], parameters={"said": repr(said)})]
    """
    made = instance(PythonThreadInstance, tmp_path, code)
    plain = FakeRequest(1, id="a")
    how: Any = {"sequence_id": 7, "sequence_start": True, "sequence_end": True, "priority": 3, "own": 1}
    whole = FakeRequest(
        1, parameters=how, correlation_id=7, sequence_start=True, sequence_end=True, priority=3, timeout_ns=5000
    )
    for request in (plain, whole):
        run(made, request)
    assert plain.events == [{}, {"said": repr(("a", 0, 0, 0, 0, "{}", "m", 1, {"OUT"}))}]
    assert whole.events == [{}, {"said": repr(("", 7, 3, 5, 3, '{"own":1}', "m", 1, {"OUT"}))}]


def test_what_is_raised_fails_those_without_a_response(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        requests[0].get_response_sender().send(response(value(requests[0])))
        raise pb_utils.TritonModelException("no more")
    """
    made = instance(PythonThreadInstance, tmp_path, code)
    requests = [FakeRequest(1), FakeRequest(2)]
    made.execute_requests(engine(*requests))
    assert requests[0].events == [{"OUT": [1]}]
    (error,) = requests[1].events
    assert error.code is Code.INTERNAL
    assert "no more" in error.message


def test_an_error_of_one_request(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        error = pb_utils.TritonError("odd", pb_utils.TritonError.INVALID_ARG)
        return [pb_utils.InferenceResponse(error=error), response(value(requests[1]))]
    """
    made = instance(PythonThreadInstance, tmp_path, code)
    requests = [FakeRequest(1), FakeRequest(2)]
    made.execute_requests(engine(*requests))
    (error,) = requests[0].events
    assert (error.code, error.message) == (Code.INVALID_ARG, "odd")
    assert requests[1].events == [{"OUT": [2]}]


def test_a_sender_that_is_forgotten(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        if value(requests[0])[0]:
            requests[0].get_response_sender().send(response(value(requests[0])))
        return None
    """
    made = instance(PythonThreadInstance, tmp_path, code)
    silent, quick = FakeRequest(0), FakeRequest(1)
    made.execute_requests(engine(silent))
    made.execute_requests(engine(quick))
    (error,) = silent.events
    assert error.message == (
        "the model released a request without a final response: `execute` returned None for it (no `return`?), and "
        "must return a list with one response for each request, or send them through the requests' response senders"
    )
    assert quick.events == [{"OUT": [1]}]


def test_requests_that_run_again(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return [None]
    """
    made = instance(PythonThreadInstance, tmp_path, code)
    request = FakeRequest(1)
    made.execute_requests(engine(request))
    assert request.events == ["again"]


CALLING = """
def execute(self, requests):
    got = call().exec()
    self.kept = [each.get_response_sender() for each in requests]
    return [None] * len(requests)
"""


class ResponsiveModels(FakeModels):
    """Calls have their responses at once."""

    def infer(self, *arguments: Any, **more: Any) -> Any:
        future: Future[Any] = super().infer(*arguments, **more)
        future.set_result(result(np.zeros(1, np.float32)))
        return future


def test_whom_a_call_is_made_for(tmp_path: Path) -> None:
    """The batch at hand, and not those before it that the model has not responded to."""
    models = ResponsiveModels()
    made = instance(PythonThreadInstance, tmp_path, CALLING, models)
    first, second = engine(FakeRequest(1), FakeRequest(2))
    made.execute_requests([first])
    made.execute_requests([second])
    assert [parents for _, parents, _ in models.calls] == [[first], [second]]


def test_calls_of_a_models_own_threads(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        import threading
        self.kept = [each.get_response_sender() for each in requests]
        self.go = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        self.go.wait()
        call().exec()

    def finalize(self):
        self.go.set()
        self.thread.join()
    """
    models = ResponsiveModels()
    made = instance(PythonThreadInstance, tmp_path, code, models)
    (request,) = engine(FakeRequest(1))
    made.execute_requests([request])
    made.close()
    assert [parents for _, parents, _ in models.calls] == [[request]]


def test_coroutines_of_a_decoupled_model(tmp_path: Path) -> None:
    """Each execution has its own requests, also where several are under way."""
    code = """
    async def execute(self, requests):
        for each in requests:
            await call().async_exec()
            each.get_response_sender().send(response(value(each)), flags=1)
    """
    models = FakeModels()
    ended = threading.Semaphore(0)

    class Request(FakeRequest):
        def respond(self, *arguments: Any, **more: Any) -> bool:
            super().respond(*arguments, **more)
            ended.release()
            return True

    called = threading.Semaphore(0)
    infer = models.infer

    def counted(*arguments: Any, **more: Any) -> Any:
        future = infer(*arguments, **more)
        called.release()
        return future

    models.infer = counted  # type: ignore[method-assign]
    made = instance(PythonThreadInstance, tmp_path, code, models, decoupled=True)
    requests = [Request(1), Request(2)]
    for request in requests:
        made.execute_requests(engine(request))
    for _ in requests:
        assert called.acquire(timeout=10)
    assert [parents for _, parents, _ in models.calls] == [engine(request) for request in requests]
    for _, _, future in models.calls:
        future.set_result(result(np.zeros(1, np.float32)))
    for _ in requests:
        assert ended.acquire(timeout=10)
    assert [request.events for request in requests] == [[{"OUT": [1]}], [{"OUT": [2]}]]
    made.close()


def test_errors_of_calls(tmp_path: Path) -> None:
    class RefusingModels(FakeModels):
        def infer(self, *arguments: Any, **more: Any) -> Any:
            future = super().infer(*arguments, **more)
            future.set_exception(invalid("not this one"))
            return future

    code = """
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=call().exec().error()) for _ in requests]
    """
    request = FakeRequest(1)
    instance(PythonThreadInstance, tmp_path, code, RefusingModels()).execute_requests(engine(request))
    (error,) = request.events
    assert isinstance(error, ModserveError)
    assert (error.code, error.message) == (Code.INVALID_ARG, "not this one")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_inputs_are_read_only(kind: Any) -> None:
    array = np.arange(3, dtype=np.float32)
    fp32 = Tensor.from_array(array).datatype
    tensor = convert_tensor("IN", Tensor.from_raw(fp32, (3,), kind(bytearray(array.tobytes()))))
    assert tensor.as_numpy().tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        tensor.as_numpy()[0] = 1


@pytest.mark.parametrize("array", [np.zeros((0, 3), np.int8), np.array([[True]]), np.array([b"a"], np.object_)])
def test_tensors_there_and_back(array: Any) -> None:
    core = as_core(WorkerTensor("T", array))
    again = convert_tensor("T", core)
    assert (again.dims, again.as_numpy().tolist()) == (array.shape, array.tolist())
    if array.dtype != object:
        assert core.array is array
