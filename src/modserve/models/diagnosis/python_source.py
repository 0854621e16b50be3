"""Detection of models in Python files from their text alone: to run a file would be to run any script.

A model is what the worker looks for when it runs a ``model.py``: a class ``TritonPythonModel``, or an object that
``modserve.model`` decorates. Only the top level of the file is read, with the blocks of its ``if``, ``try`` and
``with`` statements, where names of the module are made.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from modserve.core.files import regular_file

_CLASS = "TritonPythonModel"
_PACKAGE, _DECORATOR = "modserve", "model"
_EXPECTED = f"a class {_CLASS}, or a function or class decorated with {_PACKAGE}.{_DECORATOR}"

_Decorated = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def why_no_model(path: Path) -> str:
    """Return what a Python file lacks, as the end of an error; empty if it defines a model. Raises OSError."""
    try:
        statements = list(_top_level(ast.parse(regular_file.read_bytes(path)).body))
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        return f"is not Python: {line}{getattr(error, 'msg', error)}"
    if any(_CLASS in _names(each) for each in statements) or any(_decorates(each, statements) for each in statements):
        return ""
    functions = [each.name for each in statements if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    why = f"defines no model, and is not run: expected {_EXPECTED}"
    if functions:
        why += f"; '@{_PACKAGE}.{_DECORATOR}' in front of 'def {functions[-1]}' would make that function a model"
    return why


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, _Decorated):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from _top_level(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from _top_level(handler.body)


def _names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names of the module that a statement makes."""
    match statement:
        case ast.ClassDef(name=name):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from (alias.asname or alias.name for alias in aliases)
        case ast.Assign(targets=targets):
            yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def _decorates(statement: ast.stmt, statements: list[ast.stmt]) -> bool:
    """True if it decorates something with ``modserve.model``, under any name it was imported by."""
    if isinstance(statement, _Decorated):
        decorators = statement.decorator_list
    else:  # double = modserve.model(function)
        value = getattr(statement, "value", None)
        decorators = [each for each in ast.walk(value) if isinstance(each, ast.Call)] if value is not None else []
    packages, names = _find_imports(statements)
    for each in decorators:
        function = each.func if isinstance(each, ast.Call) else each
        match function:
            case ast.Attribute(value=ast.Name(id=package), attr=attribute):
                if package in packages and attribute == _DECORATOR:
                    return True
            case ast.Name(id=name):
                if name in names:
                    return True
    return False


def _find_imports(statements: list[ast.stmt]) -> tuple[set[str], set[str]]:
    """Return the names of the package, and the names of the decorator."""
    packages, names = set(), set()
    for statement in statements:
        if isinstance(statement, ast.Import):
            packages |= {each.asname or each.name for each in statement.names if each.name == _PACKAGE}
        elif isinstance(statement, ast.ImportFrom) and statement.module == _PACKAGE and not statement.level:
            names |= {each.asname or each.name for each in statement.names if each.name == _DECORATOR}
    return packages, names
