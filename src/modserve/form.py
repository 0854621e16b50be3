"""Which form of modserve runs: the source itself, or the modules that `scripts/compiled_form.py` compiles."""

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

_COMPILED = "modserve.core.tensors.tensor"
"""A module that is compiled wherever any is."""


def form() -> str:
    """``compiled`` or ``interpreted``, by the file of a module that need not be imported for that."""
    spec = find_spec(_COMPILED)
    file = (spec and spec.origin) or ""
    return "compiled" if file.endswith(tuple(EXTENSION_SUFFIXES)) else "interpreted"
