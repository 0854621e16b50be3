"""One log line for each failed request. What clients send can neither fill the log nor forge its lines."""

import asyncio
import logging
import time
from collections.abc import Callable

from modserve.core.requests import trace_context
from modserve.core.requests.origin import NOWHERE, Origin, Proxies
from modserve.core.runtime.failures import guarded
from modserve.core.runtime.log_limit import LogLimit

from .log_formats import address_text
from .log_text import MOST_MESSAGE, MOST_NAME, escaped, quoted
from .recent_failures import RecentFailures

_log = logging.getLogger(__name__)


class FailureLog:
    """Writes as many lines at level INFO as a `LogLimit` allows, and then how many more there were. For the event
    loop's thread.

    `enabled`: it writes at all. `clock` returns seconds. `call_later` takes a delay in seconds and a callback; the
    default is the running loop's.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
        enabled: bool = True,
        proxies: Proxies | None = None,
    ) -> None:
        self.proxies = proxies or Proxies()
        """Proxies that are believed about the addresses of clients."""
        self._enabled = enabled
        self._limit = LogLimit(clock)
        self._call_later = call_later
        self._left_out = 0
        self.recent = RecentFailures()
        """All of them, whatever is logged."""

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
        """Logs a request of `protocol` (``HTTP`` or ``gRPC``) whose response has an error `status`.

        `model`, `version` and the protocol's `id` are as the client sent them; empty or None if it sent none or they
        are unknown. Control characters in them are escaped, and long texts are cut. `request_id` is that of
        `core.requests.request_ids`; `trace_id` that of its trace, if it has one here: else the client's counts.
        """
        self.recent.add(protocol, model, version, id, status, message)
        if not self._enabled or not _log.isEnabledFor(logging.INFO):
            return
        if not self._limit.allows():
            self._left_out += 1
            if self._left_out == 1:
                later = self._call_later or asyncio.get_running_loop().call_later
                later(self._limit.rest, guarded("failure_log", self._log_left_out))
            return
        parts = [f"{protocol} request failed"]
        if model:
            parts.append(f"model {quoted(model)}")
        if version not in (None, ""):
            parts.append(f"version {escaped(str(version), MOST_NAME)}")
        if id:
            parts.append(f"request id {quoted(id)}")
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
        text = f"{escaped(message, MOST_MESSAGE)} [{known_as}]" if known_as else escaped(message, MOST_MESSAGE)
        _log.info("%s: %s", ", ".join(parts), text, extra=extra)

    def _log_left_out(self) -> None:
        count, self._left_out = self._left_out, 0
        _log.info("and %s more failed request%s", f"{count:,}", "" if count == 1 else "s")
