"""`scripts/audit.py`: which locked versions have a known vulnerability, and where the list of these comes from."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import audit
import pytest

LOCK = """\
Fast_JSON==2.1.0 \\
    --hash=sha256:00
old==1.5 ; python_full_version < "3.12" \\
    --hash=sha256:00
old==3.0rc1 ; python_full_version >= "3.12" \\
    --hash=sha256:00
"""
ADVISORY = """\
id: {id}
aliases: [CVE-1]
{more}
affected:
- package: {{name: old, ecosystem: PyPI}}
  ranges:
  - type: GIT
    events: [{{introduced: "0"}}, {{fixed: abcdef}}]
  - type: ECOSYSTEM
    events: [{{introduced: "0"}}, {{fixed: "1.2"}}, {{introduced: "1.5"}}, {{fixed: 1.5.1}}, {{introduced: "3.0b1"}}]
"""


def listed(*rows: list[Any], accepted: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"date": "2026-01-01", "accepted": dict.fromkeys(accepted, "a reason"), "advisories": rows}


@pytest.mark.parametrize(
    ("spans", "lines"),
    [
        ([["0", "2.1.0"]], []),
        ([["2.1.1", ""]], []),
        ([["0", "2.1.1"]], ["fast-json 2.1.0: A-1, CVE-1; fixed in 2.1.1"]),
        ([["0", "1.0"], ["2.0", "2.2"], ["3.0", "3.1"]], ["fast-json 2.1.0: A-1, CVE-1; fixed in 2.2"]),
        ([["2.1", ""]], ["fast-json 2.1.0: A-1, CVE-1; there is no version without it"]),
    ],
)
def test_a_version_is_affected_from_the_first_to_the_one_before_the_fix(
    spans: list[list[str]], lines: list[str]
) -> None:
    row = ["fast-json", "A-1", ["CVE-1"], spans]
    assert list(audit.findings(LOCK, listed(row))) == lines
    assert list(audit.findings(LOCK, listed(row, accepted=("A-1",)))) == []


def test_each_locked_version_of_a_package_counts() -> None:
    row = ["old", "A-2", [], [["1.0", "3.0"]]]
    assert [line.partition(":")[0] for line in audit.findings(LOCK, listed(row))] == ["old 1.5", "old 3.0rc1"]


def test_the_list_is_read_from_a_repository_and_what_was_accepted_stays(tmp_path: Path) -> None:
    folder = tmp_path / "database" / "vulns" / "old"
    folder.mkdir(parents=True)
    (folder / "A-1.yaml").write_text(ADVISORY.format(id="A-1", more=""))
    (folder / "A-2.yaml").write_text(ADVISORY.format(id="A-2", more='withdrawn: "2026-01-01T00:00:00Z"'))
    git = ["git", "-C", str(tmp_path / "database"), "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x", "--date=2026-02-03T00:00:00Z"]):
        subprocess.run([*git, *words], check=True)
    fresh = audit.refreshed(LOCK, listed(accepted=("A-9",)), f"file://{tmp_path / 'database'}")
    assert fresh["advisories"] == [["old", "A-1", ["CVE-1"], [["0", "1.2"], ["1.5", "1.5.1"], ["3.0b1", ""]]]]
    assert fresh["accepted"] == {"A-9": "a reason"}
    assert json.loads(audit.written(fresh)) == fresh
    assert list(audit.findings(LOCK, fresh)) == [
        "old 1.5: A-1, CVE-1; fixed in 1.5.1",
        "old 3.0rc1: A-1, CVE-1; there is no version without it",
    ]


def test_the_list_is_about_locked_packages_and_none_is_affected() -> None:
    content = json.loads(audit.LIST.read_text("utf-8"))
    assert {row[0] for row in content["advisories"]} <= set(audit.pins(audit.LOCK.read_text("utf-8")))
    assert audit.written(content) == audit.LIST.read_text("utf-8")
    assert list(audit.findings(audit.LOCK.read_text("utf-8"), content)) == []


@pytest.mark.parametrize(("day", "row", "code"), [(0, 0, 0), (90, 0, 0), (91, 0, 2), (0, 1, 1), (91, 1, 1)])
def test_an_old_list_fails_and_its_date_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, day: int, row: int, code: int
) -> None:
    made = (datetime.now(UTC) - timedelta(days=day)).date().isoformat()
    rows = [["old", "A-2", [], [["1.0", "2.0"]]]][:row]
    lock, file = tmp_path / "lock", tmp_path / "list"
    lock.write_text(LOCK)
    file.write_text(audit.written({**listed(*rows), "date": made}))
    for name, value in (("LOCK", lock), ("LIST", file), ("ROOT", tmp_path)):
        monkeypatch.setattr(audit, name, value)
    monkeypatch.setattr(sys, "argv", ["audit.py"])
    assert audit.main() == code
    said = capsys.readouterr()
    assert said.out.endswith(f"2 packages, {row} known vulnerabilities as of {made}\n")
    stale = f"error: list is of {made}, 91 days old, and may be 90 at most: "
    assert said.err.startswith(stale) if day > 90 else not said.err
    assert ("run 'python scripts/audit.py --refresh'" in said.err) == (day > 90)
