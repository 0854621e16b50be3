"""Form in which modserve runs: the source itself, or the modules that `scripts/compiled_form.py` compiles."""

import json
import zlib
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

_COMPILED = "modserve.core.tensors.tensor"
"""A module that is compiled wherever any is."""
_RECORD = "compiled.json"


def form() -> str:
    """``compiled`` or ``interpreted``, by the file of a module that need not be imported for that."""
    spec = find_spec(_COMPILED)
    file = (spec and spec.origin) or ""
    return "compiled" if file.endswith(tuple(EXTENSION_SUFFIXES)) else "interpreted"


def stale_module(package: Path = Path(__file__).parent) -> str:
    """Return the first compiled module that differs from the source next to it; empty if there is none.

    Python prefers an extension module to the source next to it, also if they differ.
    """
    try:
        record: dict[str, int] = json.loads((package / _RECORD).read_text())
    except (OSError, ValueError):
        return _RECORD
    for file, checksum in record.items():
        path = package.parent / file
        try:
            if zlib.crc32(path.read_bytes()) != checksum:
                return file
        except OSError:
            return file
    return ""
