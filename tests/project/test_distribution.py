"""What installations and images get: the lock and the notice of licences go with pyproject.toml."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import notice
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")
PINS = {
    canonicalize_name(name): version
    for name, version in re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;]+)", LOCK, re.MULTILINE)
}
NOT_LOCKED = ("gpu", "ray", "tensorflow")
"""Extras that do not go together with the others, or that only their own tests install."""


def requirements() -> Iterator[Requirement]:
    """Those of modserve and of all extras that are locked."""
    for line in PROJECT["dependencies"]:
        yield Requirement(line)
    for extra, lines in PROJECT["optional-dependencies"].items():
        if extra not in NOT_LOCKED:
            yield from (each for each in map(Requirement, lines) if each.name != "modserve")


def test_the_lock_has_a_version_that_suits_for_each_requirement() -> None:
    wrong = {
        str(each): PINS.get(canonicalize_name(each.name))
        for each in requirements()
        if PINS.get(canonicalize_name(each.name), "") not in each.specifier
    }
    assert wrong == {}, "scripts/lock renews it"


def test_the_lock_is_pinned_by_hashes_and_names_no_index() -> None:
    assert "://" not in LOCK
    assert not re.search(r"^-", LOCK, re.MULTILINE)
    blocks = re.split(r"^(?=\w)", LOCK, flags=re.MULTILINE)[1:]
    assert len(blocks) >= len(PINS) > 100  # more: one version for old Pythons, another for new ones
    assert [block for block in blocks if not re.search(r"--hash=sha256:[0-9a-f]{64}$", block, re.MULTILINE)] == []


@pytest.mark.parametrize("name", ["hpack", "httptools", "mypy", "mypy-extensions"])
def test_what_is_used_from_inside_has_an_upper_bound(name: str) -> None:
    """A new version is tried before it may be installed."""
    building = map(Requirement, PYPROJECT["tool"]["hatch"]["build"]["hooks"]["custom"]["requires"])
    bounds = [
        {specifier.operator for specifier in each.specifier}
        for each in (*requirements(), *building)
        if each.name == name
    ]
    assert bounds
    assert all(bound == {">=", "<"} for bound in bounds)


def test_the_lock_covers_what_the_notice_lists() -> None:
    assert notice.distributions(["all"]) <= PINS.keys()


def test_the_notice_names_the_licences_of_what_is_installed() -> None:
    assert notice.NOTICE.read_text("utf-8") == notice.notice(), "python scripts/notice.py --write renews it"


def test_a_distribution_without_a_licence_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nameless-1.dist-info").mkdir()
    (tmp_path / "nameless-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: nameless\nVersion: 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LookupError, match="nameless names no licence"):
        notice.licence("nameless")
