"""Choices on disk, so that the next start opens one engine and measures nothing.

A file for each choice, whose name is the digest of all that the choice depends on. It holds these facts once more, for
people and as a check, and the choice with its table. A file that cannot be read or is for something else
is ignored: the log says so, and the engines are measured again.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .candidates import Candidate
from .choice import Choice

EDITION = 1
"""Of the files, and of the way to measure: those of another edition are measured anew."""

_log = logging.getLogger(__name__)


class ChoiceCache:
    """The choices in a directory; without one nothing is kept. Never raises."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def load(self, conditions: Mapping[str, object], candidates: Sequence[Candidate]) -> Choice | None:
        """The choice that was made under the same facts, if it is one of the `candidates`."""
        if self._directory is None:
            return None
        path = self._path(conditions)
        try:
            entry = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning("the choice of an engine in '%s' cannot be read and is made again: %s", path, error)
            return None
        try:
            return _choice(entry, conditions, candidates)
        except (KeyError, TypeError, ValueError) as error:
            _log.warning("'%s' holds no choice of an engine for this model, so it is made again: %s", path, error)
            return None

    def store(self, conditions: Mapping[str, object], choice: Choice) -> None:
        """Keep a choice. A failure is a warning in the log."""
        if self._directory is None:
            return
        path = self._path(conditions)
        entry = {
            "facts": conditions,
            "choice": choice.candidate.name,
            "reason": choice.reason,
            "rows": choice.rows,
            "details": choice.details,
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Several servers may share the directory: a file is there as a whole, or not at all.
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".choice-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(entry, file, indent=1, default=list)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            _log.warning(
                "the choice of an engine cannot be kept in '%s' (--backend-config=auto,cache-dir=… names another "
                "directory): %s",
                path.parent,
                error.strerror or error,
            )

    def _path(self, conditions: Mapping[str, object]) -> Path:
        assert self._directory is not None, "only called with a directory: this is a bug"
        text = json.dumps(conditions, sort_keys=True, default=list)
        return self._directory / f"{hashlib.sha256(text.encode()).hexdigest()[:40]}.json"


def _choice(entry: object, conditions: Mapping[str, object], candidates: Sequence[Candidate]) -> Choice:
    """Raises KeyError, TypeError or ValueError for what is none."""
    if not isinstance(entry, dict) or entry["facts"] != json.loads(json.dumps(conditions, default=list)):
        raise ValueError("it is for something else")
    candidate = next((each for each in candidates if each.name == entry["choice"]), None)
    if candidate is None:
        raise ValueError(f"its choice is '{entry['choice']}', which cannot run on this machine")
    rows, details, reason = entry["rows"], entry["details"], entry["reason"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TypeError("it has no valid table")
    if not isinstance(details, dict) or not isinstance(reason, str):
        raise TypeError("it has no reason for its choice")
    return Choice(candidate, reason, tuple(rows), details)


def content_digest(root: Path) -> str:
    """Of a file, or of all files below a directory with their names. Raises OSError."""
    total = hashlib.sha256()
    for path in _files(root):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()  # reads in pieces
        total.update(f"{path.relative_to(root)}\0{digest}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _files(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        yield root
        return
    visited = set()
    for directory, folders, names in os.walk(root, followlinks=True):
        folders.sort()
        real = os.path.realpath(directory)
        if real in visited:  # a link to a folder above it
            folders.clear()
            continue
        visited.add(real)
        yield from (path for name in sorted(names) if (path := Path(directory, name)).is_file())
