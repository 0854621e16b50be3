"""The log, on standard error or in a file. Levels and format can be changed while the server runs.

Foreign text in log lines is escaped and shortened, so that it cannot forge lines or fill the log.

Records take one line each, except for tracebacks on a terminal. The `extra` argument `fields` of a logging call adds
fields to a record. The JSON format has them as keys; in other formats, the message contains the same information.
"""

import json
import logging
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from logging.handlers import WatchedFileHandler
from typing import Any, Final, TextIO, TypeAlias

from modserve.core.configuration.log_settings import LogFormat, LogSettings
from modserve.core.runtime.failures import count_failure
from modserve.core.runtime.log_limit import LogInterval

MOST_NAME: Final = 100
MOST_MESSAGE: Final = 1000
"""Maximum length in characters of names, ids and messages, which may repeat client data."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*m")


def escape(text: str, most: int = 0) -> str:
    """Return the text on one line, with unprintable characters escaped: line separators, bidirectional marks, ...

    Texts longer than `most` characters are cut; 0 for no limit.
    """
    shown = text[:most] if most else text
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in shown)
    return shown if not most or len(text) <= most else f"{shown}..."


def quote(text: str) -> str:
    """Return a name or id in quotes, on one line, and cut if long."""
    return repr(text) if len(text) <= MOST_NAME else f"{text[:MOST_NAME]!r}..."


def colourless(text: str) -> str:
    """Return the text without terminal colour sequences."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def indent(text: str) -> str:
    """Return multi-line text with all lines but the first indented, so that none looks like the start of a record."""
    return "\n    ".join(map(escape, text.replace("\r\n", "\n").split("\n")))


_LETTERS: Final = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "E"}

NAME_LENGTH: Final = 200
"""Maximum length in characters of client-chosen names."""


def traceback_of(record: logging.LogRecord) -> str:
    """Return the traceback or stack of a record; empty if it has none."""
    parts: list[str] = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(_PLAIN.formatException(record.exc_info))
    elif record.exc_text:
        parts.append(record.exc_text)
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)


def moment(seconds: float) -> str:
    """Return date and time in UTC, with microseconds."""
    whole = int(seconds)
    micros = int((seconds - whole) * 1e6)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{micros:06d}Z"


class Iso8601(logging.Formatter):
    """Formatter for time, level, location, message. `multiline`: keep line breaks, indented."""

    def __init__(self, multiline: bool = False) -> None:
        super().__init__()
        self._whole: Callable[[str], str] = indent if multiline else escape

    def format(self, record: logging.LogRecord) -> str:
        text = colourless(_with_traceback(record))
        stamp = f"{moment(record.created)[:-4]}Z"
        return f"{stamp} {record.levelname:7} {escape(record.name)}: {self._whole(text)}"


class Default(logging.Formatter):
    """Formatter for Triton's format, with the text as a JSON string."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%m%d %H:%M:%S", time.gmtime(record.created))
        micros = int(record.created % 1 * 1_000_000)
        place = f"{record.filename}:{record.lineno}"
        text = json_string(colourless(_with_traceback(record)))
        return f"{_LETTERS.get(record.levelno, 'I')}{stamp}.{micros:06d} {record.process} {escape(place)}] {text}"


class Json(logging.Formatter):
    """JSON formatter, one object per line. Everything but ASCII is escaped, so that no character ends a line."""

    def format(self, record: logging.LogRecord) -> str:
        values: dict[str, object] = {
            "time": moment(record.created),
            "level": record.levelname,
            "logger": getattr(record, "own_name", record.name),
            "message": colourless(record.getMessage()),
            "process": record.process,
            "place": f"{record.filename}:{record.lineno}",
        }
        worker = getattr(record, "worker", None)
        if worker is not None:
            values["worker"] = worker
        fields: Mapping[str, object] = getattr(record, "fields", {})
        values.update((key, value) for key, value in fields.items() if key not in values and value not in (None, ""))
        if traceback := traceback_of(record):
            values["traceback"] = colourless(traceback)
        return json.dumps(values, default=str)


def formatter(form: LogFormat, multiline: bool) -> logging.Formatter:
    """Return the formatter for a format; only `ISO8601` supports several lines."""
    if form is LogFormat.ISO8601:
        return Iso8601(multiline)
    return Json() if form is LogFormat.JSON else Default()


def json_string(text: str) -> str:
    """Return a JSON string with printable characters of any script left readable, and others escaped."""
    shown = json.dumps(text, ensure_ascii=False)
    if shown.isprintable():
        return shown
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in shown)


def address_text(client: object) -> str:
    """Return a socket address as text; a dash for none."""
    if isinstance(client, tuple) and len(client) >= 2:
        host, port = client[0], client[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}" if port else str(host)
    return word(str(client)) if client else "-"


def word(name: str) -> str:
    """Return a single word unchanged; other text in quotes, escaped and cut."""
    if len(name) > NAME_LENGTH:
        name = f"{name[:NAME_LENGTH]}..."
    if name.isidentifier():
        return name
    if name.isprintable() and " " not in name and '"' not in name and "=" not in name:
        return name
    return json_string(name)


def _with_traceback(record: logging.LogRecord) -> str:
    message, traceback = record.getMessage(), traceback_of(record)
    return f"{message}\n{traceback}" if traceback else message


_PLAIN: Final = logging.Formatter()


_log = logging.getLogger(__name__)

_OURS = "modserve"
"""The parent of all modserve loggers."""

_ERASE = "\r\x1b[K"
"""Moves to the beginning of a terminal's line, and clears it."""


