"""The audit log: a line of JSON for each call that changes the server's models or settings, including refused ones.

A thread writes the lines in order, so that a slow disk delays no call. Write failures go to the server's log, and calls
continue. As any client can cause refusals, lines about unknown callers are limited per second.
"""

import json
import logging
import time
from collections.abc import Mapping
from typing import Final

from modserve.core.requests.origin import Origin, Proxies
from modserve.core.runtime.log_limit import LogInterval

from .logging import LineWriter, LogFile, address_text

_log = logging.getLogger("modserve.audit")

TO_LOG: Final = "log"
"""Target for the server's log instead of a file."""
_MOST_UNKNOWN: Final = 10
"""Lines per second about refused unknown callers."""
_LONGEST: Final = 200
_SECOND_NS: Final = 1_000_000_000


class AuditLog:
    """Audit log, for the event loop's thread. Raises OSError if the file cannot be opened. Call `close` at the end.

    `target`: a file, or `TO_LOG`. `worker`: number of this process among several. `proxies`: trusted to report clients'
    addresses.
    """

    def __init__(self, target: str, worker: int | None = None, proxies: Proxies | None = None) -> None:
        self._proxies = proxies or Proxies()
        self._file = None if target == TO_LOG else LogFile(target)
        self._writer = None if self._file is None else LineWriter("audit-log", self._write, self._report_dropped)
        self._worker = worker
        self._left_out = 0
        """Lines dropped since the last written one."""
        self._unknown = 0
        self._second_ns = 0
        self._unwritten = LogInterval()

    def record(self, values: Mapping[str, object], origin: Origin, *, known: bool) -> None:
        """Log a finished call. `values`: its keys; None and empty values are omitted, long texts are cut.

        `known`: the caller is known, or the call has succeeded.
        """
        now_ns = time.time_ns()
        if not known and not self._has_room(now_ns):
            self._left_out += 1
            return
        micros, seconds = now_ns // 1000 % 1_000_000, now_ns // _SECOND_NS
        line: dict[str, object] = {"time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micros:06d}Z"}
        if self._worker is not None:
            line["worker"] = self._worker
        line["client"] = address_text(self._proxies.client(origin))
        line.update((key, _cut(value)) for key, value in values.items() if value not in (None, ""))
        if self._left_out:
            line["left_out"], self._left_out = self._left_out, 0
        text = json.dumps(line)
        if self._writer is None:
            _log.info("%s", text, extra={"fields": line})
        else:
            self._writer.put(text + "\n")

    @property
    def dropped(self) -> int:
        """Number of lines missing from the file: too many were unwritten, or the write failed."""
        return 0 if self._writer is None else self._writer.dropped

    def reopen(self) -> None:
        """Reopen the file under its name. Never raises nor blocks."""
        if self._writer is not None:
            self._writer.run(self._reopen)

    def close(self) -> None:
        """Write waiting lines and stop. Blocks for a second at most; lines that cannot be written by then are lost."""
        if self._file is None or self._writer is None or not self._writer.flush():
            return
        try:
            self._file.close()
        except OSError as error:
            self._warn(error)

    def _has_room(self, now_ns: int) -> bool:
        if not 0 <= now_ns - self._second_ns < _SECOND_NS:
            self._second_ns, self._unknown = now_ns, 0
        self._unknown += 1
        return self._unknown <= _MOST_UNKNOWN

    def _write(self, lines: str) -> None:
        assert self._file is not None, "the writer is that of a file: this is a bug"
        try:
            self._file.write(lines)
        except OSError as error:
            self._warn(error)
            raise

    def _reopen(self) -> None:
        assert self._file is not None, "the writer is that of a file: this is a bug"
        try:
            self._file.reopen()
        except OSError as error:
            _log.error("SIGHUP: the audit log cannot be opened anew, and the old file stays in use: %s", error)

    def _report_dropped(self, count: int, reason: str) -> None:
        _log.error("%s lines of the audit log were left out: %s", f"{count:,}", reason)

    def _warn(self, error: OSError) -> None:
        if self._unwritten.due(time.monotonic()):
            _log.error("the audit log cannot be written: %s", error)


def _cut(value: object) -> object:
    return value[:_LONGEST] + "..." if isinstance(value, str) and len(value) > _LONGEST else value
