"""One log line for each request that failed, without what clients send filling the log or forging its lines."""

import asyncio
import logging
import math
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

LINES_PER_SECOND = 10
"""Requests that fail beyond that are counted, and their number is logged once the second is over."""

_MOST_NAME = 100
_MOST_MESSAGE = 1000
"""Characters of names and ids, and of messages. They may repeat what the client sent."""


class FailureLog:
    """Writes at most `LINES_PER_SECOND` lines a second at level INFO. For the event loop's thread.

    `clock` gives seconds. `call_later` takes seconds and what to call then; by default the running loop's.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._second = -math.inf
        """When the second began whose lines are counted."""
        self._lines = 0
        self._left_out = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._lines} lines in this second, {self._left_out} left out)"

    def record(
        self, protocol: str, model: str, version: int | str | None, request_id: str, status: object, message: str
    ) -> None:
        """A request of `protocol` (``HTTP`` or ``gRPC``) was answered with `status`, which is no success.

        `model`, `version` and `request_id` are as the client gave them, empty or None where it gave none or where they
        are not known. Control characters in them are escaped, and long texts are cut.
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
                later(self._second + 1.0 - now, self._tell_left_out)
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

    def _tell_left_out(self) -> None:
        count, self._left_out = self._left_out, 0
        _log.info("and %s more failed request%s", f"{count:,}", "" if count == 1 else "s")


def _quoted(text: str) -> str:
    return repr(text) if len(text) <= _MOST_NAME else f"{text[:_MOST_NAME]!r}..."


def _escaped(text: str, most: int) -> str:
    """On one line: nothing that is not printable is left, line separators and bidirectional marks included."""
    shown = text[:most]
    if not shown.isprintable():
        shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in shown)
    return shown if len(text) <= most else f"{shown}..."
