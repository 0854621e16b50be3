"""No text tells people to install modserve by its bare name, which the package index does not have."""

import json
import re
from pathlib import Path

import pytest

from modserve.core.pip_command import command

ROOT = Path(__file__).parents[2]
PLACES = ("README.md", "CONTRIBUTING.md", "Dockerfile", "src", "docs", "examples", "deploy", "scripts", "benchmarks")
SUFFIXES = {"", ".md", ".py", ".yaml", ".yml", ".toml", ".txt", ".sh", ".html", ".js", ".svg", ".tpl"}
# With extras, or right behind pip's words. "/path/to/modserve[x]" and "modserve[x] @ git+…" name a source.
BARE_NAME = re.compile(
    r"""(?<![/\w.])modserve\[[\w,]+\](?! @ )|\bpip3? install (-\S+ )*['"]?modserve(?=['"\s`=<>~]|$)(?! @ )"""
)


def test_what_is_found() -> None:
    for text in ("pip install 'modserve[x]'", "modserve[a,b]", "pip install modserve", "pip install -U modserve==1"):
        assert BARE_NAME.search(text), text
    for text in ("pip install 'modserve[x] @ git+u'", "'/p/modserve[x]'", "pip install 'modserve @ git+u'"):
        assert not BARE_NAME.search(text), text


def test_no_text_has_the_bare_name() -> None:
    paths = [path for place in PLACES for path in [ROOT / place, *sorted((ROOT / place).rglob("*"))] if path.is_file()]
    lines = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in paths
        if path.suffix in SUFFIXES
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if BARE_NAME.search(line)
    ]
    assert lines == []


GIT = {"url": "https://example.com/modserve.git", "vcs_info": {"vcs": "git", "commit_id": "0123"}}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (None, "pip install 'modserve[text] @ git+<this repository>'"),
        (GIT, "pip install 'modserve[text] @ git+https://example.com/modserve.git'"),
        (
            {**GIT, "vcs_info": {**GIT["vcs_info"], "requested_revision": "v1"}},  # type: ignore[dict-item]
            "pip install 'modserve[text] @ git+https://example.com/modserve.git@v1'",
        ),
        ({"url": "file:///", "dir_info": {}}, "pip install '/[text]'"),
        ({"url": "file:///", "dir_info": {"editable": True}}, "pip install -e '/[text]'"),
        (
            {"url": "https://example.com/modserve-1.whl", "archive_info": {}},
            "pip install 'modserve[text] @ https://example.com/modserve-1.whl'",
        ),
        ({"url": "file:///dist/gone.whl", "archive_info": {}}, "pip install 'modserve[text] @ git+<this repository>'"),
    ],
)
def test_the_command_names_the_source(record: dict[str, object] | None, expected: str) -> None:
    assert command("text", "" if record is None else json.dumps(record)) == expected


def test_a_path_with_spaces(tmp_path: Path) -> None:
    (folder := tmp_path / "my clone").mkdir()
    assert command("", json.dumps({"url": folder.as_uri(), "dir_info": {}})) == f"pip install '{folder}'"
