"""Log lines on standard error or in a file. Their levels and their format can be changed while the server runs."""

import json
import logging
import sys
import time
from logging.handlers import WatchedFileHandler

from modserve.core.log_settings import LogFormat, LogSettings

_LETTERS = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "E"}


class Logs:
    """The log of a process. Python's logging stays as it is until `install`."""

    def __init__(self, settings: LogSettings | None = None) -> None:
        self._handler: logging.Handler | None = None
        self.change(settings or LogSettings())

    def install(self) -> None:
        """Sends everything that this process logs to the settings' file, or to standard error if they name none.

        A file that was moved away or removed, as those do who rotate logs, is opened anew under its name.

        Replaces the handlers of Python's root logger. Raises OSError if the file cannot be opened.
        """
        file = self.settings.file
        self._handler = WatchedFileHandler(file, encoding="utf-8") if file else logging.StreamHandler(sys.stderr)
        self._handler.addFilter(self._is_enabled)
        logging.getLogger().handlers[:] = [self._handler]
        # Verbose logging is about modserve: these libraries would log every connection.
        for name in ("asyncio", "uvicorn", "grpc"):
            logging.getLogger(name).setLevel(logging.WARNING)
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
            self._handler.setFormatter(_FORMATTERS[settings.format])
            logging.getLogger().setLevel(logging.DEBUG if settings.verbose_level else logging.INFO)

    def _is_enabled(self, record: logging.LogRecord) -> bool:
        return self._enabled.get(record.levelno, self.settings.verbose_level > 0)


class _Default(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%m%d %H:%M:%S", time.gmtime(record.created))
        micros = int(record.created % 1 * 1_000_000)
        place = f"{record.filename}:{record.lineno}"
        text = json.dumps(super().format(record), ensure_ascii=False)
        return f"{_LETTERS.get(record.levelno, 'I')}{moment}.{micros:06d} {record.process} {place}] {text}"


class _Iso8601(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")


_FORMATTERS = {LogFormat.DEFAULT: _Default(), LogFormat.ISO8601: _Iso8601()}
