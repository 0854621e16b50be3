"""Log lines on standard error or in a file. Their levels and their format can be changed while the server runs."""

import logging
import sys
import threading
from logging.handlers import WatchedFileHandler
from typing import TextIO

from modserve.core.configuration.log_settings import LogSettings

from .log_formats import formatter

_log = logging.getLogger(__name__)

_OURS = "modserve"
"""The logger above all of ours."""

_ERASE = "\r\x1b[K"
"""Goes back to the beginning of a terminal's line, and empties it."""


class LogFile(WatchedFileHandler):
    """A file that was moved away or removed is opened anew under its name, and with `reopen` in any case."""

    def reopen(self) -> None:
        """Raises OSError, and then goes on with the old file."""
        with self.lock or threading.RLock():
            old = self.stream
            self.stream = self._open()
            self._statstream()
            if old is not None:
                old.close()

    def add(self, lines: str) -> None:
        """Write whole lines, on any thread. Raises OSError."""
        with self.lock or threading.RLock():
            stream = self.current()
            stream.write(lines)
            stream.flush()

    def current(self) -> TextIO:
        """The stream that lines go to now. For those who hold the lock."""
        self.reopenIfNeeded()
        if self.stream is None:
            self.stream = self._open()
        return self.stream


class _Stream(logging.StreamHandler[TextIO]):
    """Standard error. On a terminal, a line that changes may stand below the others."""

    status = ""

    def emit(self, record: logging.LogRecord) -> None:
        if not self.status:
            super().emit(record)
            return
        self.stream.write(_ERASE)
        super().emit(record)
        self.stream.write(self.status)
        self.flush()

    def show(self, text: str) -> None:
        """Have `text` below all other lines, until another text, or none, takes its place."""
        with self.lock or threading.RLock():
            self.stream.write(_ERASE + text)
            self.status = text
            self.flush()

    def current(self) -> TextIO:
        return self.stream


class Logs:
    """The log of a process. Python's logging stays as it is until `install`.

    `worker` is the number of this process among the workers, if it is one.
    """

    def __init__(self, settings: LogSettings | None = None, worker: int | None = None) -> None:
        self._handler: LogFile | _Stream | None = None
        self.worker = worker
        self.change(settings or LogSettings())

    @property
    def terminal(self) -> bool:
        """Whether lines go to a terminal, where a person reads them."""
        return isinstance(self._handler, _Stream) and self._handler.stream.isatty()

    def install(self) -> None:
        """Sends everything that this process logs to the settings' file, or to standard error if they name none.

        A file that was moved away or removed, as those do who rotate logs, is opened anew under its name.

        Replaces the handlers of Python's root logger. Other packages are heard from WARNING on, whatever the settings
        say, unless they set the level of their own loggers. Raises OSError if the file cannot be opened.
        """
        file = self.settings.file
        self._handler = LogFile(file, encoding="utf-8", errors="backslashreplace") if file else _Stream(sys.stderr)
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
        """Open the file anew under its name, as those want who have moved it away. Never raises."""
        handler = self._handler
        if not isinstance(handler, LogFile):
            _log.info("SIGHUP: the log goes to standard error, and there is no file to open anew")
            return
        try:
            handler.reopen()
        except OSError as error:
            _log.error("SIGHUP: the log file cannot be opened anew, and the old one stays in use: %s", error)
        else:
            _log.info("SIGHUP: the log file was opened anew")

    def write(self, lines: str) -> bool:
        """Add whole lines that are formatted already, on any thread; False where Python's logging is not ours.

        Raises OSError.
        """
        handler = self._handler
        if handler is None:
            return False
        with handler.lock or threading.RLock():
            stream = handler.current()
            stream.write(lines)
            stream.flush()
        return True

    def show(self, text: str) -> None:
        """Have `text` below all other lines of a terminal, until another text, or none, takes its place."""
        if isinstance(self._handler, _Stream) and self.terminal:
            self._handler.show(text)

    def _is_enabled(self, record: logging.LogRecord) -> bool:
        return self._enabled.get(record.levelno, self.settings.verbose_level > 0)
