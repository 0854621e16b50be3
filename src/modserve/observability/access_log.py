"""The access log: a line for each request, or for a sample.

Lines are formatted on the event loop at the end of each request. A formatting thread would hold the interpreter's lock
for milliseconds: requests would wait for it, and engines appear slow (`benchmarks/traffic.py`, kind i: 20 µs a request
instead of 5). The thread only writes, many lines at a time. Up to `MOST` lines wait in memory; further ones are dropped
and counted in `lost`, with a warning. A slow disk costs lines and delays no request.
"""

import json
import logging
import os
import threading
import time
from collections import deque
from typing import Final, final

import orjson
from mypy_extensions import mypyc_attr

from modserve.core.configuration.log_settings import AccessMode, AccessSettings, LogFormat
from modserve.core.requests import trace_context
from modserve.core.requests.origin import Origin, Proxies
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.wire import grpc_status

from .logging import NAME_LENGTH, PATIENCE_S, Logs, address_text, word

_log = logging.getLogger("modserve.access")

MOST: Final = 32 * 1024
"""Maximum number of unwritten lines: some seconds of the busiest server, in some 10 MB."""

_AT_ONCE: Final = 1024
"""Lines per write."""

_PAUSE_S: Final = 0.1
"""Seconds for which lines are collected."""

_WARN_S: Final = 10.0
"""Seconds between warnings about dropped lines."""

CANCELLED: Final = 499
"""Status logged after a client's disconnect, as in other servers' logs."""


@final
class AccessLogEntry:
    """Data of a completed request. `version` is -1 if unknown; times are monotonic."""

    __slots__ = (
        "call",
        "end_ns",
        "id",
        "model",
        "origin",
        "protocol",
        "queue_ns",
        "received",
        "request_id",
        "responses",
        "sent",
        "start_ns",
        "status",
        "tenant",
        "timing",
        "trace",
        "version",
    )

    def __init__(
        self,
        protocol: str,
        origin: Origin,
        call: str,
        model: str,
        version: int,
        status: int,
        received: int,
        sent: int,
        responses: int,
        id: str,
        request_id: str,
        start_ns: int,
        end_ns: int,
        queue_ns: int,
        timing: ExecutionTiming | None,
        trace: str,
        tenant: str,
    ) -> None:
        self.protocol = protocol
        self.origin = origin
        self.call = call
        self.model = model
        self.version = version
        self.status = status
        self.received = received
        self.sent = sent
        self.responses = responses
        self.id = id
        self.request_id = request_id
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.queue_ns = queue_ns
        self.timing = timing
        self.trace = trace
        self.tenant = tenant


