"""`scripts/mutants`: what is changed, what is left as it is, and what becomes of a mutant."""

import ast
import queue
from pathlib import Path

import mutant_sites
import mutants
import pytest

FILE = "limited/limits.py"
SOURCE = b"def fits(number):\n    if number < 4:\n        return True\n    return number == 40\n"
TEST = "from limited.limits import fits\n\n\ndef test_fits():\n    assert fits(2)\n    assert not fits(4)\n"


def texts(source: str) -> list[str]:
    """Every mutant of a text, without the other lines."""
    text = source.encode()
    every = [
        mutant_sites.mutate(text, site, replacement).decode()
        for site in mutant_sites.sites("m.py", text)
        for replacement in site.replacements
    ]
    return sorted(every)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("(a) is not (b)", ["(a) is (b)"]),
        ("a not  in b", ["a in b"]),
        ("é == a != b", ["é != a != b", "é == a == b"]),
        ("a and b and c", ["a and b or c", "a or b and c"]),
        ("a + (b)", ["a - (b)"]),
        ("a -= b", ["a += b"]),
        ("-(a)", ["(a)"]),
        ("a = not b", ["a =  b"]),
        ("if a.b(): pass", ["if not a.b(): pass"]),
        ("a if b else c", ["a if not b else c"]),
        (
            "f(True, 1, 0.5, 80)",
            ["f(False, 1, 0.5, 80)", "f(True, 1, 0.5, 160)", "f(True, 1, 1.5, 80)", "f(True, 2, 0.5, 80)"],
        ),
    ],
)
def test_operators_and_numbers_change_one_at_a_time(source: str, expected: list[str]) -> None:
    assert texts(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"a" + b',
        "zip(a, b, strict=True)",
        'f"{a + 1}"',
        "_log.debug('%d of 4', a + 1)",
        "a: Literal[1, 2]",
        "def f(a: tuple[1]) -> Literal[2]: pass",
        "@dataclass(frozen=True)\nclass A: pass",
        "if TYPE_CHECKING:\n    a = 1\nelse:\n    a = 2",
        "a = 1 if sys.platform == 'win32' else 2",
    ],
)
def test_what_tests_cannot_tell_apart_stays_as_it_is(source: str) -> None:
    assert texts(source) == []


def test_mutants_are_python() -> None:
    text = Path(mutant_sites.__file__).read_bytes()
    every = list(mutant_sites.sites("mutants.py", text))
    assert len(every) > 50
    for site in every[::10]:
        for replacement in site.replacements:
            assert ast.parse(mutant_sites.mutate(text, site, replacement)).body


def test_a_seed_gives_the_same_mutants_again() -> None:
    sources = {FILE: SOURCE}
    first = mutants.chosen(sources, 4, 7)
    assert first == mutants.chosen(sources, 4, 7)
    assert len(set(first)) == 4
    assert {*map(str, mutants.chosen(sources, 99, 8))} >= {f"{FILE}:3  return True  →  return False"}


def test_a_mutant_is_killed_by_a_test_that_fails_and_survives_others(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "limited").mkdir(parents=True)
    (source / FILE).write_bytes(SOURCE)
    test = tmp_path / "test_mutated_limits.py"
    test.write_text(TEST)
    copies: mutants.Copies = queue.SimpleQueue()
    copies.put(source)
    reach = mutants.measured(str(test), {FILE}, copies, b"", tmp_path)
    assert reach is not None
    assert reach.lines == {FILE: {1, 2, 3, 4}}
    every = {mutant.after: mutant for mutant in mutants.chosen({FILE: SOURCE}, 99, 7)}
    fates = [mutants.fate(every[after], [reach], copies) for after in ("return False", "return number == 80")]
    assert fates == [
        f"killed    {FILE}:3  return True  →  return False  (test_mutated_limits.py::test_fits)",
        f"survived  {FILE}:4  return number == 40  →  return number == 80  (1 test files)",
    ]
    assert (source / FILE).read_bytes() == SOURCE
