"""Identity of a worker: its number, and the files and sockets shared with the others."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Self

STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """A worker's number among `count`, from 0 on, and the number of earlier starts of that number.

    `directory` is private to the server's user, and contains each worker's sockets.
    """

    index: int
    count: int
    starts: int
    directory: Path

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text written by `str`. Raises ValueError."""
        index, count, starts, directory = text.split(":", 3)
        return cls(int(index), int(count), int(starts), Path(directory))

    def __str__(self) -> str:
        return f"{self.index}:{self.count}:{self.starts}:{self.directory}"

    @property
    def is_first(self) -> bool:
        """True if the worker represents all: the first worker, at its first start."""
        return self.index == 0 and self.starts == 0

    @property
    def others(self) -> list[int]:
        return [index for index in range(self.count) if index != self.index]

    def control_socket(self, index: int) -> str:
        """Return the socket at which a single worker serves HTTP."""
        return str(self.directory / f"{index}.control")

    def sequence_socket(self, index: int) -> str:
        """Return the socket at which a worker receives requests of its sequences from the others."""
        return str(self.directory / f"{index}.sequences")

    def mark(self, index: int) -> Path:
        """Return a file that exists once a worker has served."""
        return self.directory / f"{index}.served"

    def counts(self, index: int, topic: str) -> Path:
        """Return a file with the counts of a worker and its predecessors, as last reported for a topic."""
        return self.directory / f"{index}.{topic}"

    @property
    def stopping(self) -> Path:
        """File that exists when the supervisor ends all workers."""
        return self.directory / STOPPING

    @property
    def draining(self) -> Path:
        """File that exists when a client has started the drain of all workers."""
        return self.directory / "draining"

    @property
    def lock(self) -> Path:
        """Lock file, held by a worker while it changes all of them."""
        return self.directory / "lock"

    @property
    def note(self) -> Path:
        """File that exists while a worker changes all of them, with a description of the change."""
        return self.directory / "change"

    def name_in_log(self, record: logging.LogRecord) -> bool:
        """Add the worker's number to a log record; a logging filter."""
        if not record.name.startswith("modserve.worker "):
            record.own_name, record.worker = record.name, self.index
            own, rest = record.name.partition("modserve")[1:]
            record.name = f"modserve.worker {self.index}" + (rest if own else f".{record.name}")
        return True
