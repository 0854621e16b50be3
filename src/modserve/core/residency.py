"""Residency of served models in memory, and their size there. `models/residency/` decides it.

A version stays READY while its model is loaded on demand and evicted: it always takes requests, and requests that
arrive while the model is not in memory wait for it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable


class LoadMode(Enum):
    """Time of a model's load into memory. The value is that of the parameter ``residency.load``."""

    EAGER = "eager"
    """The model is loaded with its version."""
    LAZY = "lazy"
    """The model is loaded with the first request."""


@dataclass(frozen=True, slots=True)
class ResidencyRules:
    """Values of a model's ``residency.`` parameters. None: the server's options apply."""

    load: LoadMode | None = None
    pin: bool = False
    """True to keep the model in memory after its load."""
    idle_ns: int | None = None
    """Idle time in memory without requests; 0: unlimited."""


NO_RULES = ResidencyRules()


class Presence(Enum):
    """Stage of a model on its way into memory and out of it."""

    ABSENT = "not resident"
    WAITING = "waits for memory"
    LOADING = "is being loaded"
    RESIDENT = "resident"
    LEAVING = "is being evicted"


@dataclass(frozen=True, slots=True)
class ResidencyReport:
    """The state of one model version."""

    presence: Presence
    size: int
    """Bytes, as measured when it was loaded last; 0 if it never was."""
    files: int
    """Bytes of the files of its version."""
    pinned: bool
    waiting: int
    """Requests that wait until it is in memory."""
    loads: int
    """Successful loads into memory."""
    failed_loads: int
    evictions: int
    """Evictions for other models, or for lack of use."""
    load_ns: int
    """Total time of its loads, without the waits for memory."""
    waited_ns: int
    """Total time that requests waited for it to be in memory."""
    problem: str = ""
    """Reason of the last failed load, until one succeeds."""

    @property
    def resident(self) -> bool:
        return self.presence is Presence.RESIDENT

    @property
    def text(self) -> str:
        """The report as text for people."""
        size = f", {megabytes(self.size)}" if self.size else ""
        pinned = ", pinned" if self.pinned else ""
        problem = f"; the last load failed: {self.problem}" if self.problem else ""
        return f"{self.presence.value}{size}{pinned}{problem}"


class MemoryLimit(NamedTuple):
    """Memory limit as configured: in bytes, or in percent of the existing memory. Both 0: no limit."""

    size: int = 0
    percent: float = 0.0

    def of(self, memory: int) -> int:
        """Return the limit in bytes; 0: no limit, also if the amount of memory is unknown."""
        return self.size or int(memory * self.percent / 100)


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Memory that the models of a server hold, and its limit."""

    limit: int
    """Bytes that all models together may hold; 0: any number."""
    held: int
    """Bytes that models hold, and the expected bytes of models being loaded."""


NO_MEMORY = MemoryReport(0, 0)


@runtime_checkable
class OnDemand(Protocol):
    """Servable with a model that is loaded into memory and evicted."""

    @property
    def residency(self) -> ResidencyReport: ...

    async def describe(self) -> None:
        """Load the model if that was never done, so that `config`, `config_message` and `labels` are complete.

        Raises why it cannot be loaded.
        """


def residency(servable: object) -> ResidencyReport | None:
    """Return a servable's report; None for one that is always in memory, or has no memory of its own."""
    report = getattr(servable, "residency", None)  # a check for the protocol takes ten times as long
    return report if isinstance(report, ResidencyReport) else None


async def describe(servable: object) -> None:
    """Make the configuration of a servable complete, if it is not yet. Raises as `OnDemand.describe`.

    An `OnDemand`, or what stands before others, has that method.
    """
    work = getattr(servable, "describe", None)  # a check for the protocol takes ten times as long
    if work is not None:
        await work()


def megabytes(size: int) -> str:
    """Format a size for people."""
    return f"{size / 1e6:,.1f} MB".replace(",", " ") if size < 10**10 else f"{size / 1e9:,.1f} GB"
