"""HTTP/1.1 connection: one request at a time, and responses in order.

The reader parses input. The connection decides when to read on, serves requests, writes responses and enforces
time-outs. Its state:

- `_transport` is None before the connection is made and after it is lost. Then nothing is written or held.
- `_phase` only moves forward, to LAST by `_read_no_more` and to ENDED by `eof_received`.
- `_call` serves the request with the head `_head`, or is its long response while that is written. Nothing is parsed
  meanwhile: pipelined data waits in the reader, and above `AHEAD` bytes the socket is no longer read.
- `_blockage` is set while the client does not read its responses. Then no request is begun, and nothing is read.
- `_reading`: the transport reads. Only `_choose_reading` changes it, by `_blockage`, `_held_ahead` and `_resting`.
- `_held`, `_held_ahead` and `_held_unsent` are parts of the memory budget: for the current request's body, for
  pipelined data, and for unread responses.

Any phase may occur with or without a call or a blockage; but LAST without a call only lingers. When the server stops
(`context.closing`), the response to the last received request announces the close: the phase is LAST by then.
Only `advance` parses requests. It stops while there is a call or a blockage, and when the time for this turn of the
event loop is used up; then `_on_response_end`, `resume_writing` or the loop's next turn call it again.
"""

import asyncio
import logging
import time
from typing import cast

from modserve.access.credentials import Credentials
from modserve.core.errors import ModserveError
from modserve.core.requests.memory import MemoryExhaustedError
from modserve.core.requests.origin import Origin
from modserve.core.runtime.turn import BURST
from modserve.core.tensors.tensor import Buffer
from modserve.frontends.certificates import read_credentials
from modserve.frontends.http.error_forms import encode_message
from modserve.frontends.http.infer import InferCall
from modserve.frontends.listening import peer_of
from modserve.protocol.http.infer_response import Body
from modserve.protocol.http.request_head import RequestHead

from .access import ConnectionLog
from .asgi import AsgiCall, decode_path, format_path
from .call import HttpCall
from .context import AHEAD, SMALL_BODY, Hold, HttpContext
from .direct_call import DirectCall
from .half_closed import close_later, has_unread, look_after
from .head import RefusedRequestError
from .long_response import LongResponse
from .phase import ConnectionPhase
from .reader import IDLE, Reader
from .responses import CONTINUE, header_lines, inference_response, json_response, persistence
from .time_outs import CloseAction, TimeOuts

_log = logging.getLogger(__name__)

_OPEN, _LAST, _ENDED = ConnectionPhase
_NO_HEAD = RequestHead()


