"""Refusal of ``torch.export`` archives with parts that PyTorch would run as code. It is no sandbox."""

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from modserve.core.errors import invalid

from .failures import one_line

_OPAQUE = "/opaque_obj_"
"""Part of the names of archive entries that hold pickles of any object."""
_TORCHBIND = "custom_obj_"
"""Part of the names of entries that hold objects in C++, which PyTorch loads by itself."""
_FORMULA = "expr_str"
_LONGEST_FORMULA = 10_000
_NAME = re.compile(r"[A-Z]\w*|[a-z]\d+|oo|nan|zoo|pi")
"""Classes of SymPy and of PyTorch, symbols and constants: no function of Python's is called so."""
_TEXT = re.compile(r"[\w.+-]*")
"""Pattern of a symbol or a number. SymPy would evaluate longer texts, too."""
_PLAIN = (
    ast.Expression
    | ast.Load
    | ast.BinOp
    | ast.UnaryOp
    | ast.Compare
    | ast.BoolOp
    | ast.Tuple
    | ast.keyword
    | ast.operator
    | ast.unaryop
    | ast.cmpop
    | ast.boolop
)


def check_archive(path: Path) -> None:
    """Check an archive. Raises INVALID_ARG for content that would run code when PyTorch loads it, and for damage."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.namelist()
            if len({*entries}) < len(entries):
                raise invalid(f"'{path}' has several entries with the same name, so that readers may disagree")
            _check_formulas(path, archive)
            _check_pickles(path, archive)
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError, AttributeError) as error:
        raise invalid(f"'{path}' is damaged: {one_line(str(error))}") from error


def _check_formulas(path: Path, archive: zipfile.ZipFile) -> None:
    """Check shape formulas, which PyTorch 2.13 evaluates as Python: ``sympify`` in torch/_export/serde/serialize.py."""
    for entry in archive.namelist():
        if not entry.endswith(".json"):
            continue
        for formula in {*_formulas(json.loads(archive.read(entry)))}:
            if not is_arithmetic(formula):
                raise invalid(
                    f"'{path}': '{entry}' has {formula[:80]!r} as the formula of a shape, which could "
                    "run code: it is not loaded"
                )


def _formulas(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == _FORMULA:
                yield str(inner)
            else:
                yield from _formulas(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _formulas(inner)


def is_arithmetic(formula: str) -> bool:
    """Return True if a formula has only numbers, symbols, operators and calls of SymPy's classes."""
    if len(formula) > _LONGEST_FORMULA:
        return False
    try:
        return all(map(_is_harmless, ast.walk(ast.parse(formula, mode="eval"))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id[0].isupper()
    if isinstance(node, ast.Name):
        return _NAME.fullmatch(node.id) is not None
    if isinstance(node, ast.Constant):
        text = node.value
        return isinstance(text, int | float) or (isinstance(text, str) and _TEXT.fullmatch(text) is not None)
    return isinstance(node, _PLAIN)


def _check_pickles(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse entries that PyTorch would unpickle by running code from the file.

    ``torch.export.load`` loads example inputs and odd tensors as pickles, and falls back to the unsafe loader for
    pickles that the safe one refuses (torch/_export/serde/serialize.py, `deserialize_torch_artifact`).
    """
    for entry in archive.namelist():
        if _OPAQUE in entry:
            raise invalid(f"'{path}' holds a pickle of any object, '{entry}', which could run code: it is not loaded")
    for entry in _pickles(archive):
        try:
            torch.load(io.BytesIO(archive.read(entry)), weights_only=True, map_location="cpu")
        except Exception as error:
            raise invalid(
                f"'{path}' holds a pickle, '{entry}', which could run code: it is not loaded. Export the model "
                f"again with tensors for example inputs ({one_line(str(error))[:120]})"
            ) from error


def _pickles(archive: zipfile.ZipFile) -> Iterator[str]:
    """Yield the entries that PyTorch loads as pickles: by their names, or by a table in the archive."""
    entries = archive.namelist()
    yield from (entry for entry in entries if entry.endswith(".pt"))
    for table in (entry for entry in entries if entry.endswith("_config.json")):
        for row in json.loads(archive.read(table)).get("config", {}).values():
            if row.get("use_pickle") and not row["path_name"].startswith(_TORCHBIND):
                yield f"{table.rpartition('/')[0]}/{row['path_name']}"
