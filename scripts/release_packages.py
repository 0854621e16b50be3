"""The packages of a release: the source archive, and the wheel of pure Python that is built from it.

Both are the same bytes whoever builds them: hatchling takes the times of files from SOURCE_DATE_EPOCH, the time of the
commit. The wheel names hatchling's version, which `requirements.lock` pins.
"""

import hashlib
import os
import subprocess
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from release_source import unpack

_ADDED = (".so", "modserve/compiled.json")
_LIBRARIES = ".libs/"
"""Where auditwheel puts the libraries that it adds to a wheel."""


@dataclass(frozen=True, slots=True)
class Packages:
    archive: Path
    wheel: Path


def build(checkout: Path, target: Path, seconds: int) -> Packages:
    """Build both into `target`. `checkout` has the files of the commit, whose time is `seconds`.

    Raises RuntimeError with what hatchling says if that fails.
    """
    target.mkdir(parents=True, exist_ok=True)
    archive = _hatchling(checkout, "sdist", target, seconds)
    with TemporaryDirectory(prefix="modserve-sdist-") as work:
        unpack(archive, Path(work))
        [unpacked] = Path(work).iterdir()
        wheel = _hatchling(unpacked, "wheel", target, seconds)
    return Packages(archive, wheel)


def _hatchling(source: Path, kind: str, target: Path, seconds: int) -> Path:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds), "MODSERVE_COMPILED": "0"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"hatchling built no {kind}:\n{done.stdout}{done.stderr}")
    [path] = target.glob("*.tar.gz" if kind == "sdist" else "*-none-any.whl")
    return path


def sha256(path: Path) -> str:
    """In hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def other_files(compiled: Path, pure: Path) -> list[str]:
    """Where a compiled wheel is not the pure one with extension modules: what it lacks, changes or adds, sorted."""
    own, reference = _contents(compiled), _contents(pure)
    lacks = [f"lacks {name}" for name in reference.keys() - own.keys()]
    changes = [f"changes {name}" for name in reference.keys() & own.keys() if own[name] != reference[name]]
    adds = [
        f"adds {name}"
        for name in own.keys() - reference.keys()
        if not name.endswith(_ADDED) and _LIBRARIES not in name and ".dist-info/sboms/" not in name
    ]
    return sorted(lacks + changes + adds)


def _contents(wheel: Path) -> dict[str, int]:
    """Names and checksums of the files, but for those that say what kind of wheel it is.

    Of METADATA, the version of its own format does not count: it is that of the hatchling that built the wheel.
    """
    with zipfile.ZipFile(wheel) as files:
        checksums = {each.filename: each.CRC for each in files.infolist() if not each.is_dir()}
        for name in [*checksums]:
            if name.endswith((".dist-info/RECORD", ".dist-info/WHEEL")):
                del checksums[name]
            elif name.endswith(".dist-info/METADATA"):
                checksums[name] = zlib.crc32(files.read(name).partition(b"\n")[2])
    return checksums
