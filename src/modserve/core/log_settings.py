"""What is logged and in which form (protocol: logging extension)."""

import enum
from dataclasses import dataclass


class LogFormat(enum.Enum):
    """How a line looks; the value is the protocol's name of it."""

    DEFAULT = "default"
    """As Triton's: level, date and time, process, place and the message in quotes, always on one line."""
    ISO8601 = "ISO8601"
    """Time, level, where, what."""


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
