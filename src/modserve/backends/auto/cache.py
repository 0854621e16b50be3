"""Choices on disk, so that the next start opens one engine and measures nothing.

Each choice has a file, named by the digest of all that the choice depends on. It holds these facts once more, for
people and as a check, and the choice with its table. A file that cannot be read or is for something else
is ignored and logged, and the engines are measured again. Choices that cannot be kept on disk are kept in memory:
a model that is evicted and comes back is not measured again.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from .candidates import Candidate
from .choice import Choice

EDITION = 2
"""Version of the files and of the way to measure: choices of another edition are measured again."""

_MOST_IN_MEMORY = 1000

_log = logging.getLogger(__name__)


class ChoiceCache:
    """The choices in a directory, and in `memory` those for which there is no such place. Never raises."""

    def __init__(self, directory: Path | None, memory: MutableMapping[str, Choice] | None = None) -> None:
        self._directory = directory
        self._memory = {} if memory is None else memory

    def load(self, conditions: Mapping[str, object], candidates: Sequence[Candidate]) -> Choice | None:
        """Return the choice made under the same facts, if it is one of the `candidates`."""
        in_memory = self._memory.get(_digest(conditions))
        if in_memory is not None or self._directory is None:
            return in_memory
        path = self._directory / f"{_digest(conditions)}.json"
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
        """Keep a choice. If it cannot be on disk, that is a warning in the log."""
        digest = _digest(conditions)
        if self._directory is None:
            self._remember(digest, choice)
            return
        self._memory.pop(digest, None)
        path = self._directory / f"{digest}.json"
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
            self._remember(digest, choice)
            _log.warning(
                "the choice of an engine cannot be kept in '%s' (--backend-config=auto,cache-dir=… names another "
                "directory): %s",
                path.parent,
                error.strerror or error,
            )

    def _remember(self, digest: str, choice: Choice) -> None:
        while len(self._memory) >= _MOST_IN_MEMORY:
            del self._memory[next(iter(self._memory))]
        self._memory[digest] = choice


def _digest(conditions: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(conditions, sort_keys=True, default=list).encode()).hexdigest()[:40]


def _choice(entry: object, conditions: Mapping[str, object], candidates: Sequence[Candidate]) -> Choice:
    """Read a choice. Raises KeyError, TypeError or ValueError for an entry that is none."""
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