@mypyc_attr(allow_interpreted_subclasses=True)
class AccessLog:
    """The access log. `record` is for the event loop's thread; call `close` at the end.

    `logs`: the process's log, with file, format and levels.
    """

    def __init__(
        self,
        settings: AccessSettings,
        logs: Logs | None = None,
        most: int = MOST,
        start: bool = True,
        proxies: Proxies | None = None,
    ) -> None:
        """`start`: write on a thread; otherwise nothing is written until `drain` is called."""
        self.identifies = settings.identify
        """True if each request gets an id, even without a line."""
        self._rate = {AccessMode.ALL: 1, AccessMode.SAMPLED: settings.rate}.get(settings.mode, 0)
        self._logs = logs or Logs()
        self._proxies = proxies or Proxies()
        self._most = most
        self._count = 0
        self._waiting: deque[str | AccessLogEntry] = deque()
        """Lines; or entries, for formatting by another program's Python logging."""
        self.lost = 0
        """Lines dropped because too many waited."""
        self._lost_said = 0
        self._next_warning = 0.0
        self._writer: threading.Thread | None = None
        self._due = threading.Event()
        self._ended = threading.Event()
        self._asleep = start
        self._second = -1
        self._date = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._waiting)} lines wait, {self.lost} were left out)"

    def record(
        self,
        protocol: str,
        origin: Origin,
        call: str,
        model: str,
        version: int,
        status: int,
        received: int,
        sent: int,
        responses: int,
        id: str,
        request_id: str,
        start_ns: int,
        queue_ns: int,
        timing: ExecutionTiming | None,
        trace: str = "",
        tenant: str = "",
    ) -> None:
        """Log a completed request.

        `protocol` is ``HTTP`` or ``gRPC``; `call` the called path or RPC; `status` the protocol's. `received` and
        `sent`: bytes of bodies or messages. `start_ns`: arrival; `queue_ns`: enqueueing, 0 if there was none. `trace`:
        id of its own trace, if any; otherwise the writing thread looks up the client's. `tenant` is empty if there is
        none.
        """
        if not self._rate or not self._logs.settings.info:
            return
        self._count += 1
        if self._count < self._rate:
            return
        self._count = 0
        if len(self._waiting) >= self._most:
            self.lost += 1
            return
        end_ns = time.monotonic_ns()
        about = protocol, origin, call, model, version, status, received, sent, responses, id, request_id
        self.add(AccessLogEntry(*about, start_ns, end_ns, queue_ns, timing, trace, tenant))

    def add(self, entry: AccessLogEntry) -> None:
        """Queue the line of a logged request."""
        logs = self._logs
        line: str | AccessLogEntry = entry
        if logs.is_installed:
            try:
                line = _LINES[logs.settings.format](self, entry, time.time_ns())
            except Exception as error:  # a failure to log must not affect the response
                self.lost += 1
                self._warn(f"a line could not be formatted: {error}")
                return
        self._waiting.append(line)
        if self._asleep:
            self._wake()

    def _wake(self) -> None:
        self._asleep = False
        if self._writer is None:
            self._writer = threading.Thread(target=self._run, name="access-log", daemon=True)
            self._writer.start()
        self._due.set()

    def close(self) -> None:
        """Write waiting lines and stop. Blocks for a few seconds at most; lines still unwritten then are lost."""
        self._ended.set()
        self._due.set()
        if self._writer is not None:
            self._writer.join(PATIENCE_S)
        if self._writer is None or not self._writer.is_alive():
            self.drain()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._due.wait()
            self._due.clear()
            self._ended.wait(_PAUSE_S)
            while self.drain():
                self._ended.wait(_PAUSE_S)
            self._asleep = True
            if self._waiting:  # one arrived just before
                self._asleep = False
                self._due.set()

    def drain(self) -> int:
        """Write all waiting lines, and return their number. On any thread, one at a time."""
        waiting, count = self._waiting, 0
        while waiting:
            some = [waiting.popleft() for _ in range(min(len(waiting), _AT_ONCE))]
            count += len(some)
            try:
                self._write(some)
            except Exception as error:  # probably a full disk: the server goes on
                self.lost += len(some)
                self._warn(f"the log cannot be written: {error}")
        if self.lost > self._lost_said:
            self._warn("requests come faster than the log can be written")
        return count

    def _write(self, some: list[str | AccessLogEntry]) -> None:
        lines = [each for each in some if isinstance(each, str)]
        if lines:
            lines.append("")
            self._logs.write("\n".join(lines))
        for entry in some:
            if not isinstance(entry, str):
                client = self.client_of(entry)
                _log.info("%s", text(entry, client), extra={"fields": values(entry, client)})

    def _warn(self, why: str) -> None:
        now = time.monotonic()
        if now < self._next_warning:
            return
        self._next_warning = now + _WARN_S
        count, self._lost_said = self.lost - self._lost_said, self.lost
        _log.warning("%s lines about requests were left out, %d in total: %s", f"{count:,}", self.lost, why)

    # Format of a line

    def second(self, wall_ns: int) -> str:
        """Return the date and time of a line without its fraction."""
        second = wall_ns // 1_000_000_000
        if second != self._second:
            self._second = second
            self._date = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return self._date

    def client_of(self, entry: AccessLogEntry) -> str:
        return address_text(self._proxies.client(entry.origin))

    @property
    def worker(self) -> int | None:
        return self._logs.worker


def values(entry: AccessLogEntry, client: str) -> dict[str, object]:
    """Return a line's values by their keys in the JSON format, without unknown or inapplicable ones."""
    said: dict[str, object] = {"protocol": entry.protocol, "client": client, "call": entry.call}
    if entry.origin.caller:
        said["caller"] = entry.origin.caller[:NAME_LENGTH]
    if entry.tenant:
        said["tenant"] = entry.tenant if len(entry.tenant) <= NAME_LENGTH else entry.tenant[:NAME_LENGTH]
    if entry.model:
        said["model"] = entry.model if len(entry.model) <= NAME_LENGTH else entry.model[:NAME_LENGTH]
    if entry.version >= 0:
        said["version"] = entry.version
    said["status"] = _status(entry)
    said["request_bytes"] = entry.received
    said["response_bytes"] = entry.sent
    if entry.responses != 1:
        said["responses"] = entry.responses
    timing = entry.timing
    if timing is not None and timing.compute_start_ns:
        said["batch_size"] = timing.batch_size
        if entry.queue_ns:
            said["queue_us"] = (timing.compute_start_ns - entry.queue_ns) // 1000
        said["compute_us"] = ((timing.compute_end_ns or entry.end_ns) - timing.compute_start_ns) // 1000
    said["total_us"] = (entry.end_ns - entry.start_ns) // 1000
    if entry.id:
        said["id"] = entry.id if len(entry.id) <= NAME_LENGTH else entry.id[:NAME_LENGTH]
    if entry.request_id:
        said["request_id"] = entry.request_id
    if trace_id := _trace_id(entry):
        said["trace_id"] = trace_id
    if agent := entry.origin.agent:
        said["user_agent"] = agent[:NAME_LENGTH]
    return said


