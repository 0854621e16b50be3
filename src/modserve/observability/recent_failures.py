"""The latest failed requests, for people to look at. Clients can neither fill nor grow this record."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MOST_FAILURES = 100
"""Different failures that are kept; the one that came longest ago makes room."""
_MOST_NAME = 100
_MOST_MESSAGE = 1000
"""The length, in characters, of names and ids, and of messages, which may repeat what the client sent."""


@dataclass(slots=True, eq=False)
class RecentFailure:
    """Requests that failed alike: by protocol, model, version, status and message. Texts may have several lines."""

    protocol: str
    model: str
    version: str
    status: str
    message: str
    request_id: str = ""
    """Of the last one."""
    count: int = 0
    first_ms: int = 0
    """Unix time, of the first one since these are kept."""
    last_ms: int = 0


class RecentFailures:
    """A bounded record of failures. For the event loop's thread. `clock` returns Unix time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str, str, str, str], RecentFailure] = OrderedDict()
        """The latest at the end."""
        self.total = 0
        """All failures since the start, also those that are not kept any more."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._failures)} kept, {self.total} in all)"

    def add(
        self, protocol: str, model: str, version: int | str | None, request_id: str, status: object, message: str
    ) -> None:
        """Keep a failure; the arguments are those of `FailureLog.record`."""
        self.total += 1
        texts = (
            protocol,
            _shown(model, _MOST_NAME),
            "" if version is None else _shown(str(version), _MOST_NAME),
            str(status),
            _shown(message, _MOST_MESSAGE),
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
        failure.request_id = _shown(request_id, _MOST_NAME)

    def latest(self) -> list[RecentFailure]:
        """Those that are kept, the latest first."""
        return list(reversed(self._failures.values()))


def _shown(text: str, most: int) -> str:
    """The text with everything escaped that people cannot see, but for line breaks; long ones are cut."""
    cut = text[:most]
    if not cut.isprintable():
        cut = "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in cut)
    return cut if len(text) <= most else f"{cut}…"
