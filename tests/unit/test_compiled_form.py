"""The compiled form: what is compiled, and what mypyc wants of that source (CONTRIBUTING.md)."""

import ast
import ctypes
import importlib
import os
import re
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TypeGuard

import compiled_form
import pytest

import modserve.core.tensors.tensor
from modserve.form import form

TESTED = os.getenv("TESTED_FORM", "")
"""The form that the runner says these tests are for; empty if it does not care."""
MODULES = compiled_form.modules()
SOURCE = compiled_form.ROOT / "src"
C_WORDS = frozenset({"asm", "attribute", "const", "inline", "restrict", "signed", "thread", "typeof", "volatile"})
"""Behind two underscores, as mypyc writes an attribute that begins with one, these are words of the C compiler."""


def tree(name: str) -> ast.Module:
    [file] = compiled_form.source_files([name])
    return ast.parse((SOURCE / file).read_text(encoding="utf-8"))


def exists(name: str) -> bool:
    path = SOURCE / "modserve" / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def package(name: str) -> str:
    return name.rpartition(".")[0]


def left_out(name: str) -> bool:
    """Whether a module, or the package it is in, is named with a reason why it is not compiled."""
    return compiled_form.within(name, list(MODULES.interpreted))


@pytest.mark.skipif(not TESTED, reason="the runner does not say which form is to be tested")
def test_the_form_that_the_runner_meant_is_tested() -> None:
    assert form() == TESTED
    file = modserve.core.tensors.tensor.__file__
    assert file is not None
    assert file.endswith(tuple(EXTENSION_SUFFIXES)) == (TESTED == "compiled")


@pytest.mark.skipif(TESTED != "compiled", reason="the interpreted form has no such library")
def test_the_library_shows_other_libraries_only_how_to_load_it() -> None:
    name = f"{compiled_form.LIBRARY}__mypyc"
    file = importlib.import_module(name).__file__
    assert file is not None
    library = ctypes.CDLL(file)
    assert hasattr(library, f"PyInit_{name}")
    assert not hasattr(library, "CPyList_GetItem"), "its functions call each other directly, or are inlined"


def test_the_units_of_each_compiled_module_run_compiled() -> None:
    script = (compiled_form.ROOT / "scripts" / "test").read_text(encoding="utf-8")
    [folders] = re.findall(r"^packages=\(tests/unit/\{(.*)\}\)$", script, re.MULTILINE)
    packages = [folder.replace("/", ".") for folder in folders.split(",")]
    assert [name for name in MODULES.compiled if not compiled_form.within(name, packages)] == []


def test_the_list_is_sorted_and_names_what_there_is() -> None:
    assert list(MODULES.compiled) == sorted(set(MODULES.compiled))
    assert [file for file in compiled_form.source_files(MODULES.compiled) if not (SOURCE / file).is_file()] == []
    assert [name for name in MODULES.interpreted if not exists(name)] == []
    assert not set(MODULES.compiled) & set(MODULES.interpreted)
    assert all(reason and reason[0].islower() for reason in MODULES.interpreted.values())


def test_a_module_beside_compiled_ones_is_compiled_or_says_why_not() -> None:
    packages = {package(name) for name in MODULES.compiled}
    undecided = []
    for path in sorted((SOURCE / "modserve").rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE / "modserve").with_suffix("").parts)
        decided = name in MODULES.compiled or left_out(name)
        if path.stem != "__init__" and package(name) in packages and not decided:
            undecided.append(name)
    assert undecided == [], "pyproject.toml: list them as compiled, or as interpreted with the reason"


def records(module: ast.Module) -> Iterator[ast.ClassDef]:
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            marks = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
            if any("dataclass" in mark or mark == "NamedTuple" for mark in marks):
                yield node


@pytest.mark.parametrize("name", MODULES.compiled)
def test_what_mypyc_wants_of_the_source(name: str) -> None:
    module = tree(name)
    wrong = [f"{ast.unparse(node)}: C has that word" for node in ast.walk(module) if is_c_word(node)]
    wrong += [f"{kind}: a cached property is made at every look" for kind in with_cached_properties(module)]
    wrong += [f"line {node.lineno}: loses a cancellation" for node in ast.walk(module) if awaits_at_last(node)]
    for kind in records(module):
        wrong += [f"{kind.name}.{text}" for text in wrong_fields(kind)]
    assert wrong == []


def is_c_word(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr[1:] in C_WORDS


def with_cached_properties(module: ast.Module) -> Iterator[str]:
    """Classes in which `cached_property` would be just `property`."""
    for kind in ast.walk(module):
        if isinstance(kind, ast.ClassDef) and "native_class=False" not in "".join(
            map(ast.unparse, kind.decorator_list)
        ):
            functions = [node for node in kind.body if isinstance(node, ast.FunctionDef)]
            if any("cached_property" in ast.unparse(mark) for node in functions for mark in node.decorator_list):
                yield kind.name


def awaits_at_last(node: ast.AST) -> TypeGuard[ast.Try]:
    return isinstance(node, ast.Try) and any(
        isinstance(each, ast.Await) for last in node.finalbody for each in ast.walk(last)
    )


def wrong_fields(kind: ast.ClassDef) -> Iterator[str]:
    """Fields that would be one value for all instances, or whose annotation cannot be read at run time."""
    for field in kind.body:
        if isinstance(field, ast.AnnAssign):
            annotation = ast.unparse(field.annotation)
            if annotation.startswith("Final"):
                yield f"{ast.unparse(field.target)}: Final in a dataclass is one value for all; see `InferenceRequest`"
            elif annotation == "object":
                yield f"{ast.unparse(field.target)}: object as a dataclass's annotation; write Any"


def test_the_build_is_told_by_one_table() -> None:
    files = compiled_form.source_files(("core.tensors.tensor", "frontends.http.wire.head"))
    assert files == ["modserve/core/tensors/tensor.py", "modserve/frontends/http/wire/head.py"]


def test_the_copy_follows_the_source(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "a.py").write_text("a = 1")
    (source / "b.py").write_text("b = 1")
    compiled_form._copy_source(source, target)
    library = target / "inner" / f"a{EXTENSION_SUFFIXES[0]}"
    library.touch()
    (source / "b.py").unlink()
    (source / "inner" / "a.py").write_text("a = 2")
    compiled_form._copy_source(source, target)
    assert sorted(path.name for path in target.rglob("*") if path.is_file()) == sorted(["a.py", library.name])
    assert (target / "inner" / "a.py").read_text() == "a = 2"


def test_the_key_changes_with_the_source_and_the_list(tmp_path: Path) -> None:
    (tmp_path / "modserve").mkdir()
    (source := tmp_path / "modserve" / "a.py").write_text("a = 1")
    first = compiled_form._key(tmp_path, ["a"])
    assert compiled_form._key(tmp_path, ["a"]) == first
    assert compiled_form._key(tmp_path, ["a", "b"]) != first
    source.write_text("a = 2")
    assert compiled_form._key(tmp_path, ["a"]) != first
