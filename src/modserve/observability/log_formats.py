"""Formats of log records: one line each, except for tracebacks on a terminal.

A record may carry more than its message: `fields` makes the argument `extra` of a logging call. The format json has
these as keys; the others have their message alone, which says the same in words.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from modserve.core.configuration.log_settings import LogFormat

from .log_text import colourless, escaped, indented

_LETTERS: Final = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "E"}

NAME_LENGTH: Final = 200
"""Characters of what a client has named."""


def traceback_of(record: logging.LogRecord) -> str:
    """The traceback of a record, or the stack that it was logged with; empty if it has none."""
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
        self._whole: Callable[[str], str] = indented if multiline else escaped

    def format(self, record: logging.LogRecord) -> str:
        text = colourless(_with_traceback(record))
        stamp = f"{moment(record.created)[:-4]}Z"
        return f"{stamp} {record.levelname:7} {escaped(record.name)}: {self._whole(text)}"


class Default(logging.Formatter):
    """As Triton's, with the text as a JSON string."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%m%d %H:%M:%S", time.gmtime(record.created))
        micros = int(record.created % 1 * 1_000_000)
        place = f"{record.filename}:{record.lineno}"
        text = json_string(colourless(_with_traceback(record)))
        return f"{_LETTERS.get(record.levelno, 'I')}{stamp}.{micros:06d} {record.process} {escaped(place)}] {text}"


class Json(logging.Formatter):
    """One object a line. All but ASCII is escaped, so that nothing in it ends a line."""

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
    """The one for a format; only `ISO8601` is ever on several lines."""
    if form is LogFormat.ISO8601:
        return Iso8601(multiline)
    return Json() if form is LogFormat.JSON else Default()


def json_string(text: str) -> str:
    """A JSON string in which people can read what is printable, of whatever script; the rest is escaped."""
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
