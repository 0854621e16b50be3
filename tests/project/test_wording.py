"""Language of source and documentation: no habit that readers stumble over, but for exceptions with a reason.

Names: test_glossary.py.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "modserve"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MESSAGE_WORDS, PAGE_WORDS, CELL_WORDS = 20, 25, 12
"""Words of the longest sentence in an error or a log line, and in documentation; of the longest cell of a table."""
LOGGING = frozenset(["debug", "info", "warning", "error", "exception", "critical"])

OPENING = re.compile(
    r"(What|Whether|How|Which|Who|Whose|Where|Why|When|While|As|Of|Those|By|If|That|So|It|One|Like|From|For|In|On|With|To|"
    r"Nothing|Nobody|Everything|Everybody|All|Both|Its|Their|Beside|At|Between|Much|Such|Up)\b"
)
"""Docstrings begin with a verb (functions) or a noun (classes, modules), and so do notes behind attributes."""
PHRASES = {
    "those that, those who": re.compile(r"\bthose (?:that|who|of)\b", re.IGNORECASE),
    "whose": re.compile(r"\bwhose\b", re.IGNORECASE),
    "nobody, somebody, everybody": re.compile(r"\b(?:nobody|somebody|everybody|whoever)\b", re.IGNORECASE),
    "so many, so much": re.compile(r"\bso (?:many|much)\b", re.IGNORECASE),
    "can not": re.compile(r"\bcan not\b"),
}
"""In comments and docstrings. Messages may write "can not" where Triton does."""
IRREGULAR = frozenset(
    [
        "begun",
        "bound",
        "bought",
        "brought",
        "built",
        "caught",
        "chosen",
        "done",
        "drawn",
        "driven",
        "fallen",
        "forgotten",
        "found",
        "given",
        "gone",
        "grown",
        "heard",
        "held",
        "hidden",
        "kept",
        "known",
        "laid",
        "led",
        "lent",
        "lost",
        "made",
        "meant",
        "met",
        "paid",
        "proven",
        "seen",
        "sent",
        "shown",
        "sold",
        "spent",
        "spoken",
        "stolen",
        "taken",
        "thrown",
        "told",
        "understood",
        "won",
        "written",
    ]
)
VERBS = frozenset(["embed", "exceed", "feed", "need", "proceed", "seed", "shed", "succeed"])

HABITS = (
    "docstring opening",
    "note opening",
    "participle as a function's name",
    *PHRASES,
    "message with a long sentence",
    "page with a long sentence",
    f"table cell over {CELL_WORDS} words",
)

_ENGINES = "interface of engines: users implement or call it"
_TRITON = "Triton's text, which clients compare"
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("backends/api/__init__.py", "refused"): _ENGINES,
    ("backends/api/__init__.py", "lost"): _ENGINES,
    ("backends/api/__init__.py", "completed"): _ENGINES,
    ("backends/api/requests.py", "taken"): _ENGINES,
    ("backends/runner.py", "lost"): _ENGINES,
    ("execution/loop_instance.py", "lost"): _ENGINES,
    ("models/serving/model_calls.py", "taken"): _ENGINES,
    ("backends/python/worker/request.py", "requested_output_names"): "Triton's name in `model.py`",
    ("core/tensors/tensor.py", "reshaped"): "a changed copy, as `sorted` is",
    ("config/features/composition.py", "ensemble X allows maximum batch size"): _TRITON,
    ("execution/rate_limit.py", 'Resource count for "X" is limited'): _TRITON,
    ("protocol/shared_memory.py", "shared memory size specified with the request"): _TRITON,
}
"""Findings that stay, by file and the beginning of their text, with the reason."""
PAGES_WITH_LONG_CELLS: Mapping[str, str] = {
    "docs/alerts.md": "an alert's cell names metrics, options and calls for its causes",
    "docs/performance.md": "a measurement's cell names its command, load and other servers",
}
"""Pages on which cells may be long, with the reason."""


class Finding(NamedTuple):
    """A place in the source, and the habit that is seen there."""

    habit: str
    path: str
    line: int
    text: str


def findings(path: str, text: str) -> Iterator[Finding]:
    """All places in a file. Generated files have none of their own."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_participle(node):
            yield Finding("participle as a function's name", path, node.lineno, node.name)
        if isinstance(node, ast.Call) and node.args and is_message(node) and (text_of := said(node.args[0])):
            for sentence in re.split(r"[.:;?!]\s+", text_of):
                if (count := len(sentence.split())) > MESSAGE_WORDS:
                    yield Finding("message with a long sentence", path, node.lineno, f"{count} words: {sentence[:80]}")
        body = getattr(node, "body", None)
        for place, statement in enumerate(body if isinstance(body, list) else ()):
            if (text_of := string_of(statement)) is None:
                continue
            is_doc = place == 0 and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if OPENING.match(text_of):
                yield Finding("docstring opening" if is_doc else "note opening", path, statement.lineno, text_of[:80])
            yield from phrases(path, statement.lineno, text_of)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from phrases(path, token.start[0], token.string)


