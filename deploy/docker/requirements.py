"""``requirements.py pyproject.toml requirements.lock [EXTRA …]`` writes the files by which pip installs requirements.

``requirements.txt`` has what modserve and these extras require, ``constraints.txt`` the versions of the lock. The image
installs both before the source is there, as a layer that stays while pyproject.toml and the lock do.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OWN = re.compile(r"modserve\[([\w, -]+)\]")
_HASHES = re.compile(r"( \\\n +--hash=\S+)+")
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


def constraints(lock: str, required: list[str]) -> str:
    """The lock, without its hashes if it cannot have those of all that is required: pip checks all or nothing."""
    locked = set(re.findall(r"^[\w.-]+(?===)", lock, re.MULTILINE)) - _ELSEWHERE
    names = {re.split(r"[^\w.-]", line)[0] for line in required}
    return lock if names <= locked else _HASHES.sub("", lock)


if __name__ == "__main__":
    project = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
    try:
        required = list(dict.fromkeys(requirements(project, sys.argv[3:])))
    except KeyError as unknown:
        sys.exit(f"there is no extra {unknown}; there are: {', '.join(project['optional-dependencies'])}")
    Path("requirements.txt").write_text("".join(f"{line}\n" for line in required), encoding="utf-8")
    lock = Path(sys.argv[2]).read_text(encoding="utf-8")
    Path("constraints.txt").write_text(constraints(lock, required), encoding="utf-8")
