"""`InferenceResponse`, which models make and get, `InferenceResponseSender`, which sends it, and `ResponseIterator`."""

import threading
from typing import Any, Collection, Dict, List, Mapping, Optional, Protocol, Sequence

from . import parameters as _parameters
from .errors import TritonError, TritonModelException, type_name
from .tensor import Tensor

COMPLETE_FINAL = 1


class InferenceResponse:
    """Outputs, or an error in place of them. `values` are the parameters, or None."""

    __slots__ = ("__weakref__", "_error", "_tensors", "values")

    _tensors: List[Tensor]
    _error: Optional[TritonError]
    values: Optional[Dict[str, Any]]

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: Optional[TritonError] = None,
        parameters: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Make a response. Raises TypeError for an argument of a wrong type, and TritonModelException like Triton."""
        if type(output_tensors) is not list:
            if isinstance(output_tensors, (str, bytes, dict, Tensor)) or not hasattr(output_tensors, "__iter__"):
                raise TypeError(
                    f"InferenceResponse(): output_tensors must be a list of Tensor, not {type_name(output_tensors)}"
                )
            output_tensors = list(output_tensors)
        for index, tensor in enumerate(output_tensors):
            if type(tensor) is not Tensor and not isinstance(tensor, Tensor):
                _refuse(index, tensor)
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(
                f"InferenceResponse(): error must be a TritonError, not {type_name(error)}; "
                "TritonError(str(error)) makes one"
            )
        self._tensors = output_tensors
        self._error = error
        self.values = None if parameters is None else _parameters.check_and_copy(parameters)

    @classmethod
    def make_unchecked(
        cls, tensors: List[Tensor], error: Optional[TritonError] = None, values: Optional[Dict[str, Any]] = None
    ) -> "InferenceResponse":
        """Make a response of another model, without checks."""
        self = cls.__new__(cls)
        self._tensors = tensors
        self._error = error
        self.values = values
        return self

    def output_tensors(self) -> List[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> Optional[TritonError]:
        return self._error

    def parameters(self) -> str:
        """Return the parameters as JSON text."""
        return _parameters.as_json(self.values)

    def seal(self, names: Collection[str]) -> "InferenceResponse":
        """Return this response for the server: with only the named outputs, and no object of a model's own class.

        Returns the response itself if possible. Raises any exception of the model's classes.
        """
        if type(self) is InferenceResponse and (self._error is None or type(self._error) is TritonError):
            for tensor in self._tensors:
                if type(tensor) is not Tensor or tensor._name not in names:
                    break
            else:
                return self
        error = self.error()
        if error is not None:
            return InferenceResponse.make_unchecked([], TritonError(error.message(), error.code()))
        whole = InferenceResponse(self.output_tensors())
        outputs = [tensor.seal() for tensor in whole._tensors]
        kept = [tensor for tensor in outputs if tensor._name in names]
        return InferenceResponse.make_unchecked(kept, None, _parameters.check_and_copy(self.values))

    def __repr__(self) -> str:
        return f"InferenceResponse({self._tensors!r}, error={self._error!r}, parameters={self.values!r})"


def _refuse(index: int, tensor: object) -> None:
    if tensor is None:
        raise TritonModelException("Output tensor for inference response should not be empty.")
    raise TypeError(
        f"InferenceResponse(): output_tensors must be a list of Tensor, but element {index} is {type_name(tensor)}"
    )


class ResponseIterator:
    """The responses of a decoupled model. A new iteration repeats the responses received so far.

    As in Triton, an end that comes alone is a response without outputs. After `cancel` the last one is an error with
    the code CANCELLED, unless the called model has ended before.
    """

    def __init__(self) -> None:
        self._before: List[InferenceResponse] = []
        self._at = 0

    def __iter__(self) -> "ResponseIterator":
        self._at = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._at == len(self._before):
            self._before.append(self._receive())
        self._at += 1
        return self._before[self._at - 1]

    def _receive(self) -> InferenceResponse:
        """Return the next response. Raises StopIteration."""
        raise NotImplementedError

    def cancel(self) -> None:
        raise NotImplementedError

    def __del__(self) -> None:
        self.cancel()


class RequestHandle(Protocol):
    """The server's side of one request that the model has in its hands. Any thread may use it."""

    def send(self, response: Optional[InferenceResponse], final: bool) -> None:
        """Give a response (None: the end alone). May block while a slow client has too much to take.

        Raises `TritonModelException` after the final response.
        """

    def is_cancelled(self) -> bool:
        """Return True if no client waits for a response."""

    def is_paused(self) -> bool:
        """Return True if a slow client has too much to read: `send` would block, except for the final response."""

    def reschedule(self) -> None:
        """Run the request again in a later execution, in place of a final response."""

    def let_go(self) -> None:
        """Notify the server that the model has dropped the request without a final response. Does nothing after one."""


class InferenceResponseSender:
    """Sender of the responses of one request. Threads may share it.

    If the last reference to it disappears before the final response, the server is notified.
    """

    __slots__ = ("__weakref__", "_closed", "_decoupled", "_handle", "_lock", "_names", "_sent")

    def __init__(self, handle: RequestHandle, names: Collection[str], decoupled: bool) -> None:
        self._handle = handle
        self._names = names
        self._decoupled = decoupled
        self._lock = threading.Lock()
        self._closed = False
        self._sent = 0

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Send a response, the last with TRITONSERVER_RESPONSE_COMPLETE_FINAL; the flag may also be sent alone at the
        end.

        May block while a slow client still has much to read. Raises TypeError and TritonModelException.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send(): response must be an InferenceResponse, not {type_name(response)}")
        if flags not in (0, COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if flags == 0 and response is None:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        final = flags == COMPLETE_FINAL
        sealed = None if response is None else response.seal(self._names)
        self.count(response is not None, final)
        try:
            self._handle.send(sealed, final)
        except BaseException:
            if final:
                self._closed = False  # the request has no end yet
            raise

    def count(self, is_response: bool, final: bool) -> None:
        """Count a response, or the end alone, before it is sent. Raises TritonModelException if it must not be sent."""
        with self._lock:
            if not self._decoupled:
                if is_response and self._sent > 0:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send more than one response."
                    )
                if not is_response and self._sent == 0 and not self._closed:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send complete final before sending a "
                        "response."
                    )
            if self._closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            self._closed = final
            self._sent += is_response

    def is_cancelled(self) -> bool:
        return self._handle.is_cancelled()

    def is_paused(self) -> bool:
        """Return True if a response, unless it is the final one, would now wait for a slow client. Not in Triton."""
        return self._handle.is_paused()

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Refuse further responses: the request has ended otherwise."""
        with self._lock:
            self._closed = True

    def __del__(self) -> None:
        if not self._closed:
            self._handle.let_go()
