"""``requirements.py pyproject.toml [EXTRA …]`` prints what modserve and some of its extras need, a line each.

The image installs them before the source is there, as a layer that stays while pyproject.toml does.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OWN = re.compile(r"modserve\[([\w, -]+)\]")


def requirements(project: dict[str, Any], extras: list[str]) -> Iterator[str]:
    """Those of the project, and of the extras; an extra may name others. Raises KeyError for one that there is not."""
    yield from project["dependencies"]
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            if match := _OWN.fullmatch(line):
                yield from list(requirements({**project, "dependencies": []}, re.split(r",\s*", match[1])))
            else:
                yield line


if __name__ == "__main__":
    read = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
    try:
        print(*dict.fromkeys(requirements(read, sys.argv[2:])), sep="\n")
    except KeyError as unknown:
        sys.exit(f"there is no extra {unknown}; there are: {', '.join(read['optional-dependencies'])}")
