"""The places of a Python file that can be changed so that a test should notice: read by scripts/mutants.py.

A comparison, a sign, `and`, `or`, `not`, or a number. Texts, calls of loggers, annotations, decorators and what is for
other systems stay as they are, since tests cannot or should not tell those apart.
"""

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType

OPERATORS: Mapping[type[ast.AST], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: (r"\bis\b", ("is not",)),
    ast.IsNot: (r"\bis\s+not\b", ("is",)),
    ast.In: (r"\bin\b", ("not in",)),
    ast.NotIn: (r"\bnot\s+in\b", ("in",)),
    ast.And: (r"\band\b", ("or",)),
    ast.Or: (r"\bor\b", ("and",)),
    ast.Add: (r"\+", ("-",)),
    ast.Sub: ("-", ("+",)),
}
"""Operator → how to find it between its operands, and what may take its place."""
_SKIPPED_FIELDS = frozenset({"annotation", "returns", "decorator_list"})
_LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_OTHER_SYSTEMS = re.compile(rb"\b(TYPE_CHECKING|__debug__|__name__|sys\.platform|sys\.version_info)\b")


@dataclass(frozen=True)
class Site:
    """A place in a file that can be mutated: bytes `start` to `end`, and what may take their place."""

    file: str
    line: int
    statement: int  # the line on which its statement begins
    start: int
    end: int
    replacements: tuple[str, ...]


def _is_log_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOG_METHODS


def _is_strictness(node: ast.AST) -> bool:
    return isinstance(node, ast.keyword) and node.arg == "strict"  # of zip: an assertion


def _is_literal_type(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def sites(file: str, source: bytes) -> Iterator[Site]:
    """Every place of a file that can be mutated."""
    starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]

    def begin(node: ast.expr) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.expr) -> int:
        return starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def between(left: ast.expr, right: ast.expr, operator: ast.AST, statement: int) -> Iterator[Site]:
        pattern, replacements = OPERATORS.get(type(operator), ("", ()))
        match = re.search(pattern.encode(), source[end(left) : begin(right)])
        if replacements and match:
            at = end(left) + match.start()
            yield Site(file, right.lineno, statement, at, end(left) + match.end(), replacements)

    def of_node(node: ast.AST, statement: int) -> Iterator[Site]:
        def here(start: int, stop: int, *replacements: str) -> Site:
            return Site(file, node.lineno, statement, start, stop, replacements)  # type: ignore[attr-defined]

        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for left, right, operator in zip(operands, operands[1:], node.ops, strict=False):
                    yield from between(left, right, operator, statement)
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from between(left, right, node.op, statement)
            case ast.BinOp() if not (_is_text(node.left) or _is_text(node.right)):
                yield from between(node.left, node.right, node.op, statement)
            case ast.AugAssign():
                yield from between(node.target, node.value, node.op, statement)
            case ast.UnaryOp(op=ast.Not() | ast.USub() as sign):
                yield here(begin(node), begin(node) + (3 if isinstance(sign, ast.Not) else 1), "")
            case ast.If(test=test) | ast.IfExp(test=test) if isinstance(test, ast.Name | ast.Attribute | ast.Call):
                yield Site(file, test.lineno, statement, begin(test), begin(test), ("not ",))
            case ast.Constant(value=bool() as truth):
                yield here(begin(node), end(node), str(not truth))
            case ast.Constant(value=int() | float() as number):
                yield here(begin(node), end(node), repr(number + 1 if abs(number) < 10 else number * 2))

    def walk(node: ast.AST, statement: int) -> Iterator[Site]:
        if isinstance(node, ast.JoinedStr) or _is_log_call(node) or _is_literal_type(node) or _is_strictness(node):
            return
        if isinstance(node, ast.If | ast.IfExp) and _OTHER_SYSTEMS.search(source, begin(node.test), end(node.test)):
            return
        if isinstance(node, ast.stmt):
            statement = node.lineno
        yield from of_node(node, statement)
        for name, field in ast.iter_fields(node):
            for child in field if isinstance(field, list) else (field,):
                if isinstance(child, ast.AST) and name not in _SKIPPED_FIELDS:
                    yield from walk(child, statement)

    yield from walk(ast.parse(source), 1)


def mutate(source: bytes, site: Site, replacement: str) -> bytes:
    return source[: site.start] + replacement.encode() + source[site.end :]


def code_lines(source: bytes) -> set[int]:
    """Lines of a module that have code, as a trace reports them."""
    codes = [compile(source, "", "exec")]
    for code in codes:
        codes += (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {line for code in codes for *_, line in code.co_lines() if line is not None}
