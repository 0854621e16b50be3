"""Log lines on standard error or in a file. Their levels and their format can be changed while the server runs.

Escapes and shortens foreign texts in log lines, so that they cannot forge lines or fill the log.

Formats of log records: one line each, except for tracebacks on a terminal.

A record may carry more than its message: `fields` makes the argument `extra` of a logging call. The format json has
these as keys; the others have their message alone, which says the same in words.
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
"""The length, in characters, of names and ids, and of messages, which may repeat what the client sent."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*m")


def escape(text: str, most: int = 0) -> str:
    """The text on one line, with everything escaped that is not printable: line separators, bidirectional marks, ...

    Longer than `most` characters, it is cut; 0: it never is.
    """
    shown = text[:most] if most else text
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in shown)
    return shown if not most or len(text) <= most else f"{shown}..."


def quote(text: str) -> str:
    """Return a name or id in quotes, on one line, and not for long."""
    return repr(text) if len(text) <= MOST_NAME else f"{text[:MOST_NAME]!r}..."


def colourless(text: str) -> str:
    """Return the text without the sequences by which libraries colour what they write."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def indent(text: str) -> str:
    """The text on several lines, all but the first of them indented: none looks like the beginning of a record."""
    return "\n    ".join(map(escape, text.replace("\r\n", "\n").split("\n")))


_LETTERS: Final = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "E"}

NAME_LENGTH: Final = 200
"""Characters of what a client has named."""


def traceback_of(record: logging.LogRecord) -> str:
    """Return the traceback of a record, or the stack that it was logged with; empty if it has none."""
    parts: list[str] = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(_PLAIN.formatException(record.exc_info))
    elif record.exc_text:
        parts.append(record.exc_text)
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)


def moment(seconds: float) -> str:
    """Date and time in UTC, with microseconds."""
    whole = int(seconds)
    micros = int((seconds - whole) * 1e6)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{micros:06d}Z"


class Iso8601(logging.Formatter):
    """Time, level, where, what; `multiline`: texts of several lines stay so, indented."""

    def __init__(self, multiline: bool = False) -> None:
        super().__init__()
        self._whole: Callable[[str], str] = indent if multiline else escape

    def format(self, record: logging.LogRecord) -> str:
        text = colourless(_with_traceback(record))
        stamp = f"{moment(record.created)[:-4]}Z"
        return f"{stamp} {record.levelname:7} {escape(record.name)}: {self._whole(text)}"


class Default(logging.Formatter):
    """Triton's form, with the text as a JSON string."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%m%d %H:%M:%S", time.gmtime(record.created))
        micros = int(record.created % 1 * 1_000_000)
        place = f"{record.filename}:{record.lineno}"
        text = json_string(colourless(_with_traceback(record)))
        return f"{_LETTERS.get(record.levelno, 'I')}{stamp}.{micros:06d} {record.process} {escape(place)}] {text}"


class Json(logging.Formatter):
    """JSON formatter, one object a line. All but ASCII is escaped, so that no character ends a line."""

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
    """Return the one for a format; only `ISO8601` is ever on several lines."""
    if form is LogFormat.ISO8601:
        return Iso8601(multiline)
    return Json() if form is LogFormat.JSON else Default()


def json_string(text: str) -> str:
    """Return a JSON string in which people can read what is printable, of whatever script; the rest is escaped."""
    shown = json.dumps(text, ensure_ascii=False)
    if shown.isprintable():
        return shown
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in shown)


def address_text(client: object) -> str:
    """Text of a socket's address in a line; a dash for none."""
    if isinstance(client, tuple) and len(client) >= 2:
        host, port = client[0], client[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}" if port else str(host)
    return word(str(client)) if client else "-"


def word(name: str) -> str:
    """Return it as it is, if it is one word; else in quotes, with what is not printable escaped, and cut."""
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
"""The logger above all of ours."""

_ERASE = "\r\x1b[K"
"""Goes back to the beginning of a terminal's line, and empties it."""


_MOST = 32 * 1024 * 1024
"""Bytes of lines that may wait to be written: a model may print hundreds of thousands of lines at once."""
_OVERHEAD = 64
"""Bytes that a text takes in addition to its characters."""

_WARN_S = 60.0
"""Seconds between two lines on standard error about a log file that cannot be written."""

PATIENCE_S = 1.0
"""Seconds in which what waits is still written at the end of the process."""

Work: TypeAlias = Callable[[], None]


