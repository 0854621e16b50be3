"""Calls that know of no framework: what one gets, and what it returns. The port runs it, or an ASGI application.

The port runs some calls by itself (`direct.py`). Inside another application, FastAPI's routes run the same.
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
"""The second is for nginx, which would keep the pieces of a stream until it has many."""


class RequestInfo:
    """Information about a request: its id, whether its client hears of that, and its last inference.

    The inference is kept only if the request is `logged`: a call may hold many tensors. `count` is the number of its
    inferences, or of the responses of one that streams.
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
        """Note an inference that has begun for the request, and has its id."""
        if self.logged:
            self.call = call
            self.count += 1
        self.echoed = True
        call.request_id = self.request_id
        call.origin = self.origin


def note_of(request_id: str, origin: Origin, logged: bool = False) -> RequestInfo:
    """Return the note of a request whose client has sent this id, as `RequestHead` has it."""
    id = request_ids.choose(request_id) if request_id else request_ids.make()
    return RequestInfo(id, logged or bool(request_id), origin, logged)


class CompleteRequest:
    """A request that has come completely."""

    __slots__ = ("body", "head", "note")

    def __init__(self, head: RequestHead, body: bytes, note: RequestInfo) -> None:
        self.head = head
        self.body = body
        self.note = note

    @property
    def query(self) -> str:
        """Query of the path, as it was sent."""
        return self.head.target.partition(b"?")[2].decode("latin-1")


class WholeResponse(NamedTuple):
    """A whole response."""

    body: bytes
    status: int = 200
    headers: Headers = ()
    content_type: str = MIME_JSON


Encode: TypeAlias = Callable[[Outcome, bool], bytes]
"""Makes a message of an outcome, and whether it is the last one; empty where there is none. Never raises on errors."""


class StreamMessage(NamedTuple):
    """A message of a stream. `error` is what it reports, or why it could not report what it should."""

    data: bytes
    error: ModserveError | None
    final: bool


class StreamedCall(Protocol):
    """Source of a `ResponseStream`: an `HttpStream`, or several."""

    @property
    def limits(self) -> LoopLimits: ...

    @property
    def response_form(self) -> ResponseForm: ...

    @property
    def ready(self) -> bool:
        """True if `take` returns an outcome."""
        ...

    def listen(self, arrival: Callable[[], None]) -> None:
        """Call `arrival` whenever an outcome comes, in place of waking the waiter in `next`."""
        ...

    def take(self) -> tuple[Outcome, bool]:
        """Return the next outcome, which has come, and whether it is the last."""
        ...

    def acknowledge(self) -> None:
        """Note that the outcome taken last has been sent: its model may go on."""
        ...

    async def next(self) -> tuple[Outcome, bool]:
        """Wait for the next outcome, and take it. Waiting says that the one before it has been sent."""
        ...

    def record_failure(self, error: ModserveError, status: int | str) -> None: ...

    def on_sending(self) -> None: ...

    def on_part_sent(self) -> None: ...

    def on_sent(self) -> None: ...

    def release(self) -> None: ...

    def close(self) -> None: ...


class ResponseStream:
    """A response that goes on as outcomes come: the call is submitted, and its `first` message is known.

    Its owner closes the call.
    """

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
"""A call. It is cancelled when its client goes away. It raises nothing else that a client should read."""


async def response_stream(call: StreamedCall, framing: Framing, encode: Encode) -> ResponseStream:
    """Return the response to a submitted call, once its first message is known."""
    try:
        first = await next_message(call, encode)
    except BaseException:
        call.close()
        raise
    return ResponseStream(call, first, framing, encode)


async def next_message(call: StreamedCall, encode: Encode) -> StreamMessage:
    """Return the call's next outcome as its client gets it."""
    outcome, final = await call.next()
    if is_long(call, outcome):
        message = await offload.on_thread(message_of, encode, outcome, final)
    else:
        message = message_of(encode, outcome, final)
    if final:
        call.release()
    return message


def is_long(call: StreamedCall, outcome: Outcome) -> bool:
    """True if a thread should make the message of an outcome."""
    return isinstance(outcome, InferenceResponse) and offload.is_long_response(outcome, call.response_form, call.limits)


def message_of(encode: Encode, outcome: Outcome, final: bool) -> StreamMessage:
    """Return an outcome as its client gets it. Never raises."""
    error = outcome if isinstance(outcome, ModserveError) else None
    try:
        data = encode(outcome, final)
    except Exception as failure:
        error = to_client_error(failure, "a response of a stream")
        data = encode(error, final)
    return StreamMessage(data, error, final)
