"""``requirements.py pyproject.toml requirements.lock [EXTRA …]`` writes the files by which pip installs requirements.

``requirements.txt`` has what modserve and these extras require, ``constraints.txt`` the versions of the lock, and
``hashes.txt`` its hashes, or nothing where other files may be installed. The image installs by them before the source
is there, as a layer that stays while pyproject.toml and the lock do.

``requirements.py --check report.json hashes.txt`` compares the files that pip reports with the hashes. pip itself
compares only where each requirement names one version.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OWN = re.compile(r"modserve\[([\w, -]+)\]")
_HASHES = re.compile(r" \\\n +--hash=(\S+)")
_ELSEWHERE = {"torch"}
"""Comes from an index of one's choice (`PIP_ARGS`), whose files are not those of the lock."""


def requirements(project: dict[str, Any], extras: list[str]) -> Iterator[str]:
    """Those of the project, and of the extras; an extra may name others. Raises KeyError for one that there is not."""
    yield from project["dependencies"]
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            if match := _OWN.fullmatch(line):
                yield from list(requirements({**project, "dependencies": []}, re.split(r",\s*", match[1])))
            else:
                yield line


def hashes(lock: str, required: list[str]) -> list[str]:
    """Those of the lock, ``sha256:…``; none if it cannot have those of all that is required."""
    locked = set(re.findall(r"^[\w.-]+(?===)", lock, re.MULTILINE)) - _ELSEWHERE
    names = {re.split(r"[^\w.-]", line)[0] for line in required}
    return _HASHES.findall(lock) if names <= locked else []


def strangers(report: dict[str, Any], known: set[str]) -> list[str]:
    """The addresses of installed files whose hash is not known. Without known hashes, nothing is compared."""
    files = [each["download_info"] for each in report["install"]] if known else []
    return [file["url"] for file in files if f"sha256:{file['archive_info']['hashes']['sha256']}" not in known]


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        report = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
        others = strangers(report, set(Path(sys.argv[3]).read_text(encoding="utf-8").split()))
        sys.exit("\n".join(f"{url} is not the file of the lock" for url in others) if others else 0)
    project = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
    try:
        required = list(dict.fromkeys(requirements(project, sys.argv[3:])))
    except KeyError as unknown:
        sys.exit(f"there is no extra {unknown}; there are: {', '.join(project['optional-dependencies'])}")
    Path("requirements.txt").write_text("".join(f"{line}\n" for line in required), encoding="utf-8")
    lock = Path(sys.argv[2]).read_text(encoding="utf-8")
    Path("constraints.txt").write_text(_HASHES.sub("", lock), encoding="utf-8")
    Path("hashes.txt").write_text("".join(f"{each}\n" for each in hashes(lock, required)), encoding="utf-8")
