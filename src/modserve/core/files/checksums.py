"""Digests of files: expected by a configuration or a list of ``sha256sum``, and computed from the files."""

import hashlib
import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ..errors import invalid
from . import regular_file

SIZES = {"md5": 16, "sha1": 20, "sha256": 32, "sha512": 64}
"""The algorithms, and the bytes of their digests."""
STRONG = frozenset({"sha256", "sha512"})
"""Algorithms without practical collisions."""
_LINE = re.compile(r"(\\?)([0-9A-Fa-f]{64}) [ *](.+)")
_ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}


class Checksum(NamedTuple):
    """The digest that a file must have."""

    algorithm: str
    path: str
    """Relative to the model's directory, with slashes."""
    digest: str
    """Lower-case hexadecimal digest."""


def relative(path: str) -> str:
    """Simplify a path. Raises ValueError for one outside the directory, and for none."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in path:
        raise ValueError(f"'{path}' is not a path below the directory")
    return str(pure)


def read_list(file: Path, text: str) -> list[Checksum]:
    """Read the lines of ``sha256sum`` without empty lines and comments after ``#``. Raises INVALID_ARG."""
    checksums = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise invalid(f"{file}:{number}: expected a line of sha256sum: a digest of 64 digits, two spaces, a path")
        path = match[3]
        if match[1]:  # it has characters that would not fit into a line
            path = re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), path)
        try:
            checksums.append(Checksum("sha256", relative(path), match[2].lower()))
        except ValueError as error:
            raise invalid(f"{file}:{number}: {error}") from None
    return checksums


def digest_of(file: Path, algorithm: str) -> str:
    """Compute the digest of a file. Blocks. Raises OSError."""
    with regular_file.open_regular(file) as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
