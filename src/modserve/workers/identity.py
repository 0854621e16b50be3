"""The identity of a worker: its number, and where it finds the others."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Self

STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """A worker's number among `count`, from 0 on, and how often that number was started before.

    `directory` is private to the server's user. Each worker has its sockets there.
    """

    index: int
    count: int
    starts: int
    directory: Path

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the identity that `str` writes. Raises ValueError."""
        index, count, starts, directory = text.split(":", 3)
        return cls(int(index), int(count), int(starts), Path(directory))

    def __str__(self) -> str:
        return f"{self.index}:{self.count}:{self.starts}:{self.directory}"

    @property
    def is_first(self) -> bool:
        """True if the worker speaks for all: the first worker, at its first start."""
        return self.index == 0 and self.starts == 0

    @property
    def others(self) -> list[int]:
        return [index for index in range(self.count) if index != self.index]

    def control_socket(self, index: int) -> str:
        """Return the socket at which a worker serves HTTP for itself alone."""
        return str(self.directory / f"{index}.control")

    def sequence_socket(self, index: int) -> str:
        """Return the socket at which a worker takes the requests of its sequences from the others."""
        return str(self.directory / f"{index}.sequences")

    def mark(self, index: int) -> Path:
        """Return a file that is there once a worker has served."""
        return self.directory / f"{index}.served"

    def counts(self, index: int, topic: str) -> Path:
        """Return a file with what a worker and those before it have counted, as they have told of a topic."""
        return self.directory / f"{index}.{topic}"

    @property
    def stopping(self) -> Path:
        """A file that is there when the supervisor ends all workers."""
        return self.directory / STOPPING

    @property
    def draining(self) -> Path:
        """A file that is there when a client has had all workers drained."""
        return self.directory / "draining"

    @property
    def lock(self) -> Path:
        """The file whose lock a worker holds while it changes all of them."""
        return self.directory / "lock"

    @property
    def note(self) -> Path:
        """The file that is there while a worker changes all of them: what it changes."""
        return self.directory / "change"

    def name_in_log(self, record: logging.LogRecord) -> bool:
        """A filter of log records: the line says which worker wrote it."""
        if not record.name.startswith("modserve.worker "):
            record.own_name, record.worker = record.name, self.index
            own, rest = record.name.partition("modserve")[1:]
            record.name = f"modserve.worker {self.index}" + (rest if own else f".{record.name}")
        return True
