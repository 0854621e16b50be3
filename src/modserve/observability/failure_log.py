"""One log line for each failed request. What clients send can neither fill the log nor forge its lines."""

import asyncio
import logging
import math
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

LINES_PER_SECOND = 10
"""Further failures are counted, and their number is logged once the second is over."""

_MOST_NAME = 100
_MOST_MESSAGE = 1000
"""The length, in characters, of names and ids, and of messages, which may repeat what the client sent."""


class FailureLog:
    """Writes at most `LINES_PER_SECOND` lines a second at level INFO. For the event loop's thread.

    `clock` returns seconds. `call_later` takes a delay in seconds and a callback; the default is the running loop's.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._second = -math.inf
        """The start of the second whose lines are counted."""
        self._lines = 0
        self._left_out = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._lines} lines in this second, {self._left_out} left out)"

    def record(
        self, protocol: str, model: str, version: int | str | None, request_id: str, status: object, message: str
    ) -> None:
        """Logs a request of `protocol` (``HTTP`` or ``gRPC``) whose response has an error `status`.

        `model`, `version` and `request_id` are as the client sent them; empty or None if it sent none or they are
        unknown. Control characters in them are escaped, and long texts are cut.
        """
        if not _log.isEnabledFor(logging.INFO):
            return
        now = self._clock()
        if now - self._second >= 1.0:
            self._second, self._lines = now, 0
        if self._lines >= LINES_PER_SECOND:
            self._left_out += 1
            if self._left_out == 1:
                later = self._call_later or asyncio.get_running_loop().call_later
                later(self._second + 1.0 - now, self._log_left_out)
            return
        self._lines += 1
        parts = [f"{protocol} request failed"]
        if model:
            parts.append(f"model {_quoted(model)}")
        if version not in (None, ""):
            parts.append(f"version {_escaped(str(version), _MOST_NAME)}")
        if request_id:
            parts.append(f"request id {_quoted(request_id)}")
        parts.append(f"status {status}")
        _log.info("%s: %s", ", ".join(parts), _escaped(message, _MOST_MESSAGE))

    def _log_left_out(self) -> None:
        count, self._left_out = self._left_out, 0
        _log.info("and %s more failed request%s", f"{count:,}", "" if count == 1 else "s")


def _quoted(text: str) -> str:
    return repr(text) if len(text) <= _MOST_NAME else f"{text[:_MOST_NAME]!r}..."


def _escaped(text: str, most: int) -> str:
    """The text on one line, with everything escaped that is not printable: line separators, bidirectional marks, ..."""
    shown = text[:most]
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in shown)
    return shown if len(text) <= most else f"{shown}..."
