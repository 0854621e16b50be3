"""Which files make up the models of a remote repository, from nothing but their keys and sizes."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from modserve.core.version import may_be_model, parse_directory
from modserve.repository import rollbacks

MOST_CONFIG_BYTES = 16 << 20
_MOST_PART_BYTES = 255
_COMPILED = "__pycache__"
"""What Python writes beside a model's own modules is no part of the model."""


class RemoteFile(NamedTuple):
    """A file of a model, as the store lists it."""

    path: str
    """Below the repository, with the model's name first; its parts are separated by slashes."""
    size: int
    """In bytes."""
    mark: str
    """Different whenever the content is: the ETag; where the store has none, the time of modification."""
    source: str
    """Hash of all that tells this content from others: the store, the key, the mark and the size."""


def identity(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@dataclass(slots=True)
class ModelFiles:
    """The files of one model."""

    name: str
    by_version: dict[int | None, list[RemoteFile]] = field(default_factory=dict)
    """By version directory; those outside of all, which all versions share, by None."""
    problem: str = ""
    """Why nothing of it is touched."""
    rolled_back: RemoteFile | None = None
    """The file that says which versions were rolled back: no part of the model."""

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(sorted(version for version in self.by_version if version is not None))

    @property
    def all(self) -> list[RemoteFile]:
        own = [] if self.rolled_back is None else [self.rolled_back]
        return [*own, *(file for files in self.by_version.values() for file in files)]

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of the model that are not versions."""
        paths = [file.path.split("/") for file in self.by_version.get(None, ())]
        return tuple(sorted({path[1] for path in paths if len(path) > 2}))

    @property
    def filenames(self) -> list[frozenset[str]]:
        """The names in the folder of each version, and in those below it, the lowest version first."""
        paths = [[file.path.split("/")[2:] for file in self.by_version[version]] for version in self.versions]
        return [frozenset("/".join(path[:depth]) for path in each for depth in (1, 2)) for each in paths]

    def marks(self) -> dict[int | None, tuple[RemoteFile, ...]]:
        return {None: ()} | {version: tuple(sorted(files)) for version, files in self.by_version.items()}

    def file(self, below: str) -> RemoteFile | None:
        """One that all versions share, by its path in the model's folder."""
        return next((file for file in self.by_version.get(None, ()) if file.path == f"{self.name}/{below}"), None)


def trick(path: str) -> str:
    """What is wrong with a key as a path below a directory; empty if nothing is."""
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return f"'{path}' has the part '{part}'"
        if "\\" in part or any(ord(letter) < 32 or ord(letter) == 127 for letter in part):
            return f"{path!r} has a backslash or a control character"
        if len(part.encode("utf-8", "surrogatepass")) > _MOST_PART_BYTES:
            return f"'{path[:80]}…' has a part of more than {_MOST_PART_BYTES} bytes"
        if any(0xD800 <= ord(letter) < 0xE000 for letter in part):
            return f"{path!r} is not valid text"
    return ""


def refusal(problem: str) -> str:
    return f"a key of the model cannot be a file below its folder: {problem}; rename or delete it"


def models_of(files: Iterable[RemoteFile]) -> dict[str, ModelFiles]:
    """The models that some files make up, by name; what lies beside their folders is left out.

    What consoles make for an empty folder, an object without bytes of the folder's name, stands for the folder.
    """
    listed = [file for file in files if _COMPILED not in file.path.split("/")]
    folders: set[str] = set()
    for file in listed:
        above = file.path.rpartition("/")[0]
        while above and above not in folders:
            folders.add(above)
            above = above.rpartition("/")[0]
    models: dict[str, ModelFiles] = {}
    seen: set[str] = set()
    for file in sorted(listed, key=lambda file: (file.path, -file.size)):
        name, slash, below = file.path.partition("/")
        if not slash or not may_be_model(name) or trick(name):
            continue
        model = models.setdefault(name, ModelFiles(name))
        top, *rest = below.split("/")
        version = parse_directory(top)
        if problem := trick(file.path):
            model.problem = model.problem or refusal(problem)
        elif not file.size and (file.path in folders or file.path in seen or (not rest and version is not None)):
            if version is not None:
                model.by_version.setdefault(version, [])
        elif file.path in folders or file.path in seen:
            model.problem = model.problem or refusal(f"'{file.path}' is both a file and a folder")
        elif below == rollbacks.FILE:
            model.rolled_back = file
        else:
            seen.add(file.path)
            key = version if rest and version is not None else None
            model.by_version.setdefault(key, []).append(file)
    return models


def beside(files: Iterable[RemoteFile], models: Mapping[str, ModelFiles]) -> list[str]:
    """What is in the repository and in no model: files without a folder, and folders that no model can be in."""
    tops = {file.path.partition("/")[0] for file in files if "/" in file.path or file.size}
    return sorted(top for top in tops - models.keys() if not top.startswith(".") or trick(top))