def text(entry: AccessLogEntry, client: str) -> str:
    """Return the values as text: the client and the call, then ``key=value``.

    Building a line from `values` would take half as long again: 4 µs for each logged request.
    """
    line = f"{entry.protocol} {client} {word(entry.call)}"
    if entry.origin.caller:
        line += f" caller={word(entry.origin.caller)}"
    if entry.tenant:
        line += f" tenant={word(entry.tenant)}"
    if entry.model:
        line += f" model={word(entry.model)}"
    if entry.version >= 0:
        line += f" version={entry.version}"
    line += f" status={_status(entry)} request_bytes={entry.received} response_bytes={entry.sent}"
    if entry.responses != 1:
        line += f" responses={entry.responses}"
    timing = entry.timing
    if timing is not None and timing.compute_start_ns:
        line += f" batch_size={timing.batch_size}"
        if entry.queue_ns:
            line += f" queue_us={(timing.compute_start_ns - entry.queue_ns) // 1000}"
        compute_ns = (timing.compute_end_ns or entry.end_ns) - timing.compute_start_ns
        line += f" compute_us={compute_ns // 1000}"
    line += f" total_us={(entry.end_ns - entry.start_ns) // 1000}"
    if entry.id:
        line += f" id={word(entry.id)}"
    if entry.request_id:
        line += f" request_id={word(entry.request_id)}"
    if trace_id := _trace_id(entry):
        line += f" trace_id={trace_id}"
    if agent := entry.origin.agent:
        line += f" user_agent={word(agent)}"
    return line


def _trace_id(entry: AccessLogEntry) -> str:
    return entry.trace or trace_context.id_of(entry.origin.trace)


def _status(entry: AccessLogEntry) -> object:
    status = entry.status
    if entry.protocol != "gRPC":
        return status
    return grpc_status.name_of(status)


def _iso8601(log: AccessLog, entry: AccessLogEntry, wall_ns: int) -> str:
    worker = log.worker
    name = "modserve.access" if worker is None else f"modserve.worker {worker}.access"
    millis = wall_ns // 1_000_000 % 1000
    return f"{log.second(wall_ns)}.{millis:03d}Z INFO    {name}: {text(entry, log.client_of(entry))}"


def _default(log: AccessLog, entry: AccessLogEntry, wall_ns: int) -> str:
    date = log.second(wall_ns)
    micros = wall_ns // 1000 % 1_000_000
    said = text(entry, log.client_of(entry)).replace("\\", "\\\\").replace('"', '\\"')  # printable
    stamp = f"{date[5:7]}{date[8:10]} {date[11:]}.{micros:06d}"
    return f'I{stamp} {os.getpid()} access] "{said}"'


def _json(log: AccessLog, entry: AccessLogEntry, wall_ns: int) -> str:
    micros = wall_ns // 1000 % 1_000_000
    whole: dict[str, object] = {
        "time": f"{log.second(wall_ns)}.{micros:06d}Z",
        "level": "INFO",
        "logger": "modserve.access",
        "message": "request",
        "process": os.getpid(),
        "place": "access",
    }
    if log.worker is not None:
        whole["worker"] = log.worker
    whole.update(values(entry, log.client_of(entry)))
    try:
        line = orjson.dumps(whole)
    except TypeError:  # text with lone surrogates, from a client's bytes
        return json.dumps(whole)
    return line.decode() if line.isascii() else json.dumps(whole)  # escaped, so that no character ends the line


_LINES: Final = {LogFormat.ISO8601: _iso8601, LogFormat.DEFAULT: _default, LogFormat.JSON: _json}


def access_log(settings: AccessSettings, logs: Logs | None, proxies: Proxies | None = None) -> AccessLog | None:
    """Return the access log for these settings; None if it would have no effect."""
    useful = settings.identify or settings.mode in (AccessMode.SAMPLED, AccessMode.ALL)
    return AccessLog(settings, logs, proxies=proxies) if useful else None
