"""Where a release comes from, and what is in it: a bill of materials, an in-toto statement, and checksums."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from release_packages import sha256

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:modserve:scripts/release:1"
"""Its only external parameter is the version, and its only dependency the commit that ``scripts/release`` ran on."""
BUILDER = "urn:modserve:scripts/release"
_TOOLS = ("hatchling", "cyclonedx-bom", "twine")


def bill_of_materials(pyproject: Path, release: str, environment: Path, target: Path) -> None:
    """What is installed with modserve: CycloneDX 1.6, of the packages in a virtual environment.

    CycloneDX's program does not know that hatchling reads the version from a file, so it gets a copy of `pyproject`
    that has the version itself.
    """
    text, replaced = re.subn(
        r'^dynamic = \["version"\]$', f'version = "{release}"', pyproject.read_text("utf-8"), flags=re.MULTILINE
    )
    if replaced != 1:
        raise ValueError(f'{pyproject} has no line dynamic = ["version"]')
    with TemporaryDirectory(prefix="modserve-sbom-") as work:
        copy = Path(work) / "pyproject.toml"
        copy.write_text(text, "utf-8")
        command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--validate"]
        command += ["--pyproject", str(copy), "--mc-type", "application", "--sv", "1.6", "--of", "JSON"]
        command += ["-o", str(target), str(environment / "bin" / "python")]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")


def statement(
    digests: Mapping[str, str], release: str, commit: str, seconds: int, origin: str, tools: Mapping[str, str]
) -> dict[str, Any]:
    """An in-toto statement with SLSA's provenance (build level 1: it is not signed).

    `digests` are the SHA-256 of the files by name, `seconds` is the time of the commit since 1970, and `origin` the
    address of the repository, or empty.
    """
    source: dict[str, Any] = {"digest": {"gitCommit": commit}}
    if origin:
        source["uri"] = f"git+{origin}"
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digests[name]}} for name in sorted(digests)],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"version": release},
                "internalParameters": {"SOURCE_DATE_EPOCH": seconds},
                "resolvedDependencies": [source],
            },
            "runDetails": {"builder": {"id": BUILDER, "version": dict(tools)}},
        },
    }


def tools() -> dict[str, str]:
    """The versions of what builds the packages, in this environment."""
    return {"python": ".".join(map(str, sys.version_info[:3])), **{name: version(name) for name in _TOOLS}}


def public_address(remote: str) -> str:
    """The address of a git remote as it may be published: without a password, and empty for a folder."""
    match = re.fullmatch(r"(https|ssh)://(?:[^@/]*@)?(.+)", remote)
    return f"{match[1]}://{match[2]}" if match else ""


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", "utf-8")


def checksums(files: Iterable[Path]) -> str:
    """Lines for ``sha256sum --check``, which reads them in the folder of the files."""
    ordered: Sequence[Path] = sorted(files, key=lambda path: path.name)
    return "".join(f"{sha256(path)}  {path.name}\n" for path in ordered)
