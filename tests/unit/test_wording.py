"""How the source speaks: values have the names of what they are, and texts one spelling."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "modserve"
PARTICIPLES = frozenset({"found", "given", "told", "asked", "wanted", "taken"})
"""Say what was done with a value, and not what it is."""


def value_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and name of every variable, parameter, field and attribute that a module gives a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def participles(text: str) -> list[int]:
    return sorted(line for line, name in value_names(ast.parse(text)) if name.strip("_") in PARTICIPLES)


def two_words(text: str) -> list[int]:
    """The lines of comments and docstrings that write "can not"; messages may, where they are Triton's."""
    lines = set()
    docstrings = {
        node.value.lineno + offset
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for offset in range((node.value.end_lineno or node.value.lineno) - node.value.lineno + 1)
    }
    for number, line in enumerate(text.splitlines(), 1):
        if number in docstrings and re.search(r"\bcan not\b", line):
            lines.add(number)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and re.search(r"\bcan not\b", token.string):
            lines.add(token.start[0])
    return sorted(lines)


def places(check: str) -> list[str]:
    function, words = {
        "participles": (participles, rf"\b_*({'|'.join(PARTICIPLES)})_*\b"),
        "two_words": (two_words, r"\bcan not\b"),
    }[check]
    texts = {path.relative_to(SOURCE): path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    return [f"{path}:{line}" for path, text in texts.items() if re.search(words, text) for line in function(text)]


@pytest.mark.parametrize("check", ["participles", "two_words"])
def test_the_source(check: str) -> None:
    assert places(check) == []


def test_what_counts_as_the_name_of_a_value() -> None:
    text = (
        "def told(asked):\n    found = self.wanted = 1\n    for given in found:\n        pass\n    return given.taken\n"
    )
    assert participles(text) == [1, 2, 2, 3]


def test_where_the_spelling_counts() -> None:
    text = '"""It can not."""\n# can not\nx = "can not"\n\n\ndef f():\n    """A.\n\n    We can not.\n    """\n'
    assert two_words(text) == [1, 2, 9]
