"""Instances on the server's event loop."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_models import DOUBLE, FakeModels, FakeRequest, engine, instance, result

from modserve.backends.api import AsyncRequestInstance, InstanceHandle
from modserve.backends.python.inline import InlineInstance
from modserve.core.errors import Code, ModserveError

WAITING = """
async def execute(self, requests):
    got = await call().async_exec()
    return [response(value(each) + got.output_tensors()[0].as_numpy()) for each in requests]
"""


@dataclass
class Handle:
    loop: asyncio.AbstractEventLoop

    def lost(self, error: Any) -> None:
        raise AssertionError(error)


def attached(made: InlineInstance) -> InlineInstance:
    handle: InstanceHandle = Handle(asyncio.get_running_loop())
    made.attach(handle)
    return made


def start(made: InlineInstance, *requests: FakeRequest) -> list[Any]:
    """What the end of the execution will be: a list that is empty until then. Responses reach the requests."""
    outcomes: list[Any] = []

    def done(outcome: Any) -> None:
        if isinstance(outcome, list):
            for request, (outputs, parameters) in zip(requests, outcome, strict=True):
                request.respond(outputs, parameters=parameters, final=True)
            outcome = "all"
        outcomes.append(outcome)

    made.start_requests(engine(*requests), done)
    return outcomes


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def refused(call: Callable[[], object]) -> ModserveError:
    with pytest.raises(ModserveError) as caught:
        call()
    return caught.value


async def test_a_plain_execute_runs_at_once(tmp_path: Path) -> None:
    made = attached(instance(InlineInstance, tmp_path))
    assert isinstance(made, AsyncRequestInstance)
    assert made.max_in_flight == 1
    requests = [FakeRequest(1, 2), FakeRequest(3, raw=True)]
    assert start(made, *requests) == ["all"]
    assert [each.events for each in requests] == [[{"OUT": [2, 4]}], [{"OUT": [6]}]]
    made.detach()
    made.close()


async def test_some_responses_of_a_batch_come_by_themselves(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        requests[0].get_response_sender().send(response(value(requests[0])), flags=1)
        error = pb_utils.InferenceResponse(error=pb_utils.TritonError("odd"))
        return [None, error, response(value(requests[2]))]
    """
    made = attached(instance(InlineInstance, tmp_path, code))
    requests = [FakeRequest(1), FakeRequest(2), FakeRequest(3)]
    assert start(made, *requests) == [None]
    assert [requests[0].events, requests[2].events] == [[{"OUT": [1]}], [{"OUT": [3]}]]
    assert requests[1].events[0].message == "odd"


async def test_what_a_plain_execute_raises(tmp_path: Path) -> None:
    made = attached(instance(InlineInstance, tmp_path, "def execute(self, requests):\n    return 1 / 0"))
    request = FakeRequest(1)
    assert start(made, request) == [None]
    (error,) = request.events
    assert "ZeroDivisionError: division by zero" in error.message


async def test_coroutines_run_at_the_same_time(tmp_path: Path) -> None:
    models = FakeModels()
    made = attached(instance(InlineInstance, tmp_path, WAITING, models))
    assert made.max_in_flight == 64
    requests = [FakeRequest(1), FakeRequest(2)]
    outcomes = [start(made, request) for request in requests]
    await turns()
    assert outcomes == [[], []]
    assert [parents for _, parents, _ in models.calls] == [engine(request) for request in requests]
    for place in (1, 0):
        models.calls[place][2].set_result(result(np.full(1, 10, np.float32)))
        await turns()
        assert requests[place].events == [{"OUT": [11 + place]}]
        assert outcomes[place] == ["all"]
    made.detach()
    await asyncio.to_thread(made.close)


async def test_what_a_coroutine_raises(tmp_path: Path) -> None:
    code = "async def execute(self, requests):\n    raise pb_utils.TritonError('no', pb_utils.TritonError.NOT_FOUND)"
    made = attached(instance(InlineInstance, tmp_path, code))
    request = FakeRequest(1)
    outcomes = start(made, request)
    await turns()
    assert outcomes == [None]
    (error,) = request.events
    assert error.code is Code.NOT_FOUND


async def test_what_goes_wrong_with_a_response_ends_the_execution(tmp_path: Path) -> None:
    class BrokenRequest(FakeRequest):
        def fail(self, *arguments: Any, **more: Any) -> bool:
            raise ValueError("broken")

    code = (
        "async def execute(self, requests):\n    return [pb_utils.InferenceResponse(error=pb_utils.TritonError('x'))]"
    )
    made = attached(instance(InlineInstance, tmp_path, code))
    outcomes = start(made, BrokenRequest(1))
    await turns()
    assert [str(outcome) for outcome in outcomes] == ["broken"]


