"""Log levels, format and destination (protocol: logging extension)."""

import enum
from dataclasses import dataclass


class LogFormat(enum.Enum):
    """Format of a log line; the value is the protocol's name of it."""

    DEFAULT = "default"
    """Triton's format: level, date and time, process, place and the message in quotes, always on one line."""
    ISO8601 = "ISO8601"
    """Time, level, where, what."""
    JSON = "json"
    """JSON object, with the details of a request as its keys."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Log settings with a switch per level; a `verbose_level` above 0 means debugging."""

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0
    format: LogFormat = LogFormat.ISO8601
    file: str = ""
    """File to append to, in place of standard error. It is set at the start, and cannot change."""
    multiline: str = "auto"
    """Separate lines for tracebacks in the format ISO8601: true, false, or auto, which means on a terminal only."""


class AccessMode(enum.Enum):
    """Selection of the requests to log; the value is that of the option."""

    OFF = "off"
    ERRORS = "errors"
    """Failed requests, up to a limit per second."""
    SAMPLED = "sampled"
    """Failed requests, and one in `rate` others."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Access log: one in `rate` requests in mode SAMPLED. `identify`: each request gets an id, logged or not."""

    mode: AccessMode = AccessMode.ERRORS
    rate: int = 100
    identify: bool = False
