"""Local cache of remote repositories' files, each content once, shared by all server processes of a user.

All entries of the folder are created by renaming, and are complete from then on:

- ``content/<sha256>``: contents of files, read-only. Permissions do not stop a model of root from writing to its files,
  which are links to these: their modification time shows it, and they are downloaded again.
- ``records/<source>``: content and size of a file of a store (`files.RemoteFile.source`).
- ``references/<repository>/<model>``: the sources of a model, as of the last look.
- ``models/<number>/<model>/``: a model's directory, of hard links to contents, while a process holds its lock.
- ``rolled_back/<repository>/<model>/``: the file of `rollbacks`, if it cannot be written to the store.
- ``incoming/<source>``: a partial download; the holder of its lock writes it, and may continue it.

Locks are the system's (``flock``), which end with their process. `clean` removes old entries: directories without a
lock, records that no repository refers to, contents without a record and a directory. A repository counts for 30 days
after the last look at it. All methods are blocking.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from modserve.core.errors import ModserveError, internal

UNCHANGED_NS: Final = 946_684_800_000_000_000
"""Modification time of every content; a different one shows that it was written to."""
_READ_BYTES = 1 << 20


class Claim:
    """Exclusive right to write a download. Methods may be called on any thread."""

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self._file = file
        self._guard = threading.Lock()
        self._closed = False
        self.size = 0
        """Cached bytes."""
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False)
        while block := os.read(file, _READ_BYTES):
            self._count(block)

    def _count(self, block: bytes) -> None:
        self._sha256.update(block)
        self._md5.update(block)
        self.size += len(block)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def md5(self) -> str:
        return self._md5.hexdigest()

    def write(self, block: bytes) -> None:
        with self._guard:
            if self._closed:
                return
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            self._count(block)

    def restart(self) -> None:
        """Delete the received data and start again."""
        with self._guard:
            if not self._closed:
                os.ftruncate(self._file, 0)
                os.lseek(self._file, 0, os.SEEK_SET)
                self._sha256, self._md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
                self.size = 0

    def move_to(self, place: Path) -> None:
        os.fchmod(self._file, 0o444)
        os.utime(self._file, ns=(UNCHANGED_NS, UNCHANGED_NS))
        os.rename(self._path, place)

    def discard(self) -> None:
        """Delete the received data."""
        self._path.unlink(missing_ok=True)

    def read(self) -> BinaryIO:
        """Open the file for reading, from its beginning."""
        return self._path.open("rb")

    def close(self) -> None:
        """Release the claim. Idempotent."""
        with self._guard:
            if not self._closed:
                self._closed = True
                os.close(self._file)


_FORGOTTEN_S = 30 * 86_400


def default_directory() -> Path:
    """Return ``modserve/models`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        try:
            base = str(Path.home() / ".cache")
        except RuntimeError:  # a user without a home directory, as in containers
            base = tempfile.gettempdir()
    if not os.access(_existing(Path(base)), os.W_OK):
        return Path(tempfile.gettempdir()) / f"modserve-{os.getuid()}" / "models"
    return Path(base) / "modserve" / "models"


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


@dataclass(slots=True)
class Placed:
    """A model's directory, which exists until the one call of `remove`."""

    path: Path
    _lock: int

    def remove(self) -> None:
        _remove(self.path.parent)
        os.close(self._lock)


class DownloadCache:
    """Cache of downloads, one per process and folder. Raises INTERNAL if the folder is not writable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._content, self._records = root / "content", root / "records"
        self._references, self._models, self._incoming = root / "references", root / "models", root / "incoming"
        self._made = False

    def __str__(self) -> str:
        return str(self.root)

    def _prepare(self) -> None:
        if not self._made:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self._content, self._records, self._references, self._models, self._incoming):
                folder.mkdir(exist_ok=True)
            self._made = True

    @contextmanager
    def _lock(self, how: int = fcntl.LOCK_SH) -> Iterator[None]:
        """Lock the cache against cleaning; with LOCK_EX, against all other use."""
        with self._explain_errors():
            self._prepare()
            file = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, how)
                yield
            finally:
                os.close(file)

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unwritable(self.root, error) from error

    # Contents

    def content(self, digest: str) -> Path:
        return self._content / digest

    def find(self, source: str, size: int | None = None) -> str | None:
        """Return the digest of a file's cached content; None if it is missing, incomplete or changed by a model."""
        try:
            digest, recorded = (self._records / source).read_text("ascii").split()
            there = (self._content / digest).stat()
            same = there.st_size == int(recorded) and there.st_mtime_ns == UNCHANGED_NS
        except (OSError, ValueError):
            return None
        return digest if same and size in (None, there.st_size) else None

    def take(self, source: str, size: int) -> Claim | str | None:
        """Return the digest of a cached file; otherwise like `claim`."""
        claim = None
        digest = self.find(source, size)
        if digest is None and (claim := self.claim(source)) is not None:
            digest = self.find(source, size)  # another process may have completed it until now
            if digest is not None:
                claim.discard()
                claim.close()
        return digest or claim

    def claim(self, source: str) -> Claim | None:
        """Claim the download of a file; None while another process has it."""
        path = self._incoming / source
        with self._lock():
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.stat(path).st_ino == os.fstat(file).st_ino:
                    return Claim(path, file)
            except (BlockingIOError, FileNotFoundError):  # being written, or just turned into a content
                pass
            except BaseException:
                os.close(file)
                raise
            os.close(file)
            return None

    def keep(self, source: str, claim: Claim) -> str:
        """Turn a finished download into a content; return its digest."""
        digest = claim.sha256
        with self._lock():
            # Recorded first: a process that claims the file after the move finds the content.
            self._record(source, digest, claim.size)
            claim.move_to(self._content / digest)
        return digest

    def add(self, blocks: Iterable[bytes]) -> tuple[str, int]:
        """Store a content from elsewhere; return its digest and size. Its source is `source_of` the digest."""
        with self._lock():
            file, temporary = tempfile.mkstemp(dir=self._incoming)
            fcntl.flock(file, fcntl.LOCK_EX)
        claim = Claim(Path(temporary), file)
        try:
            with self._explain_errors():
                for block in blocks:
                    claim.write(block)
            return self.keep(source_of(claim.sha256), claim), claim.size
        except BaseException:
            claim.discard()
            raise
        finally:
            claim.close()

    def remember(self, source: str, digest: str, size: int) -> None:
        """Record another file with an existing content."""
        with self._lock():
            self._record(source, digest, size)

    def _record(self, source: str, digest: str, size: int) -> None:
        # No temporary file, which would double the cost: a concurrent reader finds it empty, as if it were missing.
        with open(self._records / source, "wb", buffering=0) as file:
            file.write(f"{digest} {size}\n".encode())

    def _write(self, path: Path, text: str) -> None:
        file, temporary = tempfile.mkstemp(dir=self._incoming)
        with os.fdopen(file, "w", encoding="utf-8") as open_file:
            open_file.write(text)
        os.rename(temporary, path)

    # Directories of models

    def place(self, model: str, files: Mapping[str, str]) -> Placed | None:
        """Create a directory of a model's files, by relative path with digests; None if one has been cleaned."""
        with self._lock():
            temporary = Path(tempfile.mkdtemp(dir=self._incoming))
            lock = os.open(temporary / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                (temporary / model).mkdir()
                for below, digest in files.items():
                    path = temporary / model / below
                    path.parent.mkdir(parents=True, exist_ok=True)
                    if digest:
                        _link(self._content / digest, path)
                    else:
                        path.mkdir(exist_ok=True)
                final = self._models / temporary.name
                os.rename(temporary, final)
            except BaseException as error:
                _remove(temporary)
                os.close(lock)
                if isinstance(error, FileNotFoundError):
                    return None
                raise
            return Placed(final / model, lock)

    def rollback_folder(self, repository: str) -> Path:
        """Return the folder of rollbacks by model that could not be written to the store."""
        return self.root / "rolled_back" / _hash(repository)

    # References and cleaning

    def refer(self, repository: str, model: str, sources: Collection[str]) -> bool:
        """Record the files of a model as of this look. Return whether they have changed."""
        path = self._references / _hash(repository) / _hash(model)
        text = json.dumps({"repository": repository, "model": model, "sources": sorted(sources)})
        with self._lock():
            try:
                if path.read_text("utf-8") == text:
                    os.utime(path)
                    return False
            except OSError:
                path.parent.mkdir(exist_ok=True)
            self._write(path, text)
            return True

    def forget_others(self, repository: str, models: Collection[str]) -> bool:
        """Forget all other models of a repository, after a look at all. Return whether there were any."""
        kept = {_hash(model) for model in models}
        with self._lock():
            others = [path for path in _entries(self._references / _hash(repository)) if path.name not in kept]
            for path in others:
                path.unlink(missing_ok=True)
        return bool(others)

    def clean(self) -> None:
        """Remove unneeded entries."""
        with self._lock(fcntl.LOCK_EX):
            for directory in _entries(self._models):
                with _idle(directory / ".lock") as idle:
                    if idle:
                        _remove(directory)
            needed = self._find_needed()
            contents = set()
            for record in _entries(self._records):
                if record.name in needed:
                    contents.add(record.read_text("ascii").partition(" ")[0])
                else:
                    record.unlink()
            for content in _entries(self._content):
                if content.name not in contents and content.stat().st_nlink == 1:
                    content.unlink()
            for incoming in _entries(self._incoming):
                if incoming.name not in needed:
                    with _idle(incoming / ".lock" if incoming.is_dir() else incoming) as idle:
                        if idle:
                            _remove(incoming)

    def _find_needed(self) -> set[str]:
        """Return the sources that any repository refers to."""
        needed: set[str] = set()
        for repository in _entries(self._references):
            for path in _entries(repository):
                if path.stat().st_mtime < time.time() - _FORGOTTEN_S:
                    path.unlink()
                    continue
                try:
                    needed.update(json.loads(path.read_text("utf-8"))["sources"])
                except (ValueError, KeyError, TypeError):  # not modserve's
                    path.unlink()
        return needed


def source_of(digest: str) -> str:
    """Return the source for a content of any origin, like `files.RemoteFile.source`."""
    return _hash(f"content {digest}")


def unwritable(root: Path, error: OSError) -> ModserveError:
    return internal(
        f"cannot use '{root}', the cache of remote repositories: {error.strerror or error}; "
        "--repository-cache-dir names another folder"
    )


@contextmanager
def _idle(path: Path) -> Iterator[bool]:
    """Lock a file within the context. Yields True if no process holds its lock, or the file does not exist."""
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield True
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(file)


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _link(content: Path, path: Path) -> None:
    try:
        os.link(content, path)
    except FileNotFoundError:
        raise
    except OSError:  # no hard links in this file system, or too many
        shutil.copyfile(content, path)
        path.chmod(0o444)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
