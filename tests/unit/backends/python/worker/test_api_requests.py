"""Requests and responses of Python models, and who owes an end to whom."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from modserve.backends.python.worker import host
from modserve.backends.python.worker.errors import ErrorCode, TritonError, TritonModelException
from modserve.backends.python.worker.request import InferenceRequest, InferenceTrace, MemoryType, PreferredMemory
from modserve.backends.python.worker.response import InferenceResponse
from modserve.backends.python.worker.tensor import Tensor


class Handle:
    def __init__(self) -> None:
        self.events: list[Any] = []
        self.cancelled = False

    def send(self, response: "InferenceResponse | None", final: bool) -> None:
        names = None if response is None else [tensor.name() for tensor in response.output_tensors()]
        self.events.append((names, final))

    def is_cancelled(self) -> bool:
        return self.cancelled

    def is_paused(self) -> bool:
        return False

    def reschedule(self) -> None:
        self.events.append("again")

    def let_go(self) -> None:
        self.events.append("gone")


def outputs(*names: str) -> InferenceResponse:
    return InferenceResponse([Tensor(name, np.zeros(1)) for name in names])


def received(handle: Handle, **more: Any) -> InferenceRequest:
    return InferenceRequest.make_unchecked(handle, [Tensor("I", np.zeros(1))], ("O", "P"), **more)


def call(**more: Any) -> InferenceRequest:
    return InferenceRequest(**{"model_name": "m", "inputs": [], "requested_output_names": [], **more})


def test_a_received_request() -> None:
    trace = InferenceTrace('{"traceparent":"00"}')
    request = received(
        Handle(),
        request_id="r",
        correlation_id="s",
        flags=1,
        timeout=7,
        parameters={"y": "ü", "x": 1, "z": True, "sequence_id": 5, "priority": 1, "timeout": 7},
        trace=trace,
    )
    assert [tensor.name() for tensor in request.inputs()] == ["I"]
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("r", "s", 1, 7)
    assert request.parameters() == '{"y":"ü","x":1,"z":true}'
    assert request.requested_output_names() == {"O", "P"}
    assert request.trace().get_context() == '{"traceparent":"00"}'
    request.set_flags(3)
    assert request.flags() == 3


def test_a_plain_received_request() -> None:
    request = received(Handle())
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("", 0, 0, 0)
    assert request.parameters() == "{}"
    assert request.trace().get_context() is None


def test_cancellation() -> None:
    handle = Handle()
    request = received(handle)
    sender = request.get_response_sender()
    assert not request.is_cancelled()
    handle.cancelled = True
    assert request.is_cancelled()
    assert sender.is_cancelled()
    assert not call().is_cancelled()


def test_an_ordinary_request_leaves_in_silence() -> None:
    handle = Handle()
    del [received(handle)][0]
    assert handle.events == []


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_sender_that_is_forgotten_says_so(decoupled: bool) -> None:
    handle = Handle()
    request = received(handle, decoupled=decoupled)
    sender = request.get_response_sender()
    assert sender is request.get_response_sender()
    del request
    assert handle.events == []
    del sender
    assert handle.events == ["gone"]


def test_a_decoupled_request_that_is_forgotten_says_so() -> None:
    handle = Handle()
    received(handle, decoupled=True)
    assert handle.events == ["gone"]


def test_decoupled_responses() -> None:
    handle = Handle()
    sender = received(handle, decoupled=True).get_response_sender()
    sender.send(outputs("O"))
    sender.send(response=outputs("P", "Q", "O"))
    sender.send(flags=1)
    with pytest.raises(TritonModelException, match="Response sender has been closed"):
        sender.send(outputs("O"))
    del sender
    assert handle.events == [(["O"], False), (["P", "O"], False), (None, True)]


def test_no_response_but_an_end() -> None:
    handle = Handle()
    received(handle, decoupled=True).get_response_sender().send(flags=1)
    assert handle.events == [(None, True)]


def test_an_ordinary_model_sends_one_response() -> None:
    handle = Handle()
    sender = received(handle).get_response_sender()
    with pytest.raises(TritonModelException, match="cannot send complete final before sending a response"):
        sender.send(flags=1)
    sender.send(outputs("O"))
    with pytest.raises(TritonModelException, match="cannot send more than one response"):
        sender.send(outputs("O"), 1)
    sender.send(flags=1)
    with pytest.raises(TritonModelException, match="Response sender has been closed"):
        sender.send(flags=1)
    assert handle.events == [(["O"], False), (None, True)]


def test_a_response_with_the_final_flag() -> None:
    handle = Handle()
    sender = received(handle).get_response_sender()
    sender.send(outputs("O"), 1)
    assert sender.is_closed()
    assert handle.events == [(["O"], True)]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((), TritonModelException, "must be provided when the response flags is set to zero"),
        ((None, 2), TritonModelException, "Unsupported flag"),
        ((3,), TypeError, "response must be an InferenceResponse, not int"),
    ],
)
def test_what_cannot_be_sent(arguments: Any, error: "type[Exception]", text: str) -> None:
    handle = Handle()
    sender = received(handle, decoupled=True).get_response_sender()
    with pytest.raises(error, match=text):
        sender.send(*arguments)
    assert handle.events == []


def test_pruning_leaves_the_response_as_it_was() -> None:
    response = outputs("O", "Q")
    assert [tensor.name() for tensor in response.seal({"O"}).output_tensors()] == ["O"]
    assert [tensor.name() for tensor in response.output_tensors()] == ["O", "Q"]
    assert response.seal({"O", "Q", "P"}) is response


def test_release_flags() -> None:
    handle = Handle()
    request = received(handle, decoupled=True)
    request.set_release_flags(1)
    assert not request.is_rescheduled()
    request.set_release_flags(2)
    assert request.is_rescheduled()
    with pytest.raises(TritonModelException, match=r"set_release_flags\(3\)"):
        request.set_release_flags(3)
    request.reschedule()
    del request
    assert handle.events == ["again"]


def test_responses() -> None:
    error = TritonError("no", TritonError.NOT_FOUND)
    response = InferenceResponse(output_tensors=[], error=error, parameters={"a": 1, "b": True, "c": "s"})
    assert response.has_error()
    assert response.error() is error
    assert json.loads(response.parameters()) == {"a": 1, "b": True, "c": "s"}
    assert InferenceResponse().parameters() == "{}"
    assert InferenceResponse(()).output_tensors() == []
    assert InferenceResponse([]).error() is None
    assert not InferenceResponse([]).has_error()
    tensor = Tensor("O", np.zeros(1))
    assert InferenceResponse((tensor,)).output_tensors() == [tensor]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"output_tensors": 3}, TypeError, "list of Tensor, not int"),
        ({"output_tensors": None}, TypeError, "list of Tensor, not NoneType"),
        ({"output_tensors": Tensor("x", np.zeros(1))}, TypeError, "list of Tensor, not"),
        ({"output_tensors": [None]}, TritonModelException, "should not be empty"),
        ({"output_tensors": [np.zeros(1)]}, TypeError, "element 0 is numpy.ndarray"),
        ({"error": "no"}, TypeError, "error must be a TritonError, not str"),
        ({"parameters": [1]}, TritonModelException, "Expect parameters to be a dict"),
        ({"parameters": {1: 1}}, TritonModelException, "keys to have type str"),
        ({"parameters": {"a": 1.5}}, TritonModelException, "type bool/int/str, found type <class 'float'>"),
        ({"parameters": {"a": 1 << 70}}, TritonModelException, "more than 64 bits"),
    ],
)
def test_what_is_no_response(arguments: Any, error: "type[Exception]", text: str) -> None:
    with pytest.raises(error, match=text):
        InferenceResponse(**arguments)


def test_a_request_for_another_model() -> None:
    tensor = Tensor("I", np.zeros(1))
    memory = PreferredMemory(MemoryType.TRITONSERVER_MEMORY_CPU)
    trace = InferenceTrace()
    request = InferenceRequest(
        "r", "s", [tensor], ["b", "a", "b"], "m", 2, 3, 4, preferred_memory=memory, trace=trace, parameters={"a": True}
    )
    assert request.inputs() == [tensor]
    assert request.requested_output_names() == {"a", "b"}
    assert request._names == ["b", "a"]
    assert (request.model_name, request.model_version, request.preferred_memory) == ("m", 2, memory)
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("r", "s", 3, 4)
    assert request.trace() is trace
    assert request.parameters() == '{"a": true}'
    assert call().parameters() == "{}"
    assert (call().model_version, call().correlation_id()) == (-1, 0)
    with pytest.raises(TritonModelException, match="has no response sender"):
        request.get_response_sender()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"model_name": None}, TypeError, "model_name must be a str, not NoneType"),
        ({"inputs": None}, TypeError, "inputs must be a list, not NoneType"),
        ({"inputs": [None]}, TritonModelException, "Input tensor for request with id '' and model name 'm'"),
        ({"inputs": [3]}, TypeError, "inputs must be a list of Tensor, not of int"),
        ({"requested_output_names": "abc"}, TypeError, "requested_output_names must be a list, not str"),
        ({"requested_output_names": [3]}, TypeError, "must be a list of str, not of int"),
        ({"requested_output_names": [""]}, TritonModelException, "Requested output name for request"),
        ({"correlation_id": 1.5}, TritonModelException, "Correlation ID must be integer or string"),
        ({"correlation_id": -1}, TypeError, "correlation_id is -1"),
        ({"model_version": "1"}, TypeError, "model_version must be an int, not str"),
        ({"flags": -1}, TypeError, "flags is -1"),
        ({"timeout": 1.5}, TypeError, "timeout must be an int, not float"),
        ({"preferred_memory": 1}, TypeError, "preferred_memory must be a PreferredMemory, not int"),
        ({"trace": 1}, TypeError, "trace must be an InferenceTrace, not int"),
        ({"parameters": {"a": 1.5}}, TritonModelException, "found type <class 'float'>"),
    ],
)
def test_what_is_no_request(arguments: Any, error: "type[Exception]", text: str) -> None:
    with pytest.raises(error, match=text):
        call(**arguments)


class Calls:
    """A host that has called."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def call(self, request: InferenceRequest) -> str:
        self.made.append(request.model_name)
        return "response"

    def call_decoupled(self, request: InferenceRequest) -> str:
        return "responses"

    async def call_async(self, request: InferenceRequest) -> str:
        self.made.append(request.model_name)
        return "later"

    async def call_decoupled_async(self, request: InferenceRequest) -> str:
        return "many later"


