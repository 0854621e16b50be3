"""What is logged and in which form (protocol: logging extension)."""

import enum
from dataclasses import dataclass


class LogFormat(enum.Enum):
    """How a line looks; the value is the protocol's name of it."""

    DEFAULT = "default"
    """As Triton's: level, date and time, process, place and the message in quotes, always on one line."""
    ISO8601 = "ISO8601"
    """Time, level, where, what."""
    JSON = "json"
    """An object, with what a request was about as its keys."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The switches are of one level each; a `verbose_level` above 0 means debugging."""

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0
    format: LogFormat = LogFormat.ISO8601
    file: str = ""
    """Where lines are added, in place of standard error. It is chosen at the start, and stays."""
    multiline: str = "auto"
    """Whether tracebacks have lines of their own in the format ISO8601: true, false, or auto, on a terminal only."""


class AccessMode(enum.Enum):
    """Which requests get a line in the log; the value is that of the option."""

    OFF = "off"
    ERRORS = "errors"
    """Those that fail, and only so many of them a second."""
    SAMPLED = "sampled"
    """Also one of so many others."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """`rate`: one of so many requests is logged in mode SAMPLED. `identify`: each request gets an id, logged or not."""

    mode: AccessMode = AccessMode.ERRORS
    rate: int = 100
    identify: bool = False