_MOST = 32 * 1024 * 1024
"""Maximum size in bytes of unwritten lines: a model may print hundreds of thousands of lines at once."""
_OVERHEAD = 64
"""Memory overhead of a text, in bytes."""

_WARN_S = 60.0
"""Seconds between two lines on standard error about a log file that cannot be written."""

PATIENCE_S = 1.0
"""Seconds for writing remaining lines at the end of the process."""

Work: TypeAlias = Callable[[], None]


class LineWriter:
    """Writes lines in order, on a thread of its own, so that a stalled reader blocks no other thread.

    `write` is called with lines; it may block, and raise OSError. While too many lines are unwritten, new ones are
    dropped and counted in `dropped`; `on_flow` gets their number and the reason once lines are written again. Methods
    may be called on any thread.
    """

    def __init__(self, name: str, write: Callable[[str], None], on_flow: Callable[[int, str], None]) -> None:
        self.dropped = 0
        self._name = name
        self._write = write
        self._on_flow = on_flow
        self._reported = 0
        self._reason = ""
        self._size = 0
        self._waiting: deque[str | Work] = deque()
        self._arrival = threading.Condition(threading.RLock())  # reentrant: a Python signal handler may log
        self._thread: threading.Thread | None = None

    def put(self, lines: str) -> None:
        """Queue complete lines, or drop them. Never blocks."""
        with self._arrival:
            if self._size + len(lines) + _OVERHEAD > _MOST:
                self.dropped += 1
                self._reason = self._reason or "they came faster than they could be written"
                return
            self._size += len(lines) + _OVERHEAD
            self.run(lines)

    def run(self, work: str | Work) -> None:
        """Run `work` after the lines queued so far."""
        with self._arrival:
            self._waiting.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._arrival.notify()

    def write(self, lines: str) -> None:
        """Write complete lines after the lines queued so far. Blocks until written; raises OSError."""
        done = threading.Event()
        failure: list[OSError] = []

        def work() -> None:
            try:
                self._write(lines)
            except OSError as error:
                failure.append(error)
            finally:
                done.set()

        self.run(work)
        done.wait()
        if failure:
            raise failure[0]

    def flush(self, seconds: float = PATIENCE_S) -> bool:
        """Wait until the lines queued so far are written; return False if that takes longer."""
        done = threading.Event()
        with self._arrival:
            if self._thread is None or threading.current_thread() is self._thread:
                return True
            self.run(done.set)
        return done.wait(seconds)

    def _run(self) -> None:
        while True:
            with self._arrival:
                while not self._waiting:
                    self._arrival.wait()
                work = self._waiting.popleft()
            try:
                if isinstance(work, str):
                    self._write_or_drop(work)
                else:
                    work()
            except Exception as error:
                count_failure(self._name, error)

    def _write_or_drop(self, lines: str) -> None:
        try:
            self._write(lines)
        except (OSError, ValueError) as error:  # a full disk, a pipe without a reader, a closed stream
            with self._arrival:
                self._size -= len(lines) + _OVERHEAD
                self.dropped += 1
                self._reason = str(error)
            return
        with self._arrival:
            self._size -= len(lines) + _OVERHEAD
            count, reason = self.dropped - self._reported, self._reason
            self._reported, self._reason = self.dropped, ""
        if count:
            self._on_flow(count, reason)


class _WatchedFile(WatchedFileHandler):
    """Handler that ignores `logging.shutdown`, which would wait for a thread that hangs in a write."""

    def flush(self) -> None: ...

    def close(self) -> None: ...