class LineWriter:
    """Writes lines in their order, on a thread of its own: a reader that stops reading holds up no other thread.

    `write` is called with lines, and blocks as long as it likes; it may raise OSError. Lines that come while too many
    wait are left out and counted in `dropped`, and `on_flow` hears how many once lines are written again, with the
    reason. Any thread may call the methods.
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
        self._arrival = threading.Condition(threading.RLock())  # reentrant: a signal handler of Python's may log
        self._thread: threading.Thread | None = None

    def put(self, lines: str) -> None:
        """Have whole lines written, or left out. Never blocks."""
        with self._arrival:
            if self._size + len(lines) + _OVERHEAD > _MOST:
                self.dropped += 1
                self._reason = self._reason or "they came faster than they could be written"
                return
            self._size += len(lines) + _OVERHEAD
            self.run(lines)

    def run(self, work: str | Work) -> None:
        """Have `work` done after the lines so far."""
        with self._arrival:
            self._waiting.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._arrival.notify()

    def write(self, lines: str) -> None:
        """Write whole lines after those so far. Blocks until it is done; raises OSError."""
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
        """Wait until the lines so far are written; False if that takes longer."""
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
        except (OSError, ValueError) as error:  # a full disk, a pipe without a reader, a stream that was closed
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
    """Ignores `logging.shutdown`, which would wait for a thread that hangs in a write."""

    def flush(self) -> None: ...

    def close(self) -> None: ...


class LogFile:
    """A file for a `LineWriter`. One that was moved away or removed is opened anew under its name."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self._file = _WatchedFile(path, encoding="utf-8", errors="backslashreplace")

    def reopen(self) -> None:
        """Open the file anew in any case. Raises OSError, and then goes on with the old file."""
        old, self._file.stream = self._file.stream, self._file._open()
        self._file._statstream()
        if old is not None:
            with suppress(OSError):  # its disk is full: what it has not taken was counted
                old.close()

    def write(self, lines: str) -> None:
        self._file.reopenIfNeeded()
        if self._file.stream is None:  # it could not be opened the last time
            self._file.stream = self._file._open()
        self._file.stream.write(lines)
        self._file.stream.flush()

    def close(self) -> None:
        if self._file.stream is not None:
            self._file.stream.close()
            self._file.stream = None


class TextStream:
    """Standard error, or standard output, for a `LineWriter`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        with suppress(OSError, ValueError):  # a stream without a descriptor, as in tests
            # One of its own: a thread that hangs in a write would hold the lock of the interpreter's.
            options: dict[str, Any] = {"encoding": stream.encoding, "errors": "backslashreplace", "closefd": False}
            self._stream = open(stream.fileno(), "w", **options)  # noqa: SIM115 - open as long as the process

    def write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class _Handler(logging.Handler):
    """Formats the lines of a log, and leaves the rest to the writer. A line that changes may stand below the others."""

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
        """Have `text` below all other lines, until another text, or none, takes its place."""
        with self.lock or threading.RLock():
            self.status = text
            self.writer.put(_ERASE + text)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        if self.writer.flush() and isinstance(self.target, LogFile):
            with suppress(OSError):  # as in a write, and nobody hears of it any more
                self.target.close()
        super().close()


def _report_dropped(count: int, reason: str) -> None:
    _log.warning("%s log lines were left out: %s", f"{count:,}", reason)


class Logs:
    """The log of a process. Python's logging stays as it is until `install`.

    `worker` is the number of this process among the workers, if it is one.
    """

    def __init__(self, settings: LogSettings | None = None, worker: int | None = None) -> None:
        self._handler: _Handler | None = None
        self.worker = worker
        self.change(settings or LogSettings())

    @property
    def terminal(self) -> bool:
        """True if lines go to a terminal, where a person reads them."""
        return self._handler is not None and self._handler.terminal

    @property
    def dropped(self) -> int:
        """Lines that were left out: too many waited to be written, or the write failed."""
        return 0 if self._handler is None else self._handler.writer.dropped

    def install(self) -> None:
        """Sends everything that this process logs to the settings' file, or to standard error if they name none.

        A file that was moved away or removed, as log rotation does, is opened again under its name.

        Replaces the handlers of Python's root logger. Other packages are heard from WARNING on, whatever the settings
        say, unless they set the level of their own loggers. Raises OSError if the file cannot be opened.
        """
        file = self.settings.file
        self._stdout = sys.stdout
        self._handler = _Handler(LogFile(file) if file else TextStream(sys.stderr), not file and sys.stderr.isatty())
        self._handler.addFilter(self._is_enabled)
        logging.getLogger().handlers[:] = [self._handler]
        # The levels are about modserve. Libraries would log every connection, and hpack every header, secrets included.
        logging.getLogger().setLevel(logging.WARNING)
        self.change(self.settings)

    def change(self, settings: LogSettings) -> None:
        """Applies the settings to all later log lines."""
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
        """Open the file again under its name, after it was moved away. Never raises nor blocks."""
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
        """True if this process's log is ours, not that of a program which has us as a library."""
        return self._handler is not None

    def write(self, lines: str) -> None:
        """Write whole lines that are formatted already, if the log is installed.

        Blocks until it is done, so call it on a thread that may wait. Raises OSError.
        """
        if self._handler is not None:
            self._handler.writer.write(lines)

    def say(self, text: str) -> None:
        """Write `text` and a newline to standard output, between the lines of the log. Never blocks.

        Serving goes on when the reader has closed it, as behind ``| head``.
        """
        if self._handler is not None:
            self._handler.writer.run(partial(_say, TextStream(self._stdout), text))

    def show(self, text: str) -> None:
        """Have `text` below all other lines of a terminal, until another text, or none, takes its place."""
        if self._handler is not None and self.terminal:
            self._handler.show(text)

    def _is_enabled(self, record: logging.LogRecord) -> bool:
        return self._enabled.get(record.levelno, self.settings.verbose_level > 0)


def _say(stream: TextStream, text: str) -> None:
    with suppress(OSError, ValueError):
        stream.write(text + "\n")