class HttpConnection(asyncio.Protocol):
    """An HTTP/1.1 connection, called by its transport, the event loop's turns and ticks, and its own calls."""

    def __init__(self, context: HttpContext) -> None:
        self.context = context
        self._transport: asyncio.Transport | None = None
        self._reader = Reader(context.heads, context.options, context.memory)
        self._keyed = context.authority is not None
        self._certificate: Credentials = ()  # of the TLS handshake
        self._phase = ConnectionPhase.OPEN
        self._call: HttpCall | None = None
        self._logged: InferCall | None = None  # the current inference, if its access-log entry is due
        self._head = _NO_HEAD
        self._blockage: asyncio.Event | None = None  # set when it is over
        self._reading = True
        self._advancing = self._resting = False
        self._burst = 0  # bytes received since the last rest; a rest lasts until the next turn
        self._held = Hold(context.memory)
        self._held_ahead = Hold(context.memory)
        self._held_unsent = Hold(context.memory)
        self._received_ns = 0  # arrival of an incomplete request; only while requests are traced
        self._active = True  # data has arrived since the last check of `_time_outs`
        self._time_outs = TimeOuts(context.options)
        self._access = None if context.access is None else ConnectionLog(context.access)

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._keyed:
            self._certificate = read_credentials(transport)
        self._origin = Origin(peer_of(transport))
        if not self.context.add_connection(self, transport.get_extra_info("peername")):
            self._refuse(503, *self.context.turn_away())

    def connection_lost(self, exc: Exception | None) -> None:
        self.context.remove_connection(self)
        self._transport = None
        self._read_no_more()
        self._held.resize(0)
        self._held_unsent.resize(0)
        if self._blockage is not None:
            self._blockage.set()
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        if self._access is not None and self._logged is not None:
            self._access.abandon(self._logged)

    def eof_received(self) -> bool:
        """Serve what the client has sent before its end of file, and then close the connection.

        A disconnected client sends an end of file, too. Only a write shows whether the client still reads, so an
        interim response is written at once. HTTP/1.0 has none.
        """
        call, transport = self._call, self._transport
        quiet = call is None and not self._reader.rest
        if transport is None or transport.get_extra_info("sslcontext") is not None or quiet:
            return False
        if self._phase is not _ENDED:
            self._phase = _ENDED
            if not self._head.old:
                transport.write(CONTINUE if call is None else call.filler)
            look_after(transport, self.context.loop)
        return True

    async def _writable(self) -> None:
        if self._blockage is not None:
            await self._blockage.wait()

    def pause_writing(self) -> None:
        """Stop reading while the client does not read its responses."""
        self._blockage = asyncio.Event()
        if self._call is not None:
            self._call.pause()
        if self._transport is not None:
            self._held_unsent.force(self._unsent_now(self._transport))
        self._choose_reading()

    def resume_writing(self) -> None:
        if self._blockage is not None:
            self._blockage.set()
        self._blockage = None
        self._held_unsent.resize(0)
        if self._call is not None:
            self._call.resume()
        self.advance()

    def _unsent_now(self, transport: asyncio.Transport) -> int:
        return (0 if self._call is None else self._call.left) + transport.get_write_buffer_size()

    def data_received(self, data: bytes) -> None:
        self._active = True
        if self._phase is not _OPEN:
            return
        self._burst += len(data)
        if self._burst >= BURST:
            self._burst, self._resting = 0, True
            self.context.loop.call_soon(self._go_on)
        self._reader.feed(data)
        self.advance(True)

    def close_when_idle(self) -> None:
        """Serve the current request, then close. When the server stops, serve all requests received by now."""
        if self.context.closing and not self._ending():
            return
        self._read_no_more()
        if self._call is None and self._transport is not None:
            self._transport.close()

    def _ending(self) -> bool:
        """True if the server stops and no further data has arrived: the next response is the last."""
        more = self._call is not None and self._reader.ahead
        return self.context.closing and not more and not has_unread(self._transport)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def unaware(self) -> bool:
        """True if the client expects the connection to stay, and the current response does not announce its close."""
        call = self._call
        hears = call is not None and not self._reader.ahead and not call.begun
        return self._phase is _OPEN and not hears

    @property
    def arriving(self) -> bool:
        """True if a request is incomplete."""
        return self._transport is not None and self._reader.state is not IDLE

    def check(self, now: float) -> None:
        """End the connection if the client has been inactive for too long at `now`.

        Complete requests have no time limit here; their deadlines are enforced elsewhere.
        """
        transport, reader = self._transport, self._reader
        if transport is None:
            return
        unsent, call = self._unsent_now(transport), self._call
        active, self._active = self._active, False
        if self._blockage is not None:
            self._held_unsent.force(unsent)
        stuck = self._blockage is not None or transport.is_closing()
        stuck = stuck or (unsent > 0 and call is None and reader.state is IDLE)
        overdue = self._time_outs.check(now, active, unsent, stuck, call is not None, reader)
        if isinstance(overdue, CloseAction):
            (transport.abort if overdue is CloseAction.ABORT else transport.close)()
        elif overdue is not None:
            self._refuse(408, overdue)

    # Requests in

    def advance(self, on_arrival: bool = False) -> None:
        """Parse received data up to the next request that takes time. Never raises.

        With `on_arrival`, data that has just arrived is parsed at once; other data only while this turn of the event
        loop has time left.
        """
        if self._advancing:
            return
        self._advancing = True
        reader, turns = self._reader, self.context.turns
        try:
            while reader.at < len(reader.rest) and self._call is None and self._blockage is None:
                if not on_arrival and not turns.time_left():
                    turns.later(self)
                    break
                on_arrival = False
                if (request := reader.read_piece()) is not None:
                    self._begin(*request)
            self._after_reading()
        except RefusedRequestError as refusal:
            self._refuse(refusal.status, refusal.message)
        except MemoryExhaustedError as exhausted:
            self._refuse(503, exhausted.message)
        except Exception as error:
            self._fail(error)
        finally:
            self._advancing = False

    def _after_reading(self) -> None:
        """Account for unread bytes, and for an incomplete request."""
        reader = self._reader
        unread = reader.ahead
        if not unread:
            reader.rest, reader.at = b"", 0
        if unread > AHEAD or self._held_ahead.size:
            self._held_ahead.resize(unread if unread > AHEAD else 0)
        self._choose_reading()
        if reader.state is not IDLE and self._transport is not None:
            if not self._received_ns and self.context.server.tracer.on:
                self._received_ns = time.monotonic_ns()
            if reader.body.size:
                reader.expecting = False
                if reader.body.size > self._held.size:
                    self._held.resize(reader.body.size)
            elif reader.expecting:
                reader.expecting = False
                self._transport.write(CONTINUE)
        if self._phase is _ENDED and self._call is None and not unread and self._transport is not None:
            self._transport.close()

    def _go_on(self) -> None:
        self._resting = False
        self._choose_reading()

    def _choose_reading(self) -> None:
        """Read from the client unless it does not read itself, or has sent too much ahead or in this turn."""
        reading = self._blockage is None and not self._held_ahead.size and not self._resting
        if reading is not self._reading and self._transport is not None:
            self._reading = reading
            (self._transport.resume_reading if reading else self._transport.pause_reading)()

    def _begin(self, head: RequestHead, body: Buffer) -> None:
        """Serve a complete request. Raises MemoryExhaustedError."""
        if len(body) > SMALL_BODY or self._held.size:
            self._held.resize(len(body))
        received_ns, self._received_ns = self._received_ns, 0
        self._serve(head, body, received_ns)

    def _serve(self, head: RequestHead, body: Buffer, received_ns: int) -> None:
        if not head.keep_alive:
            self._read_no_more()
        head = self._head = self.context.by_body(head, body) if head.renamed else head
        if (log := self._access) is not None:
            log.begin(len(body))
        context, turn, model, direct = self.context, self.context.turn, head.model, len(head.route) > 0
        own = direct or self._keyed or head.origin  # data of this request, not of the connection
        origin = (
            Origin(self._origin.peer, head.origin, format_path(head.route) if direct else "") if own else self._origin
        )
        admitted = self._keyed and (model or direct)
        tenant, caller = context.admission(head, origin, self._certificate) if admitted else (None, None)
        if self._keyed and tenant is None:
            model, direct = "", False  # the application answers with the reason
            context.heads.complete(head)
        if model and not direct:
            self._call = self._logged = call = InferCall(context.calls, self._respond)
            call.tenant, call.origin = tenant, origin
            turn.begin()
            call.start(model, head.model_version, head, body, received_ns)
            turn.end()
            return
        transport, keep = self._transport, head.keep_alive and self._phase is not _LAST
        assert transport is not None, "requests are only read while there is a connection: this is a bug"
        ways = self._write, self._on_response_end, self._ending
        if direct:
            self._call = one = DirectCall(context, transport, head, keep, log, *ways, origin, caller, tenant)
            turn.begin()
            one.start(body)
            turn.end()
            return
        shown = self._certificate
        self._call = other = AsgiCall(context, transport, head, body, keep, self._writable, *ways[1:], shown)
        context.turns.calls += 1
        context.tasks.create_task(other.run())

    # Responses out

    def _respond(self, outcome: Body | ModserveError, request_id: str) -> None:
        """Write the outcome of an inference. Never raises: the caller has other requests."""
        try:
            head, context = self._head, self.context
            call, self._logged = self._logged, None
            if self._access is not None and call is not None:
                self._access.end(call, outcome)
                request_id = call.request_id
            ending = self._phase is _LAST or self._ending()
            lines = header_lines(head, request_id, ending, context.load_lines)
            outcome = context.spell_outcome(outcome) if head.renamed else outcome
            binary_head = context.platform_head if head.renamed else context.binary_head
            size, parts = inference_response(outcome, lines, context.json_head, binary_head, context.statuses)
            self._write(size, parts, ending)
        except Exception:
            _log.exception("a response could not be written; its connection is closed")
            self.abort()

    def _write(self, size: int, parts: list[Buffer], ending: bool) -> None:
        """Write a response with a body of `size` bytes, at once if it is short. `ending`: it is the last response."""
        transport = self._transport
        if ending:
            self._read_no_more()
        if size > SMALL_BODY and transport is not None:
            self._held.resize(0)
            loop, paused = self.context.loop, self._blockage is not None
            self._call = response = LongResponse(loop, transport, parts, self._on_response_end, paused)
            response.write()
            return
        if transport is not None:
            transport.write(b"".join(parts))
        self._on_response_end(True)

    def _on_response_end(self, complete: bool) -> None:
        """Continue with the next request: the current response has been written."""
        self._call = None
        if self._held.size:
            self._held.resize(0)
        if self._transport is None:
            return
        if complete and self._phase is not _LAST and self._reader.rest:
            self.advance()
        elif not complete or self._phase is not _OPEN:
            self._transport.close()

    def _refuse(self, status: int, message: str, linger: bool = True) -> None:
        """Report the error and close: the following input is unintelligible or unwanted."""
        body = encode_message(decode_path(self._reader.path), message, status)
        if self._access is not None:
            self._access.refuse(self._origin, status, len(body))
        self._read_no_more()
        transport = self._transport
        if self._call is not None or transport is None:
            return  # the connection closes with its response, or is lost
        self._held.resize(0)
        self.context.statuses[status] += 1
        transport.write(json_response(status, body, self._reader.cors + self.context.date + persistence(False, False)))
        if not linger:
            transport.close()
            return
        close_later(transport, self.context.loop)
        self._choose_reading()

    def _fail(self, error: BaseException) -> None:
        """Handle an internal error while reading a request: it costs this connection only."""
        try:
            _log.error("reading an HTTP request failed unexpectedly", exc_info=error)
            if self._call is not None:
                self.abort()
            elif isinstance(error, MemoryError):
                self._refuse(503, "the server is out of memory. Try again later.")
            else:
                self._refuse(500, "Internal Server Error")
        except Exception:
            self.abort()

    def _read_no_more(self) -> None:
        """Drop the unfinished request and all further input."""
        if self._phase is _OPEN:
            self._phase = _LAST
        self._reader.drop(self.context.loop)
        self._held_ahead.resize(0)
