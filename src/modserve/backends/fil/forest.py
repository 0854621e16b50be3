"""A forest as arrays, read from its file by `reader` in a process of its own."""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from modserve.core.errors import internal, invalid
from modserve.core.tensors.tensor import Array

from .. import catalogue, subprocesses

_READER = Path(__file__).with_name("reader.py")
_LEAST_S = 60.0
_BYTES_PER_S = 200_000
"""The slowest that Treelite reads, with ten times that to spare: a damaged file may keep it busy for ever."""
_MOST_TEXT = 500
_CHECKPOINT = "treelite_checkpoint"
_CHECKPOINT_HINT = "The file is truncated or damaged, or another version of Treelite wrote it in another format"


@dataclass(frozen=True)
class Forest:
    """A forest. `arrays` has an entry for each node of all trees in turn; children count within their tree."""

    properties: Mapping[str, Any]
    arrays: Mapping[str, Array]

    @property
    def features(self) -> int:
        return int(self.properties["features"])

    @property
    def task(self) -> str:
        """``binary``, ``classes``, ``regression``, ``ranking`` or ``isolation``."""
        return str(self.properties["task"])

    @property
    def trees(self) -> int:
        return len(self.arrays["nodes"])

    @property
    def double(self) -> bool:
        """True if its thresholds and leaves are FP64."""
        return bool(self.properties["double"])

    @property
    def targets(self) -> int:
        return int(self.properties["targets"])

    @cached_property
    def classes(self) -> int:
        """Number of classes of the target with the most; 1 where the forest gives one number."""
        return max(int(count) for count in self.properties["class_counts"])

    @property
    def columns(self) -> int:
        """Number of values that the forest gives for a row."""
        return self.targets * self.classes

    @property
    def obstacle(self) -> str:
        """Reason why ONNX Runtime cannot run it; empty if it can."""
        return str(self.properties["obstacle"])

    @property
    def checkpoint(self) -> bytes | None:
        """Treelite checkpoint, if Treelite is to run it."""
        array = self.arrays.get("checkpoint")
        return None if array is None else array.tobytes()


def read(
    path: Path, kind: str, *, unknown_fields: bool = False, for_treelite: bool = False, limit_s: float | None = None
) -> Forest:
    """Read a file of the format `kind`. Raises INVALID_ARG, with the fault of the file, and INTERNAL."""
    if limit_s is None:
        limit_s = _LEAST_S + path.stat().st_size / _BYTES_PER_S
    with tempfile.TemporaryDirectory(prefix="modserve-") as folder:
        result = Path(folder) / "forest.npz"
        flags = [str(int(flag)) for flag in (unknown_fields, for_treelite)]
        command = [sys.executable, "-P", str(_READER), str(path), kind, *flags, str(result)]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        ended = subprocesses.run(command, f"reading '{path}'", limit_s, env=variables)
        if ended.returncode:
            raise _failure(path, kind, ended)
        return load_forest(result)


def load_forest(path: Path) -> Forest:
    """Load a forest that `reader` has written."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    return Forest(json.loads(arrays.pop("facts").tobytes()), arrays)


def _failure(path: Path, kind: str, ended: subprocesses.Ended) -> Exception:
    text = ended.stderr.decode(errors="replace").strip()
    if "ModuleNotFoundError" in text or "ImportError" in text or "OSError: " in text.rpartition("\n")[2]:
        engine = catalogue.BY_BACKEND["fil"]
        return internal(f"{engine.library} cannot be used here ({text.rpartition(chr(10))[2]}): {engine.install}")
    if ended.returncode < 0:
        return invalid(f"'{path}' is damaged or not a {kind} model: reading it ended with {subprocesses.status(ended)}")
    # The program's last words follow an empty line; before that, Treelite writes the same with its source lines.
    words = " ".join((text.rpartition("\n\n")[2] or text).split())[-_MOST_TEXT:]
    hint = f". {_CHECKPOINT_HINT}" if kind == _CHECKPOINT else ""
    return invalid(f"'{path}' cannot be read as a model of type '{kind}': {words}{hint}")
