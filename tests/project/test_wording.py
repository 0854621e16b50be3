"""Comments and docstrings have one spelling. Names: test_glossary.py."""

import ast
import io
import re
import tokenize
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "modserve"


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


def test_the_source() -> None:
    texts = {path.relative_to(SOURCE): path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    assert [f"{path}:{line}" for path, text in texts.items() if "can not" in text for line in two_words(text)] == []


def test_where_the_spelling_counts() -> None:
    text = '"""It can not."""\n# can not\nx = "can not"\n\n\ndef f():\n    """A.\n\n    We can not.\n    """\n'
    assert two_words(text) == [1, 2, 9]
