"""Integrity checks on a model's files before an engine opens them, and again afterwards.

Digests come from lists in the format of sha256sum, called SHA256SUMS, in the repository, the model's directory or the
version's, and from the ``checksum`` agent in the configuration. Anyone who can write files can write lists as well: the
lists detect damaged or partial copies, and changes by someone who could not change the list.
"""

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from modserve import config as model_config
from modserve.backends.api import Backend
from modserve.backends.code import code_in
from modserve.core.errors import ModserveError, invalid, unavailable
from modserve.core.files import regular_file
from modserve.core.files.checksums import STRONG, Checksum, digest_of, read_list
from modserve.core.files.file_tree import walk
from modserve.core.version import parse_directory

LIST = "SHA256SUMS"
_MOST_SHOWN = 5

Marks: TypeAlias = dict[str, tuple[int, int, int]]
"""Marks of files: time of modification, size and number, which differ in a new file of the same name."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Rules for refusing models."""

    require_digests: bool = False
    """Refusal of files without a digest."""
    deny_code: bool = False
    """Refusal of models that would run code from the repository."""

    def admit(
        self, draft: model_config.Draft, backend: Backend | None, directory: Path, version: int, file: Path
    ) -> Callable[[], None]:
        """Check a version. Raises INVALID_ARG if it must not be opened; `backend` is None for an ensemble. Blocking.

        The result is to be called when it has been opened: it raises UNAVAILABLE if its files changed meanwhile.
        """
        # What models in Python write into their own directories is their own business.
        alone = backend is not None and _runs_code(draft, backend, file)
        look = functools.partial(_marks, directory, version, file, alone=alone)
        before = look()
        for failure in self.problems(draft, backend, directory, version, file):
            raise failure
        return functools.partial(_compare, draft.name, version, before, look)

    def problems(
        self, draft: model_config.Draft, backend: Backend | None, directory: Path, version: int, file: Path
    ) -> Iterator[ModserveError]:
        """Yield all reasons not to open a version. Blocking; reads the files that have a digest."""
        if (
            backend is not None
            and self.deny_code
            and (code := code_in(backend, draft.backend, draft.provisional(), file))
        ):
            yield invalid(f"model '{draft.name}' is not loaded, since the server runs with --deny-code: {code}")
        alone = backend is not None and _runs_code(draft, backend, file)
        for path, fault in _irregular(directory / str(version), file, alone=alone):
            yield invalid(f"model '{draft.name}' is not loaded: '{path}' cannot be read: {fault}")
            return
        try:
            lists = list(_lists(directory, draft.name, version))
        except ModserveError as error:
            yield error
            return
        declared = [(f"'{source}'", each) for source, checksums in lists for each in checksums]
        own = draft.provisional().checksums
        declared += [("the checksum agent in the configuration", each) for each in own]
        known: dict[tuple[str, str], str | OSError] = {}
        for source, checksum in declared:
            if _is_of(checksum.path, version) and (wrong := _mismatch(draft, directory, checksum, known)):
                yield invalid(f"model '{draft.name}' is not loaded: {wrong}, says {source}")
        if self.require_digests:
            trusted = () if draft.source.label else own  # a client sent the configuration of a load call
            covered = {each.path for _, checksums in lists for each in checksums}
            covered |= {each.path for each in trusted if each.algorithm in STRONG}
            absent = sorted(path for path in _files(directory, version) if path not in covered)
            if absent or not covered:
                yield _without_digest(draft.name, version, directory, absent)


def _runs_code(draft: model_config.Draft, backend: Backend, file: Path) -> bool:
    try:
        return bool(code_in(backend, draft.backend, draft.provisional(), file))
    except Exception:  # the engine says so when it opens the file
        return False


def _lists(directory: Path, name: str, version: int) -> Iterator[tuple[Path, list[Checksum]]]:
    """Yield the lists that are there, with paths from the model's directory. Raises INVALID_ARG."""
    places = ((directory.parent, f"{name}/", ""), (directory, "", ""), (directory / str(version), "", f"{version}/"))
    for folder, left_out, added in places:
        file = folder / LIST
        try:
            text = regular_file.read_text(file, "surrogateescape")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise invalid(f"model '{name}' is not loaded: cannot read '{file}': {error.strerror}") from error
        yield (
            file,
            [
                each._replace(path=added + each.path.removeprefix(left_out))
                for each in read_list(file, text)
                if each.path.startswith(left_out)
            ],
        )


