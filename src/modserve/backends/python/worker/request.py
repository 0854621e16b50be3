"""`InferenceRequest`, which a model receives, and makes to call other models; and its parts."""

import asyncio
import enum
from typing import Any, Awaitable, Collection, List, Mapping, Optional, Sequence, Set, Union

from . import host
from . import parameters as _parameters
from .errors import TritonModelException, type_name
from .response import InferenceResponseSender, RequestHandle
from .tensor import Tensor

RELEASE_ALL = 1
RELEASE_RESCHEDULE = 2


class MemoryType(enum.IntEnum):
    """Preferred memory for outputs of a called model."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class PreferredMemory:
    """A caller's preference for the memory of outputs. Here they are always in host memory."""

    __slots__ = ("device_id", "memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType):
            raise TypeError(
                "PreferredMemory(): preferred_memory_type must be TRITONSERVER_MEMORY_CPU or TRITONSERVER_MEMORY_GPU, "
                f"not {type_name(preferred_memory_type)}"
            )
        if not isinstance(preferred_device_id, int):
            raise TypeError(f"PreferredMemory(): preferred_device_id must be an int, not {preferred_device_id!r}")
        self.memory_type = preferred_memory_type
        self.device_id = preferred_device_id


class InferenceTrace:
    """The trace of a request. `parent` is the host's. Calls to other models may pass it on."""

    __slots__ = ("_context", "parent")

    def __init__(self, context: str = "", parent: Any = None) -> None:
        self._context = context
        self.parent = parent

    def get_context(self) -> Optional[str]:
        """Return the OpenTelemetry context as JSON text, or None."""
        return self._context or None


_NO_TRACE = InferenceTrace()


class InferenceRequest:
    """A request with Triton's methods.

    For hosts, `values` are its parameters (or None); `model_name`, `model_version` (-1: the latest), `preferred_memory`
    and `priority` are attributes.
    """

    __slots__ = (
        "__weakref__",
        "_correlation_id",
        "_ended",
        "_flags",
        "_handle",
        "_inputs",
        "_names",
        "_release_flags",
        "_request_id",
        "_sender",
        "_timeout",
        "_trace",
        "decoupled",
        "model_name",
        "model_version",
        "preferred_memory",
        "priority",
        "values",
    )

    _handle: Optional[RequestHandle]
    _inputs: List[Tensor]
    _names: Collection[str]
    _sender: Optional[InferenceResponseSender]
    values: Optional[Mapping[str, Any]]

    def __init__(
        self,
        request_id: str = "",
        correlation_id: Union[int, str] = 0,
        inputs: Optional[Sequence[Tensor]] = None,
        requested_output_names: Optional[Sequence[str]] = None,
        model_name: Optional[str] = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: Optional[PreferredMemory] = None,
        trace: Optional[InferenceTrace] = None,
        parameters: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Make a request for another model; `timeout` is in microseconds, 0 for none.

        Raises TypeError for a missing argument or one of a wrong type, and TritonModelException like Triton.
        """
        model_name = _text("model_name", model_name)
        request_id = _text("request_id", request_id)
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        if isinstance(correlation_id, str):
            _text("correlation_id", correlation_id)
        else:
            _number("correlation_id", correlation_id, 0, 64)
        _number("model_version", model_version, -(1 << 63), 63)
        _number("flags", flags, 0, 32)
        _number("timeout", timeout, 0, 64)
        if preferred_memory is not None and not isinstance(preferred_memory, PreferredMemory):
            raise TypeError(
                f"InferenceRequest(): preferred_memory must be a PreferredMemory, not {type_name(preferred_memory)}"
            )
        if trace is not None and not isinstance(trace, InferenceTrace):
            raise TypeError(f"InferenceRequest(): trace must be an InferenceTrace, not {type_name(trace)}")
        whose = f"for request with id '{request_id}' and model name '{model_name}'"
        self._inputs = _elements("inputs", inputs)
        for tensor in self._inputs:
            if tensor is None:
                raise TritonModelException(f"Input tensor {whose} should not be empty.")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"InferenceRequest(): inputs must be a list of Tensor, not of {type_name(tensor)}")
        self._names = list(dict.fromkeys(_elements("requested_output_names", requested_output_names)))
        for name in self._names:
            if not isinstance(name, str):
                raise TypeError(
                    f"InferenceRequest(): requested_output_names must be a list of str, not of {type_name(name)}"
                )
            if not name:
                raise TritonModelException(f"Requested output name {whose} should not be empty.")
        self._handle = None
        self._sender = None
        self._ended = False
        self._release_flags = RELEASE_ALL
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._flags = flags
        self._timeout = timeout
        self._trace = trace or _NO_TRACE
        self.model_name = model_name
        self.model_version = model_version
        self.preferred_memory = preferred_memory
        self.priority = 0
        self.values = _parameters.check_and_copy(parameters)
        for text in (part for pair in (self.values or {}).items() for part in pair if isinstance(part, str)):
            _text("parameters", text)
        self.decoupled = False

    @classmethod
    def make_unchecked(
        cls,
        handle: RequestHandle,
        inputs: List[Tensor],
        requested_output_names: Collection[str],
        request_id: str = "",
        correlation_id: Union[int, str] = 0,
        flags: int = 0,
        timeout: int = 0,
        priority: int = 0,
        parameters: Optional[Mapping[str, Any]] = None,
        preferred_memory: Optional[PreferredMemory] = None,
        trace: InferenceTrace = _NO_TRACE,
        model_name: str = "",
        model_version: int = -1,
        decoupled: bool = False,
    ) -> "InferenceRequest":
        """Make a client's request, without checks or copies. The names are all outputs if it named none."""
        self = cls.__new__(cls)
        self._handle = handle
        self._inputs = inputs
        self._names = requested_output_names
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._flags = flags
        self._timeout = timeout
        self._trace = trace
        self._ended = False
        self._release_flags = RELEASE_ALL
        # A decoupled model owes an end, whatever it does with the request: the sender sees to it.
        self._sender = InferenceResponseSender(handle, requested_output_names, True) if decoupled else None
        self.priority = priority
        self.values = parameters
        self.preferred_memory = preferred_memory
        self.model_name = model_name
        self.model_version = model_version
        self.decoupled = decoupled
        return self

    def inputs(self) -> List[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._request_id

    def correlation_id(self) -> Union[int, str]:
        return self._correlation_id

    def flags(self) -> int:
        """Return TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and …_END."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = _number("flags", flags, 0, 32)

    def timeout(self) -> int:
        """Return the time-out in microseconds; 0 for none."""
        return self._timeout

    def parameters(self) -> str:
        """Return the parameters as JSON text."""
        if self._handle is not None:
            return _parameters.as_json_of_client(self.values)
        return _parameters.as_json(self.values)

    def trace(self) -> InferenceTrace:
        return self._trace

    def requested_output_names(self) -> Set[str]:
        return set(self._names)

    def exec(self, decoupled: bool = False) -> Any:
        """Run it on its model and wait for an InferenceResponse, or with `decoupled` a ResponseIterator."""
        here = host.current()
        return here.call_decoupled(self) if decoupled else here.call(self)

    def async_exec(self, decoupled: bool = False) -> "asyncio.Future[Any]":
        """Run `exec` for the running event loop. It begins at once. Raises RuntimeError if no loop runs."""
        asyncio.get_running_loop()
        here = host.current()
        call: Awaitable[Any] = here.call_decoupled_async(self) if decoupled else here.call_async(self)
        return asyncio.ensure_future(call)

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender, always the same one."""
        sender = self._sender
        if sender is None:
            if self._handle is None:
                raise TritonModelException(
                    "A request made by the model has no response sender: exec() returns the response."
                )
            sender = self._sender = InferenceResponseSender(self._handle, self._names, self.decoupled)
            if self._ended:
                sender.close()
        return sender

    def is_cancelled(self) -> bool:
        """Return True if no client waits for the response."""
        return self._handle is not None and self._handle.is_cancelled()

    def set_release_flags(self, flags: int) -> None:
        """Set the flags. With TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, the request runs again in a later execution."""
        if flags not in (RELEASE_ALL, RELEASE_RESCHEDULE):
            raise TritonModelException(
                f"set_release_flags({flags!r}): it takes TRITONSERVER_REQUEST_RELEASE_ALL (1) or "
                "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE (2)"
            )
        self._release_flags = flags

    def is_rescheduled(self) -> bool:
        return self._release_flags == RELEASE_RESCHEDULE

    def end(self) -> None:
        """End the request other than through its sender, which may send nothing more."""
        self._ended = True
        if self._sender is not None:
            self._sender.close()

    def reschedule(self) -> None:
        """Return it to the server to run again."""
        handle = self._handle
        self.end()
        if handle is not None:
            handle.reschedule()

    def __repr__(self) -> str:
        return f"InferenceRequest(request_id={self._request_id!r}, inputs={self._inputs!r})"


def _text(argument: str, value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode()
    if not isinstance(value, str):
        raise TypeError(f"InferenceRequest(): {argument} must be a str, not {type_name(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TritonModelException(
            f"InferenceRequest(): {argument} has a lone surrogate, which is no character: {value[:100]!a}"
        ) from None
    return value


def _number(argument: str, value: Any, lowest: int, bits: int) -> int:
    try:
        number = value.__index__()
    except AttributeError:
        raise TypeError(f"InferenceRequest(): {argument} must be an int, not {type_name(value)}") from None
    if not lowest <= number < 1 << bits:
        raise TypeError(f"InferenceRequest(): {argument} is {value}; it must be from {lowest} to {(1 << bits) - 1}")
    return int(number)


def _elements(argument: str, values: Any) -> List[Any]:
    if isinstance(values, (list, tuple, set, frozenset)):
        return list(values)
    raise TypeError(f"InferenceRequest(): {argument} must be a list, not {type_name(values)}")