class LogFile:
    """A file for a `LineWriter`. A file that was moved away or removed is opened again under its name."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self._file = _WatchedFile(path, encoding="utf-8", errors="backslashreplace")

    def reopen(self) -> None:
        """Reopen the file. Raises OSError, and then keeps the old file."""
        old, self._file.stream = self._file.stream, self._file._open()
        self._file._statstream()
        if old is not None:
            with suppress(OSError):  # full disk: the unwritten data has been counted
                old.close()

    def write(self, lines: str) -> None:
        self._file.reopenIfNeeded()
        if self._file.stream is None:  # the last attempt to open it failed
            self._file.stream = self._file._open()
        self._file.stream.write(lines)
        self._file.stream.flush()

    def close(self) -> None:
        if self._file.stream is not None:
            self._file.stream.close()
            self._file.stream = None


class TextStream:
    """Standard error or standard output, for a `LineWriter`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        with suppress(OSError, ValueError):  # a stream without a descriptor, as in tests
            # A separate stream: a thread that hangs in a write would hold the lock of the interpreter's stream.
            options: dict[str, Any] = {"encoding": stream.encoding, "errors": "backslashreplace", "closefd": False}
            self._stream = open(stream.fileno(), "w", **options)  # noqa: SIM115 - open as long as the process

    def write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class _Handler(logging.Handler):
    """Formats log lines and queues them. A changing status line may be shown below the others."""

    status = ""

    def __init__(self, target: LogFile | TextStream, terminal: bool) -> None:
        super().__init__()
        self.target = target
        self.terminal = terminal
        self.writer = LineWriter("log", self._write, _report_dropped)
        self._unwritten = LogInterval(_WARN_S)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        self.writer.put(f"{_ERASE}{line}{self.status}" if self.status else line)

    def _write(self, lines: str) -> None:
        try:
            self.target.write(lines)
        except OSError as error:
            if isinstance(self.target, LogFile) and self._unwritten.due(time.monotonic()):
                with suppress(OSError, ValueError):
                    text = f"modserve: the log file cannot be written, and lines are left out until it can: {error}"
                    print(text, file=sys.stderr, flush=True)
            raise

    def show(self, text: str) -> None:
        """Show `text` below all other lines; empty removes it."""
        with self.lock or threading.RLock():
            self.status = text
            self.writer.put(_ERASE + text)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        if self.writer.flush() and isinstance(self.target, LogFile):
            with suppress(OSError):  # not reported any more, as in a write
                self.target.close()
        super().close()


def _report_dropped(count: int, reason: str) -> None:
    _log.warning("%s log lines were left out: %s", f"{count:,}", reason)


class Logs:
    """The log of a process. Python's logging is unchanged until `install`.

    `worker`: number of this process among the workers, if it is one.
    """

    def __init__(self, settings: LogSettings | None = None, worker: int | None = None) -> None:
        self._handler: _Handler | None = None
        self.worker = worker
        self.change(settings or LogSettings())

    @property
    def terminal(self) -> bool:
        """True if the log goes to a terminal."""
        return self._handler is not None and self._handler.terminal

    @property
    def dropped(self) -> int:
        """Number of dropped lines: too many were unwritten, or the write failed."""
        return 0 if self._handler is None else self._handler.writer.dropped

    def install(self) -> None:
        """Send all log output of this process to the settings' file; without one, to standard error.

        A file that was moved away or removed, as by log rotation, is opened again under its name.

        Replaces the handlers of Python's root logger. Other packages are logged from WARNING on, regardless of the
        settings, unless they set the level of their own loggers. Raises OSError if the file cannot be opened.
        """
        file = self.settings.file
        self._stdout = sys.stdout
        self._handler = _Handler(LogFile(file) if file else TextStream(sys.stderr), not file and sys.stderr.isatty())
        self._handler.addFilter(self._is_enabled)
        logging.getLogger().handlers[:] = [self._handler]
        # Levels are for modserve only. Libraries would log every connection, and hpack every header with its secrets.
        logging.getLogger().setLevel(logging.WARNING)
        self.change(self.settings)

    def change(self, settings: LogSettings) -> None:
        """Apply the settings to all later log lines."""
        self.settings = settings
        self._enabled = {
            logging.INFO: settings.info,
            logging.WARNING: settings.warning,
            logging.ERROR: settings.error,
            logging.CRITICAL: settings.error,
        }
        if self._handler is not None:
            multiline = settings.multiline == "true" or (settings.multiline == "auto" and self.terminal)
            self._handler.setFormatter(formatter(settings.format, multiline))
            logging.getLogger(_OURS).setLevel(logging.DEBUG if settings.verbose_level else logging.INFO)

    def reopen(self) -> None:
        """Reopen the file under its name after it was moved away. Never raises nor blocks."""
        handler = self._handler
        if handler is None or not isinstance(file := handler.target, LogFile):
            _log.info("SIGHUP: the log goes to standard error, and there is no file to open anew")
            return

        def work() -> None:
            try:
                file.reopen()
            except OSError as error:
                _log.error("SIGHUP: the log file cannot be opened anew, and the old one stays in use: %s", error)
            else:
                _log.info("SIGHUP: the log file was opened anew")

        handler.writer.run(work)

    @property
    def is_installed(self) -> bool:
        """True if this process's log is modserve's, not that of an embedding program."""
        return self._handler is not None

    def write(self, lines: str) -> None:
        """Write complete, formatted lines, if the log is installed.

        Blocks until written, so call it on a thread that may wait. Raises OSError.
        """
        if self._handler is not None:
            self._handler.writer.write(lines)

    def say(self, text: str) -> None:
        """Write `text` and a newline to standard output, in order with the log lines. Never blocks.

        The server continues when the reader closes its end, as with ``| head``.
        """
        if self._handler is not None:
            self._handler.writer.run(partial(_say, TextStream(self._stdout), text))

    def show(self, text: str) -> None:
        """Show `text` below all other lines of a terminal; empty removes it."""
        if self._handler is not None and self.terminal:
            self._handler.show(text)

    def _is_enabled(self, record: logging.LogRecord) -> bool:
        return self._enabled.get(record.levelno, self.settings.verbose_level > 0)


def _say(stream: TextStream, text: str) -> None:
    with suppress(OSError, ValueError):
        stream.write(text + "\n")
