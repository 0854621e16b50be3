"""The licences of what the image contains: NOTICE, made of the metadata of the installed distributions.

python scripts/notice.py --write     after a change of what pyproject.toml requires, or of requirements.lock
"""

import argparse
import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
NOTICE = ROOT / "NOTICE"
DEFAULT = ("remote",)
"""The extras of the image, if nothing else is chosen."""
_SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "OSI Approved :: Apache Software License": "Apache-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
_BY_HAND = {"skops": "MIT"}
"""Distributions whose metadata names no licence; this is what their licence file says."""
_NATIVE = re.compile(r"(cuda|nvidia)-|triton$|intel-openmp$")
"""What only a PyTorch for GPUs brings, which the image has only where somebody chooses that."""

_HEAD = """\
modserve
Copyright 2026 the modserve authors

Licensed under the Apache License, Version 2.0; see LICENSE. Compiled modules contain mypyc's runtime library (MIT).

The image contains the following distributions of others, each under the licence named here. Licence texts are where the
image has them: /opt/modserve/lib/python3.11/site-packages/NAME-VERSION.dist-info. Some of the libraries contain further
ones, which their own files there name. Python itself (PSF-2.0) and Debian's packages come with the base image; their
licences are /usr/local/lib/python3.11/LICENSE.txt and /usr/share/doc/*/copyright.
"""


def _required(requirements: Iterable[str], extras: Iterable[str] = ()) -> Iterator[tuple[str, frozenset[str]]]:
    """Name and extras of those requirements that hold on this machine."""
    for line in requirements:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield canonicalize_name(requirement.name), frozenset(requirement.extras)


def distributions(extras: Iterable[str]) -> set[str]:
    """Names of all that modserve with these extras depends on. Raises PackageNotFoundError if one is not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pending = list(_required(project["dependencies"]))
    for extra in extras:
        pending += _required(project["optional-dependencies"][extra])
    seen = set()
    while pending:
        name, its_extras = requirement = pending.pop()
        if requirement in seen or _NATIVE.match(name):
            continue
        seen.add(requirement)
        if name == "modserve":  # an extra that names others
            for extra in its_extras:
                pending += _required(project["optional-dependencies"][extra])
        else:
            pending += _required(distribution(name).requires or (), its_extras)
    return {name for name, _ in seen} - {"modserve"}


def licence(name: str) -> str:
    """As an SPDX expression where the metadata allows one. Raises LookupError if it names no licence at all."""
    if name in _BY_HAND:
        return _BY_HAND[name]
    metadata = distribution(name).metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    field = metadata["License"].strip() if "License" in metadata else ""
    if field and "\n" not in field and len(field) < 40 and field not in ("UNKNOWN", "Dual License"):
        return _SPDX.get(field, field)
    classifiers = [each.split(" :: ") for each in metadata.get_all("Classifier") or ()]
    names = [parts[-1] for parts in classifiers if parts[0] == "License" and parts[-1] != "OSI Approved"]
    if not names:
        raise LookupError(f"the metadata of {name} names no licence: see its files, and add it to _BY_HAND")
    return " OR ".join(sorted(_SPDX.get(each, each) for each in names))


def notice() -> str:
    """The text of NOTICE."""
    default = distributions(DEFAULT)
    parts = {
        "In every image": distributions(()),
        "In the default image, for model repositories in buckets": default,
        "In images with more engines or services (EXTRAS)": distributions(("all",)),
    }
    text, listed = _HEAD, set[str]()
    for title, names in parts.items():
        rows = "".join(f"  {name:<42} {licence(name)}\n" for name in sorted(names - listed))
        text += f"\n{title}:\n\n{rows}"
        listed |= names
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="renew NOTICE")
    if parser.parse_args().write:
        NOTICE.write_text(notice(), encoding="utf-8")
    else:
        print(notice(), end="")


if __name__ == "__main__":
    main()