@pytest.fixture
def calls() -> "Iterator[Calls]":
    made = Calls()
    host.set_of_thread(made)  # type: ignore[arg-type]
    yield made
    host.set_of_thread(None)


def test_calls(calls: Calls) -> None:
    assert call().exec() == "response"
    assert call().exec(decoupled=True) == "responses"
    with pytest.raises(RuntimeError, match="no running event loop"):
        call().async_exec()
    assert calls.made == ["m"]


async def test_calls_of_coroutines_begin_at_once(calls: Calls) -> None:
    later, many = call().async_exec(), call().async_exec(decoupled=True)
    await asyncio.sleep(0)
    assert calls.made == ["m"]
    assert list(await asyncio.gather(later, many)) == ["later", "many later"]


def test_calls_without_a_server() -> None:
    with pytest.raises(RuntimeError, match="only in a model that a server runs"):
        call().exec()


def test_preferred_memory() -> None:
    memory = PreferredMemory(preferred_memory_type=MemoryType.TRITONSERVER_MEMORY_GPU, preferred_device_id=1)
    assert (memory.memory_type, memory.device_id) == (0, 1)
    assert str(memory.memory_type) == "MemoryType.TRITONSERVER_MEMORY_GPU"
    for arguments in ((1,), (MemoryType.TRITONSERVER_MEMORY_CPU, "x")):
        with pytest.raises(TypeError, match="must be"):
            PreferredMemory(*arguments)


def test_errors() -> None:
    assert TritonError("e").code() == TritonError.INTERNAL
    assert TritonError(message="e", code=TritonError.CANCELLED).code() is ErrorCode.CANCELLED
    assert TritonError(b"e").message() == "e"
    assert str(TritonError.NOT_FOUND) == "ErrorCode.NOT_FOUND"
    assert [int(code) for code in ErrorCode] == list(range(8))
    assert TritonModelException("e").code == TritonError.INTERNAL
    assert TritonModelException(TritonError("e", TritonError.NOT_FOUND)).code == TritonError.NOT_FOUND
    for arguments in ((None,), (ValueError("x"),), ("e", 9), ("e", "NOT_FOUND")):
        with pytest.raises(TypeError, match="must be"):
            TritonError(*arguments)