def string_of(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return value.strip() if isinstance(value, str) else None
    return None


def is_message(call: ast.Call) -> bool:
    """True for the making of an error, by its class or by a function of `core.errors`, and for lines of a log."""
    name = ast.unparse(call.func).rpartition(".")[2]
    return name in LOGGING or name in makers() or name.endswith(("Error", "Exit"))


@cache
def makers() -> frozenset[str]:
    """The functions that return errors, made of `ModserveError` and a code."""
    tree = ast.parse((SOURCE / "core" / "errors.py").read_text(encoding="utf-8"))
    return frozenset(ast.unparse(each.targets[0]) for each in tree.body if isinstance(each, ast.Assign))


def said(node: ast.expr) -> str | None:
    """Return the text of a message; what is filled in counts as a word."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else "X" for each in node.values)
    return None


def long_sentences(path: str, text: str) -> Iterator[Finding]:
    """The long sentences of a page, without its code, tables, headings and comments."""
    prose = re.sub(r"^( *)```.*?^\1```|<!--.*?-->|^\s*(?:\||#|<).*?$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    for block in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s", prose, flags=re.MULTILINE):
        for sentence in re.split(r"(?<=[.?!:;])\s+", " ".join(block.split())):
            if (count := len(re.findall(r"\S*\w\S*", sentence))) > PAGE_WORDS:
                yield Finding("page with a long sentence", path, 0, f"{count} words: {sentence[:80]}")


def long_cells(path: str, text: str) -> Iterator[Finding]:
    """The cells of a page's tables with many words; code in backquotes is one word, and addresses are none."""
    without_code = re.sub(
        r"^( *)```.*?^\1```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE
    )
    for number, line in enumerate(without_code.splitlines(), 1):
        if not line.lstrip().startswith("|"):
            continue
        row = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", line))
        for cell in row.split("|"):
            if (count := len(re.findall(r"\S*\w\S*", cell))) > CELL_WORDS:
                yield Finding(
                    f"table cell over {CELL_WORDS} words", path, number, f"{count} words: {cell.strip()[:80]}"
                )


def phrases(path: str, line: int, text: str) -> Iterator[Finding]:
    for habit, pattern in PHRASES.items():
        for match in pattern.finditer(text):
            yield Finding(habit, path, line, match[0])


def is_participle(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Properties and predicates may be adjectives."""
    names = {ast.unparse(each).rpartition(".")[2] for each in function.decorator_list}
    if names & {"property", "cached_property", "setter"} or (
        function.returns and ast.unparse(function.returns) == "bool"
    ):
        return False
    first = function.name.strip("_").partition("_")[0]
    return first in IRREGULAR or (first.endswith("ed") and first not in VERBS)


@cache
def of_all_files() -> tuple[Finding, ...]:
    files = sorted(SOURCE.rglob("*.py"))
    found = [
        finding
        for file in files
        if file.parent.name != "pb"
        for finding in findings(str(file.relative_to(SOURCE)), file.read_text(encoding="utf-8"))
    ]
    for page in PAGES:
        path, text = str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
        found += long_sentences(path, text)
        if "decisions" not in page.parts and path not in PAGES_WITH_LONG_CELLS:
            found += long_cells(path, text)
    return tuple(found)


def exception_of(finding: Finding) -> tuple[str, str] | None:
    text = finding.text.partition(" words: ")[2] or finding.text
    return next((key for key in EXCEPTIONS if key[0] == finding.path and text.startswith(key[1])), None)


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit(habit: str) -> None:
    found = [each for each in of_all_files() if each.habit == habit and exception_of(each) is None]
    assert found == [], "\n".join(f"{each.path}:{each.line}: {each.text}" for each in found[:200])


def test_exceptions_are_needed() -> None:
    assert {exception_of(each) for each in of_all_files()} - {None} == EXCEPTIONS.keys()


def test_pages_with_long_cells_have_some() -> None:
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in PAGES_WITH_LONG_CELLS}
    assert [path for path, text in texts.items() if not any(long_cells(path, text))] == []


def test_which_cells_are_long() -> None:
    twelve = "one " * 11 + "[one](a b c.md)"
    text = f"| {twelve} | {twelve} `a b | c` |\n|---|---|\n```sh\n| {twelve} one |\n```\n  | one | {twelve} one |\n"
    assert [(each.line, each.text[:8]) for each in long_cells("a.md", text)] == [(1, "13 words"), (6, "13 words")]


def test_which_sentences_are_long() -> None:
    long = "one " * 26
    text = f"# {long}\n\n{long}\n\n```sh\n{long}\n```\n\n- {long.strip()}. One.\n- one\n| {long} |\n"
    assert [each.text[:8] for each in long_sentences("a.md", text)] == ["26 words", "26 words"]
    code = 'raise invalid(f"{x} ' + "one " * 20 + '")\n_log.info("' + "one " * 15 + "; " + "one " * 15 + '")\n'
    assert [each.text[:8] for each in findings("a.py", code)] == ["21 words"]


def test_what_counts() -> None:
    text = (
        '"""What it is."""\n# can not, whose\n'
        'x = "can not"\n"""Those of all."""\n\n\n'
        'def shown() -> str:\n    """Return so many."""\n\n\n'
        "class A:\n    @property\n    def closed(self) -> int: ...\n"
        "    def ended(self) -> bool: ...\n    def need(self) -> None: ...\n"
    )
    assert Counter(each.habit for each in findings("a.py", text)) == {
        "docstring opening": 1,
        "note opening": 1,
        "participle as a function's name": 1,
        "those that, those who": 1,
        "whose": 1,
        "so many, so much": 1,
        "can not": 1,
    }