async def test_the_end_cancels_coroutines(tmp_path: Path) -> None:
    """finalize waits until they have ended."""
    code = """
    async def execute(self, requests):
        try:
            await call().async_exec()
        finally:
            self.ended = True

    def finalize(self):
        pb_utils.Logger.log_info("finalize")
        assert self.ended
    """
    models = FakeModels()
    made = attached(instance(InlineInstance, tmp_path, code, models))
    outcomes = start(made, FakeRequest(1))
    await turns()
    made.detach()
    await asyncio.to_thread(made.close)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError]
    assert models.calls[0][2].cancelled()


EXPECTED = "would block the whole server, because the model runs on its event loop ('EXECUTION_MODE' is 'inline'): "


@pytest.mark.parametrize("coroutine", ["", "async "])
@pytest.mark.parametrize(
    ("what", "way"),
    [
        ("call().exec()", "expected 'await request.async_exec()' in an 'async def execute', or the mode 'thread' or"),
        ("call().exec(decoupled=True)", "expected the mode 'thread' or 'process'"),
        ("pb_utils.load_model('x')", "expected the mode 'thread' or 'process'"),
        ("pb_utils.unload_model('x')", "expected the mode 'thread' or 'process'"),
        ("pb_utils.is_model_ready('x')", "expected the mode 'thread' or 'process'"),
    ],
)
async def test_what_would_wait_is_refused(tmp_path: Path, coroutine: str, what: str, way: str) -> None:
    models = FakeModels()
    code = f"{coroutine}def execute(self, requests):\n    {what}"
    made = attached(instance(InlineInstance, tmp_path, code, models))
    request = FakeRequest(1)
    start(made, request)
    await turns()
    (error,) = request.events
    assert what.partition("(")[0].partition(".")[2] + "(" in error.message
    assert EXPECTED + way in error.message
    assert models.calls == []


async def test_streams_of_other_models_are_refused(tmp_path: Path) -> None:
    code = "async def execute(self, requests):\n    await call().async_exec(decoupled=True)"
    made = attached(instance(InlineInstance, tmp_path, code))
    request = FakeRequest(1)
    start(made, request)
    await turns()
    assert "async_exec(decoupled=True) " + EXPECTED in request.events[0].message


async def test_what_waits_elsewhere_is_fine(tmp_path: Path) -> None:
    code = """
    def initialize(self, args):
        assert pb_utils.is_model_ready("x")

    async def execute(self, requests):
        return [response(np.array([await asyncio.to_thread(self.ready)])) for _ in requests]

    def ready(self):
        return pb_utils.is_model_ready("x")
    """
    made = attached(await asyncio.to_thread(instance, InlineInstance, tmp_path, code))
    request = FakeRequest(1)
    ended = asyncio.get_running_loop().create_future()
    made.start_requests(engine(request), ended.set_result)
    ((outputs, _),) = await asyncio.wait_for(ended, 10)
    assert outputs["OUT"].array.tolist() == [True]
    assert not request.events


async def test_a_coroutine_that_is_not_declared(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        return self.run(requests)

    async def run(self, requests):
        return []
    """
    made = attached(instance(InlineInstance, tmp_path, code))
    request = FakeRequest(1)
    assert start(made, request) == [None]
    assert "`execute` returned a coroutine without being declared 'async def' (" in request.events[0].message


@pytest.mark.parametrize("coroutine", ["", "async "])
async def test_readiness(tmp_path: Path, coroutine: str) -> None:
    """A plain is_ready may block, and runs on another thread."""
    code = DOUBLE + f"\n{coroutine}def is_ready(self):\n    import threading\n    self.thread = threading.get_ident()"
    made = attached(instance(InlineInstance, tmp_path, code + "\n    return True"))
    assert await made.check_ready()
    thread = made._model._instance.thread
    assert (thread == threading.get_ident()) == bool(coroutine)


def test_decoupled_models_are_refused(tmp_path: Path) -> None:
    error = refused(lambda: instance(InlineInstance, tmp_path, decoupled=True))
    assert (error.code, error.message) == (
        Code.INVALID_ARG,
        "model 'm' is decoupled, but its 'EXECUTION_MODE' is 'inline', where a model cannot wait for slow readers of "
        "its responses; expected 'process' or 'thread'",
    )


def test_a_model_that_cannot_be_initialized(tmp_path: Path) -> None:
    error = refused(
        lambda: instance(InlineInstance, tmp_path, "def initialize(self, args):\n    raise ValueError('x')")
    )
    assert "ValueError: x" in error.message
