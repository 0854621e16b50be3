"""Names in the source use the words of the glossary in docs/design.md, and say what a thing is."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "modserve"
GENERATED = "pb"

PARTICIPLES = frozenset({"found", "given", "told", "asked", "wanted", "taken"})
"""They say what was done with a value, not what it is. No value may have such a name."""


class Word(NamedTuple):
    instead: str
    uses: int = 0
    """How many classes, functions, modules and parameters still have the word. Lower it when you rename one."""


WORDS: Mapping[str, Word] = {
    # Synonyms of terms of the glossary
    "answer": Word("response", 2),
    "early": Word("prefetch", 1),
    "loan": Word("lease"),
    "plain": Word("unary, for a call; for a queue or a value, its property", 1),
    "plainly": Word("unary"),
    "reply": Word("response", 3),
    "under_way": Word("in_flight", 1),
    # Everyday words where the field has a noun
    "age": Word("what elapsed since when, such as idle_ns"),
    "anew": Word("again, or replacement"),
    "behind": Word("downstream, inner or next"),
    "border": Word("what it converts, such as to_client_error"),
    "come": Word("arrive, arrival"),
    "facts": Word("status or properties"),
    "giving_way": Word("yielding"),
    "gone": Word("lost for an instance, disconnected for a client, closed for a connection"),
    "helper": Word("what it does"),
    "here": Word("local, or position"),
    "instant": Word("time or timestamp"),
    "mend": Word("repair"),
    "picture": Word("snapshot", 1),
    "puppets": Word("scripted", 1),
    "said": Word("message, or what it reports", 1),
    "site": Word("endpoint or context"),
    "there": Word("remote, or position", 2),
    "thing": Word("its noun"),
    "util": Word("what it does"),
    "way": Word("path or mode", 1),
    "what": Word("its noun", 3),
    "who": Word("owner, user or name"),
    "whose": Word("owner"),
}
TERMS_OF_OTHERS = frozenset({"_site_packages"})
"""Names of other projects that contain one of these words."""

VERBS = frozenset({"Ask", "Drop", "Fill", "Give", "Keep", "Lend", "Look", "Make", "Say", "Send", "Take", "Tell"})
"""A class is a noun: OnDrop, ResponseDelivery, LeaseFactory."""

_NOUNS_IN_ING = """
    BatchSetting BodyFraming DynamicBatching ExecutionTiming Finding Framing Listing Padding ParameterSetting Routing
    SequenceBatching Spelling Timing
"""
_GERUNDS = """
    Serving
"""
KNOWN_IN_ING = frozenset(_NOUNS_IN_ING.split() + _GERUNDS.split())
"""A class is a thing, not an activity: a FrameReader, not Reading. The gerunds may only become fewer."""

KNOWN_TWINS = frozenset({"InferenceRequest", "InferenceResponse", "ModelConfig", "Tensor", "TritonPythonModel"})
"""Names of Triton's Python API, which the core shares or each program has. Other public classes have their own."""


class Name(NamedTuple):
    kind: str
    text: str
    place: str


@cache
def modules() -> Sequence[tuple[str, ast.Module]]:
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] != GENERATED]
    return [(path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def names_of(module: str, tree: ast.Module) -> Iterator[Name]:
    """The names of a module, its classes, its functions and their parameters."""
    path = Path(module)
    yield Name("module", path.parent.name if path.stem == "__init__" else path.stem, module)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield Name("class", node.name, f"{module}:{node.lineno}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Name("function", node.name, f"{module}:{node.lineno}")
        elif isinstance(node, ast.arg):
            yield Name("parameter", node.arg, f"{module}:{node.lineno}")


@pytest.fixture(scope="module")
def names() -> Sequence[Name]:
    return [name for module, tree in modules() for name in names_of(module, tree)]


def has_word(name: str, word: str) -> bool:
    """Whether one of the words of a name is this one, or several in a row are these."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return f"_{word}_" in f"_{'_'.join(words).lower()}_"


@pytest.mark.parametrize("word", WORDS)
def test_a_word_that_names_do_not_have(word: str, names: Sequence[Name]) -> None:
    uses = [name for name in names if has_word(name.text, word) and name.text not in TERMS_OF_OTHERS]
    shown = "\n".join(f"{name.place} {name.kind} {name.text}" for name in uses)
    assert len(uses) <= WORDS[word].uses, f"use in place of {word!r}: {WORDS[word].instead}\n{shown}"


def test_no_class_is_a_verb(names: Sequence[Name]) -> None:
    assert [name for name in names if name.kind == "class" and name.text.strip("_") in VERBS] == []


def test_no_other_class_is_an_activity(names: Sequence[Name]) -> None:
    classes = {name.text for name in names if name.kind == "class" and name.text.endswith("ing")}
    assert classes - KNOWN_IN_ING == set()


def test_no_other_two_classes_have_one_name(names: Sequence[Name]) -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for name in names:
        if name.kind == "class" and not name.text.startswith("_"):
            places[name.text].add(name.place.partition(":")[0])
    assert {text: files for text, files in places.items() if len(files) > 1 and text not in KNOWN_TWINS} == {}


# Values


def value_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and name of every variable, parameter, field and attribute that a module gives a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def participles(tree: ast.AST) -> list[int]:
    return sorted(line for line, name in value_names(tree) if name.strip("_") in PARTICIPLES)


def test_no_value_is_named_by_a_participle() -> None:
    assert [f"{module}:{line}" for module, tree in modules() for line in participles(tree)] == []


# The glossary


def glossary() -> list[tuple[str, str]]:
    """The terms of docs/design.md and their meanings. Some rows have two terms."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", page.partition("\n## Glossary\n")[2].partition("\n## ")[0], re.M)
    return rows[1:]


def test_the_glossary_is_in_order() -> None:
    terms = [term.partition(",")[0] for term, _ in glossary()]
    assert 35 <= len(terms) <= 50
    assert terms == sorted(set(terms))


def test_each_meaning_is_a_sentence() -> None:
    assert [term for term, meaning in glossary() if not (meaning[0].isupper() and meaning.endswith("."))] == []


def test_the_glossary_has_none_of_the_words() -> None:
    assert [term for term, _ in glossary() for word in WORDS if has_word(re.sub(r"\W+", "_", term), word)] == []


# What these checks see


def test_which_names_count() -> None:
    tree = ast.parse("class Sending:\n    async def reply(self, facts, *, site): ...\n")
    assert list(names_of("a/__init__.py", tree)) == [
        Name("module", "a", "a/__init__.py"),
        Name("class", "Sending", "a/__init__.py:1"),
        Name("function", "reply", "a/__init__.py:2"),
        Name("parameter", "self", "a/__init__.py:2"),
        Name("parameter", "facts", "a/__init__.py:2"),
        Name("parameter", "site", "a/__init__.py:2"),
    ]


@pytest.mark.parametrize(
    ("name", "word", "expected"),
    [
        ("GrpcSite", "site", True),
        ("_native_site", "site", True),
        ("HTTPSite", "site", True),
        ("opposite", "site", False),
        ("websites", "site", False),
        ("giving_way", "giving_way", True),
        ("GivingWay", "giving_way", True),
        ("giving_no_way", "giving_way", False),
    ],
)
def test_when_a_name_has_a_word(name: str, word: str, expected: bool) -> None:
    assert has_word(name, word) is expected


def test_what_counts_as_the_name_of_a_value() -> None:
    text = (
        "def told(asked):\n    found = self.wanted = 1\n    for given in found:\n        pass\n    return given.taken\n"
    )
    assert participles(ast.parse(text)) == [1, 2, 2, 3]
