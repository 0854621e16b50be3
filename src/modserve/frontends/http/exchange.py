"""Framework-independent calls: their requests and responses. The port or an ASGI application runs them.

The port runs some calls directly (`direct.py`). Mounted in another application, FastAPI routes run the same calls.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from modserve.core.errors import ModserveError
from modserve.core.requests import request_ids
from modserve.core.requests.origin import Origin
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.frontends import offload
from modserve.frontends.call import InferenceCall
from modserve.frontends.errors import to_client_error
from modserve.protocol import failures
from modserve.protocol.http.framing import Framing
from modserve.protocol.http.request_head import RequestHead
from modserve.protocol.json.json_text import MIME_JSON
from modserve.protocol.response_form import ResponseForm
from modserve.settings import LoopLimits

Headers: TypeAlias = Sequence[tuple[str, str]]

_NO_CACHE: Final = (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))
"""The second header keeps nginx from buffering the parts of a stream."""


class RequestInfo:
    """Information about a request: its id, whether its client sees the id, and its last inference.

    The inference is kept only if the request is `logged`, as a call may hold many tensors. `count`: inferences of the
    request, or responses of a streamed one.
    """

    __slots__ = ("call", "count", "echoed", "logged", "origin", "request_id")

    def __init__(self, request_id: str, echoed: bool, origin: Origin, logged: bool = False) -> None:
        self.origin = origin
        self.request_id = request_id
        self.echoed = echoed
        self.logged = logged
        self.call: InferenceCall | None = None
        self.count = 0

    def add_call(self, call: InferenceCall) -> None:
        """Add an inference of the request; it gets the request's id."""
        if self.logged:
            self.call = call
            self.count += 1
        self.echoed = True
        call.request_id = self.request_id
        call.origin = self.origin


def make_request_info(request_id: str, origin: Origin, logged: bool = False) -> RequestInfo:
    """Return the information about a request; `request_id` is the id that its client sent (`RequestHead`)."""
    id = request_ids.choose(request_id) if request_id else request_ids.make()
    return RequestInfo(id, logged or bool(request_id), origin, logged)


class CompleteRequest:
    """A completely received request."""

    __slots__ = ("body", "head", "note")

    def __init__(self, head: RequestHead, body: bytes, note: RequestInfo) -> None:
        self.head = head
        self.body = body
        self.note = note

    @property
    def query(self) -> str:
        """Query of the path, as sent."""
        return self.head.target.partition(b"?")[2].decode("latin-1")


class WholeResponse(NamedTuple):
    """A complete response."""

    body: bytes
    status: int = 200
    headers: Headers = ()
    content_type: str = MIME_JSON


Encode: TypeAlias = Callable[[Outcome, bool], bytes]
"""Encodes an outcome; the flag marks the last one. Empty if there is nothing to send. Never raises on errors."""


class StreamMessage(NamedTuple):
    """A message of a stream. `error`: the failure that it reports, or the reason that it could not be encoded."""

    data: bytes
    error: ModserveError | None
    final: bool


class StreamedCall(Protocol):
    """Source of a `ResponseStream`: one `HttpStream` or several."""

    @property
    def limits(self) -> LoopLimits: ...

    @property
    def response_form(self) -> ResponseForm: ...

    @property
    def ready(self) -> bool:
        """True if `take` returns an outcome."""
        ...

    def listen(self, arrival: Callable[[], None]) -> None:
        """Call `arrival` for each outcome instead of waking the waiter in `next`."""
        ...

    def take(self) -> tuple[Outcome, bool]:
        """Return the next available outcome, and whether it is the last."""
        ...

    def acknowledge(self) -> None:
        """Confirm that the last outcome has been sent; its model may continue."""
        ...

    async def next(self) -> tuple[Outcome, bool]:
        """Wait for the next outcome and return it. Waiting confirms that the previous one has been sent."""
        ...

    def record_failure(self, error: ModserveError, status: int | str) -> None: ...

    def on_sending(self) -> None: ...

    def on_part_sent(self) -> None: ...

    def on_sent(self) -> None: ...

    def release(self) -> None: ...

    def close(self) -> None: ...


class ResponseStream:
    """A streamed response to a submitted call with a known `first` message. Its owner closes the call."""

    __slots__ = ("call", "encode", "first", "framing")

    def __init__(self, call: StreamedCall, first: StreamMessage, framing: Framing, encode: Encode) -> None:
        self.call = call
        self.first = first
        self.framing = framing
        self.encode = encode

    @property
    def status(self) -> int:
        error = self.first.error
        return 200 if error is None else failures.spelling(error).http

    @property
    def headers(self) -> Headers:
        error = self.first.error
        return _NO_CACHE if error is None else (*_NO_CACHE, *failures.headers(error).items())


Handler: TypeAlias = Callable[[CompleteRequest], Coroutine[Any, Any, WholeResponse | ResponseStream]]
"""A call. Cancelled when its client disconnects. It raises no other error meant for the client."""


async def response_stream(call: StreamedCall, framing: Framing, encode: Encode) -> ResponseStream:
    """Return the response to a submitted call once its first message is known."""
    try:
        first = await next_message(call, encode)
    except BaseException:
        call.close()
        raise
    return ResponseStream(call, first, framing, encode)


async def next_message(call: StreamedCall, encode: Encode) -> StreamMessage:
    """Return the call's next outcome in the client's format."""
    outcome, final = await call.next()
    if is_long(call, outcome):
        message = await offload.on_thread(message_of, encode, outcome, final)
    else:
        message = message_of(encode, outcome, final)
    if final:
        call.release()
    return message


def is_long(call: StreamedCall, outcome: Outcome) -> bool:
    """True if the outcome should be encoded on a thread."""
    return isinstance(outcome, InferenceResponse) and offload.is_long_response(outcome, call.response_form, call.limits)


def message_of(encode: Encode, outcome: Outcome, final: bool) -> StreamMessage:
    """Return an outcome in the client's format. Never raises."""
    error = outcome if isinstance(outcome, ModserveError) else None
    try:
        data = encode(outcome, final)
    except Exception as failure:
        error = to_client_error(failure, "a response of a stream")
        data = encode(error, final)
    return StreamMessage(data, error, final)
