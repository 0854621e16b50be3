"""Index of recorded requests in order of arrival: their places in files, and which of them can be replayed.

Requests of a sequence only make sense together: from its start on, and without a gap. A request that cannot be sent
blocks the later ones of its sequence, until the sequence starts again.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from modserve.core.errors import Code, invalid
from modserve.recording.record import FormatError, RequestRecord, decode, read_head

SequenceName: TypeAlias = tuple[str, str, str]
"""A model, a tenant and an id."""

REDACTED: Final = "an input is redacted"
UNSOUND: Final = "the content of an input is not what its datatype and shape say"
UNANSWERED: Final = "it was cancelled, refused or too late"
INCOMPLETE: Final = "its sequence is incomplete"
CUT: Final = "its responses are incomplete"

_UNANSWERED: Final = frozenset({Code.CANCELLED, Code.UNAVAILABLE})
"""Failures caused by a momentary condition, not by the model."""


@dataclass(slots=True, eq=False)
class RecordPlace:
    """A record in a file. `hindrance` is why it cannot be sent again; empty if it can."""

    path: Path
    line: int
    offset: int
    size: int
    run: str
    model: str
    number: int
    at_us: int
    hindrance: str = ""
    sequence: SequenceName | None = None
    starts: bool = False
    has_left_out: bool = False
    """True if the record lacks parameters that may have been headers."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"

    def read(self) -> RequestRecord:
        """Read the record. Raises FormatError, OSError."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return decode(file.read(self.size), self.model)


@dataclass(slots=True, eq=False)
class RecordIndex:
    """Places of records in files. `remarks` are the files' faults."""

    files: int = 0
    places: list[RecordPlace] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the files among `paths` and below them. Raises INVALID_ARG."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.rglob("*.jsonl"))
            if not inside:
                raise invalid(f"no files of recorded requests (*.jsonl) in {path}")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise invalid(f"there is no file {path}")
    return list(dict.fromkeys(files))


def index_of(files: Iterable[Path]) -> RecordIndex:
    """Index the files. Raises INVALID_ARG for an unreadable file or another format."""
    index = RecordIndex()
    for path in files:
        index.files += 1
        index.places += _places(path, index.remarks)
    index.places.sort(key=lambda place: (place.at_us, place.run, place.number))
    check_sequences(index.places)
    return index


def _places(path: Path, remarks: list[str]) -> Iterator[RecordPlace]:
    try:
        with path.open("rb") as file:
            first = file.readline()
            if not first.endswith(b"\n"):
                remarks.append(f"{path} has no complete line")
                return
            head = read_head(first)
            offset = len(first)
            for number, line in enumerate(file, 2):
                place = RecordPlace(path, number, offset, len(line), head.run, head.model, 0, 0)
                offset += len(line)
                if not line.endswith(b"\n"):
                    remarks.append(f"{place} is not complete: the server ended while it wrote it")
                    return
                try:
                    _describe(place, decode(line, head.model))
                except FormatError as error:
                    remarks.append(f"{place} is left out: {error}")
                else:
                    yield place
    except FormatError as error:
        raise invalid(f"{path}: {error}") from None
    except OSError as error:
        raise invalid(f"cannot read {path}: {error.strerror}") from None


def _describe(place: RecordPlace, record: RequestRecord) -> None:
    place.number, place.at_us = record.number, record.at_us
    place.has_left_out = bool(record.left_out)
    id = record.parameters.get("sequence_id")
    if id:
        place.sequence = (record.model, record.tenant, f"{type(id).__name__} {id}")
        place.starts = record.parameters.get("sequence_start") is True
    if any(each.content is None for each in record.inputs.values()):
        place.hindrance = REDACTED
    elif not all(each.is_sound for each in record.inputs.values()):
        place.hindrance = UNSOUND
    elif any(each.code in _UNANSWERED for each in record.outcomes):
        place.hindrance = UNANSWERED


def check_sequences(places: Sequence[RecordPlace]) -> None:
    """Mark the requests with an incomplete sequence before them. `places` are in order."""
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place in places:
        insort(numbers[place.run, place.model], place.number)
    last: dict[SequenceName, dict[str, int]] = {}
    """The numbers of the latest requests of sequences that are complete so far, by run."""
    for place in places:
        name = place.sequence
        if name is None:
            continue
        if place.starts:
            last[name] = {}
        runs = last.get(name)
        if runs is None:
            place.hindrance = place.hindrance or INCOMPLETE
            continue
        former = runs.get(place.run)
        if former is not None and not _without_gap(numbers[place.run, place.model], former, place.number):
            place.hindrance = place.hindrance or INCOMPLETE
        if place.hindrance:
            del last[name]
        else:
            runs[place.run] = place.number


def _without_gap(numbers: Sequence[int], first: int, last: int) -> bool:
    """Return True if all numbers between two are present: a missing one may belong to the same sequence."""
    return bisect_left(numbers, last) - bisect_left(numbers, first) == last - first