def _is_of(path: str, version: int) -> bool:
    """True if a file belongs to a version: it is in its folder, or in none of a version."""
    top, slash, _ = path.partition("/")
    number = parse_directory(top) if slash else None
    return number in (None, version)


def _mismatch(
    draft: model_config.Draft, directory: Path, checksum: Checksum, known: dict[tuple[str, str], str | OSError]
) -> str:
    """Describe what is wrong with a file; empty if it has its digest. `known` are digests already computed."""
    algorithm, path, expected = checksum
    file = directory / path
    digest = known.get((algorithm, path))
    if digest is None:
        try:
            if not file.is_file():  # a pipe would never end
                raise FileNotFoundError(0, "there is no such file")
            digest = digest_of(file, algorithm)
            if file == draft.source.path and draft.exists and not draft.source.label:
                text = regular_file.read_bytes(file).decode("utf-8-sig", "surrogateescape")
                if text != draft.source.text:
                    raise BlockingIOError(0, "it changed while it was read")
        except OSError as error:
            digest = error
        known[algorithm, path] = digest
    if isinstance(digest, OSError):
        return f"cannot read '{file}': {digest.strerror}; expected a file with the {algorithm.upper()} {expected}"
    return (
        "" if digest == expected else f"mismatched {algorithm.upper()} of '{file}': expected {expected}, got {digest}"
    )


def _files(directory: Path, version: int) -> Iterator[str]:
    """Yield the files of a version, and the files that all versions share."""
    for entry in walk(directory):
        path = entry.path.replace(os.sep, "/")
        if not entry.is_directory and _is_of(path, version) and path not in (LIST, f"{version}/{LIST}"):
            yield path


def _without_digest(name: str, version: int, directory: Path, absent: list[str]) -> ModserveError:
    if (link := directory / str(version)).is_symlink():  # of a model without a repository
        directory = link.resolve()
    more = f" and {len(absent) - _MOST_SHOWN} more" if len(absent) > _MOST_SHOWN else ""
    what = f" of: {', '.join(absent[:_MOST_SHOWN])}{more}" if absent else ""
    return invalid(
        f"model '{name}' version {version} is not loaded, since the server runs with --require-digests: there is no "
        f"SHA256 digest{what}\nto trust the files as they are: cd {directory} && find . -type f ! -name {LIST} "
        f"-exec sha256sum {{}} + > {LIST}"
    )


def _irregular(folder: Path, file: Path, *, alone: bool) -> Iterator[tuple[Path, str]]:
    """Yield the pipes and devices of a version that an engine could open and then wait for ever, with the reason.

    `alone`: look at the model's file only, since a model in Python may keep anything next to it. The same holds for a
    file in no repository; its version folder is a link.
    """
    with suppress(OSError):
        if fault := regular_file.fault(file.stat().st_mode):
            yield file, fault
    if alone:
        return
    for root in (file,) if folder.is_symlink() else dict.fromkeys((folder, file)):
        for entry in walk(root):
            if fault := regular_file.fault(entry.status.st_mode):
                yield root / entry.path, fault


# Files that change while they are read


def _marks(directory: Path, version: int, file: Path, *, alone: bool) -> Marks:
    """Return the marks of what an engine opens: the model's file or folder, and unless `alone`, the files next to it.

    The folder of a file in no repository may have any other files: there, only files with similar names count.
    """
    marks: Marks = {}
    if file.is_file():
        _note(marks, [(str(file), file.stat())])
    if alone:
        return marks
    folder = directory / str(version)
    stem = file.name.partition(".")[0] if folder.is_symlink() and len(os.listdir(directory)) == 1 else ""
    with suppress(OSError), os.scandir(folder) as entries:
        _note(marks, ((each.path, each.stat()) for each in entries if each.name.startswith(stem) and each.is_file()))
    if file.is_dir() and file != folder:
        _note(marks, ((str(file / each.path), each.status) for each in walk(file) if not each.is_directory))
    return marks


def _note(marks: Marks, files: Iterable[tuple[str, os.stat_result]]) -> None:
    for path, status in files:
        marks[path] = status.st_mtime_ns, status.st_size, status.st_ino


def _compare(name: str, version: int, before: Marks, look: Callable[[], Marks]) -> None:
    """Raise UNAVAILABLE if a file has changed. New files are ignored: Python models and engines may write them."""
    after = look()
    for path, mark in before.items():
        if after.get(path) != mark:
            what = "has changed" if path in after else "is gone"
            raise unavailable(
                f"model '{name}' version {version} is not loaded: '{path}' {what} while it was read; load it again "
                "when it is complete, or replace files by renaming complete ones"
            )
