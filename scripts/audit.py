"""Known vulnerabilities of the packages in requirements.lock, by the list in scripts/advisories.json; needs no network.

python scripts/audit.py                         compares; exit code 1 if a locked version is affected, 2 if the list is
                                                older than 90 days, so that nobody takes silence for safety
python scripts/audit.py --refresh [DATABASE]    takes the list from PyPA's advisory database: its address, or a clone

An advisory that does not concern modserve goes into "accepted" of the list, with the reason.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import Version

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
LIST = ROOT / "scripts" / "advisories.json"
DATABASE = "https://github.com/pypa/advisory-database"
MAX_AGE = timedelta(days=90)
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;]+)", re.MULTILINE)


class Advisory(NamedTuple):
    """What is known of one package. `ranges` are the first affected version and the first good one, "" for none."""

    package: str
    id: str
    aliases: list[str]
    ranges: list[list[str]]

    def affects(self, version: Version) -> bool:
        return any(Version(first) <= version and (not good or version < Version(good)) for first, good in self.ranges)


def pins(lock: str) -> dict[str, list[Version]]:
    """The locked versions by package; there may be several, for different Pythons."""
    found: dict[str, list[Version]] = {}
    for name, version in _PIN.findall(lock):
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), []).append(Version(version))
    return found


def findings(lock: str, listed: dict[str, Any]) -> Iterator[str]:
    """A line for each locked version that is affected, if nobody has accepted that."""
    versions = pins(lock)
    for row in listed["advisories"]:
        advisory = Advisory(*row)
        if advisory.id in listed["accepted"]:
            continue
        for version in versions.get(advisory.package, ()):
            if advisory.affects(version):
                good = sorted({Version(end) for _, end in advisory.ranges if end and Version(end) > version})
                remedy = f"fixed in {good[0]}" if good else "there is no version without it"
                names = ", ".join([advisory.id, *advisory.aliases])
                yield f"{advisory.package} {version}: {names}; {remedy}"


def staleness(listed: dict[str, Any], today: date) -> str:
    """What to do about a list that is too old to say anything; empty for one that is not."""
    age = today - date.fromisoformat(listed["date"])
    if age <= MAX_AGE:
        return ""
    return (
        f"{LIST.relative_to(ROOT)} is of {listed['date']}, {age.days} days old, and may be {MAX_AGE.days} at most: "
        "later vulnerabilities are unknown. Where there is a network, run 'python scripts/audit.py --refresh' and "
        "commit the list; elsewhere, add the path of a clone of the database"
    )


def read(database: Path, packages: set[str]) -> Iterator[Advisory]:
    """The advisories of these packages, from a checkout of the database."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for package in sorted(packages):
        for file in sorted((database / "vulns" / package).glob("*.yaml")):
            document = yaml.load(file.read_text("utf-8"), loader)
            if document.get("withdrawn"):
                continue
            ranges = [
                span
                for affected in document["affected"]
                for each in affected.get("ranges", ())
                if each["type"] == "ECOSYSTEM"
                for span in _spans(each["events"])
            ]
            if ranges:
                yield Advisory(package, document["id"], document.get("aliases", []), ranges)


def _spans(events: list[dict[str, Any]]) -> Iterator[list[str]]:
    first = None
    for event in events:
        if "introduced" in event:
            first = str(event["introduced"])
        elif first is not None and "fixed" in event:
            yield [first, str(event["fixed"])]
            first = None
    if first is not None:
        yield [first, ""]


def refreshed(lock: str, listed: dict[str, Any], database: str) -> dict[str, Any]:
    """The list anew, from a git repository."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", "--depth=1", database, folder], check=True)
        command = ["git", "-C", folder, "log", "-1", "--format=%cs"]
        day = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        rows = [list(each) for each in read(Path(folder), set(pins(lock)))]
    return {"source": DATABASE, "date": day, "accepted": listed["accepted"], "advisories": rows}


def written(listed: dict[str, Any]) -> str:
    """With an advisory in each line."""
    head = {name: value for name, value in listed.items() if name != "advisories"}
    rows = ",\n".join(f"  {json.dumps(row)}" for row in listed["advisories"])
    return f'{json.dumps(head, indent=1)[:-2]},\n "advisories": [\n{rows}\n ]\n}}\n'


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--refresh", nargs="?", const=DATABASE, metavar="DATABASE")
    refresh = options.parse_args().refresh
    lock, listed = LOCK.read_text("utf-8"), json.loads(LIST.read_text("utf-8"))
    if refresh:
        listed = refreshed(lock, listed, refresh)
        LIST.write_text(written(listed), "utf-8")
    lines = list(findings(lock, listed))
    print("\n".join([*lines, f"{len(pins(lock))} packages, {len(lines)} known vulnerabilities as of {listed['date']}"]))
    stale = staleness(listed, datetime.now(UTC).date())
    if stale:
        print(f"error: {stale}.", file=sys.stderr)
    return 1 if lines else 2 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
