"""Log line for each failed request, and a record of the latest failures for display.

Data from clients can neither fill the log nor forge its lines, nor grow the record.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from modserve.core.requests import trace_context
from modserve.core.requests.origin import NOWHERE, Origin, Proxies
from modserve.core.runtime.failures import guard
from modserve.core.runtime.log_limit import LogLimit

from .logging import MOST_MESSAGE, MOST_NAME, address_text, escape, quote

MOST_FAILURES = 100
"""Number of distinct failures kept; the oldest one is dropped."""
_MOST_NAME = 100
_MOST_MESSAGE = 1000
"""Maximum length in characters of names, ids and messages, which may repeat client data."""


@dataclass(slots=True, eq=False)
class RecentFailure:
    """Requests with the same failure: protocol, model, version, status and message. Texts may have several lines."""

    protocol: str
    model: str
    version: str
    status: str
    message: str
    request_id: str = ""
    """Request id of the latest failure."""
    count: int = 0
    first_ms: int = 0
    """Unix time of the first one since the entry was added."""
    last_ms: int = 0


class RecentFailures:
    """A bounded record of failures, for the event loop's thread. `clock` returns Unix time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str, str, str, str], RecentFailure] = OrderedDict()
        """Failures, latest last."""
        self.total = 0
        """Number of failures since the start, including dropped ones."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._failures)} kept, {self.total} in all)"

    def add(
        self, protocol: str, model: str, version: int | str | None, request_id: str, status: object, message: str
    ) -> None:
        """Add a failure; arguments as in `FailureLog.record`."""
        self.total += 1
        texts = (
            protocol,
            _make_printable(model, _MOST_NAME),
            "" if version is None else _make_printable(str(version), _MOST_NAME),
            str(status),
            _make_printable(message, _MOST_MESSAGE),
        )
        failure = self._failures.get(texts)
        now_ms = int(self._clock() * 1000)
        if failure is None:
            if len(self._failures) >= MOST_FAILURES:
                self._failures.popitem(last=False)
            failure = self._failures[texts] = RecentFailure(*texts, first_ms=now_ms)
        else:
            self._failures.move_to_end(texts)
        failure.count += 1
        failure.last_ms = now_ms
        failure.request_id = _make_printable(request_id, _MOST_NAME)

    def latest(self) -> list[RecentFailure]:
        """Entries, latest first."""
        return list(reversed(self._failures.values()))


def _make_printable(text: str, most: int) -> str:
    """Return the text with invisible characters escaped, except line breaks; long texts are cut."""
    cut = text[:most]
    if not cut.isprintable():
        cut = "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in cut)
    return cut if len(text) <= most else f"{cut}…"


_log = logging.getLogger(__name__)


class FailureLog:
    """Logs failures at level INFO, as many as a `LogLimit` allows, and the number of others. For the event loop's
    thread.

    `enabled`: write log lines at all. `clock` returns seconds. `call_later` takes a delay in seconds and a callback;
    defaults to the running loop's.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
        enabled: bool = True,
        proxies: Proxies | None = None,
    ) -> None:
        self.proxies = proxies or Proxies()
        """Proxies trusted to report clients' addresses."""
        self._enabled = enabled
        self._limit = LogLimit(clock)
        self._call_later = call_later
        self._left_out = 0
        self.recent = RecentFailures()
        """Latest failures, logged or not."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._left_out} left out)"

    def record(
        self,
        protocol: str,
        model: str,
        version: int | str | None,
        id: str,
        status: object,
        message: str,
        request_id: str = "",
        origin: Origin = NOWHERE,
        trace_id: str = "",
    ) -> None:
        """Log a request of `protocol` (``HTTP`` or ``gRPC``) with an error `status` in its response.

        `model`, `version` and the protocol's `id` are as the client sent them; empty or None if missing or unknown.
        Control characters in them are escaped, and long texts are cut. `request_id`: see `core.requests.request_ids`.
        `trace_id`: id of its own trace, if any; defaults to the client's.
        """
        self.recent.add(protocol, model, version, id, status, message)
        if not self._enabled or not _log.isEnabledFor(logging.INFO):
            return
        if not self._limit.allows():
            self._left_out += 1
            if self._left_out == 1:
                later = self._call_later or asyncio.get_running_loop().call_later
                later(self._limit.rest, guard("failure_log", self._log_left_out))
            return
        parts = [f"{protocol} request failed"]
        if model:
            parts.append(f"model {quote(model)}")
        if version not in (None, ""):
            parts.append(f"version {escape(str(version), MOST_NAME)}")
        if id:
            parts.append(f"request id {quote(id)}")
        parts.append(f"status {status}")
        values = {"protocol": protocol, "model": model[:MOST_NAME], "version": str(version or "")[:MOST_NAME]}
        values |= {"id": id[:MOST_NAME], "request_id": request_id, "status": str(status)}
        client = self.proxies.client(origin)
        ids = {
            "X-Request-ID": request_id,
            "client": address_text(client) if client else "",
            "trace": trace_id or trace_context.id_of(origin.trace),
        }
        values |= {"client": ids["client"], "trace_id": ids["trace"]}
        extra = {"fields": {**values, "error": message[:MOST_MESSAGE]}}
        known_as = ", ".join(f"{name} {value}" for name, value in ids.items() if value)
        text = f"{escape(message, MOST_MESSAGE)} [{known_as}]" if known_as else escape(message, MOST_MESSAGE)
        _log.info("%s: %s", ", ".join(parts), text, extra=extra)

    def _log_left_out(self) -> None:
        count, self._left_out = self._left_out, 0
        _log.info("and %s more failed request%s", f"{count:,}", "" if count == 1 else "s")
