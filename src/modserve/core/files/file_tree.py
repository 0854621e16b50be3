"""Walk over the files below a directory, through links."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple


class FileEntry(NamedTuple):
    path: str
    """Below the directory, with the system's separators."""
    status: os.stat_result
    """Status of the file; for a link, of its target."""
    is_directory: bool
    is_link: bool


def walk(root: Path, skipped: Collection[str] = ()) -> Iterator[FileEntry]:
    """Yield the readable entries below `root`, without skipped names. Links to a directory above are not followed."""
    pending = [(str(root), "", frozenset[tuple[int, int]]())]
    while pending:
        directory, below, above = pending.pop()
        try:
            entries = list(os.scandir(directory))
        except OSError:
            continue
        for entry in entries:
            if entry.name in skipped:
                continue
            path = f"{below}{entry.name}"
            try:
                status = entry.stat()
                is_directory = entry.is_dir()
            except OSError:
                continue
            yield FileEntry(path, status, is_directory, entry.is_symlink())
            identity = (status.st_dev, status.st_ino)
            if is_directory and identity not in above:
                pending.append((entry.path, f"{path}{os.sep}", above | {identity}))
