"""No test asserts that something was quick: on a busy machine nothing is, and on a quick one slow code passes."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
CLOCK = re.compile(r"\b(monotonic|perf_counter|time\.time)(_ns)?\(")
"""Not those of CPU time, which hardly depend on what else the machine does."""


def is_duration(node: ast.AST, names: set[str]) -> bool:
    """``clock() - begun``, or a name for that, alone or in something."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id in names:
            return True
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub) and CLOCK.search(ast.unparse(each.left)):
            return True
    return False


def upper_limits(source: str) -> list[int]:
    """The lines of assertions that a duration is below something."""
    if not CLOCK.search(source):
        return []
    tree = ast.parse(source)
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and is_duration(node.value, set()):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    lines = []
    for node in (
        each for asserted in ast.walk(tree) if isinstance(asserted, ast.Assert) for each in ast.walk(asserted)
    ):
        if isinstance(node, ast.Compare):
            terms = [node.left, *node.comparators]
            for left, operator, right in zip(terms, node.ops, terms[1:], strict=False):
                smaller = {ast.Lt: left, ast.LtE: left, ast.Gt: right, ast.GtE: right}.get(type(operator))
                if smaller is not None and is_duration(smaller, names):
                    lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    ("assertion", "found"),
    [
        ("assert time.monotonic() - begun < 3", [1]),
        ("assert 3 >= time.perf_counter() - begun", [1]),
        ("took = time.time() - begun\nassert a and min(took, b) < 3", [2]),
        ("assert time.monotonic() - begun >= 0.05", []),
        ("assert time.monotonic() < deadline", []),
        ("assert time.process_time() - begun < 3", []),
        ("while time.monotonic() - begun < 3:\n    pass", []),
    ],
)
def test_what_is_found(assertion: str, found: list[int]) -> None:
    assert upper_limits(assertion) == found


def test_no_test_has_one() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}" for path in TESTS.rglob("*.py") for line in upper_limits(path.read_text())
    ]
    assert found == [], "assert an order, a content, CPU time, or simulated time"
