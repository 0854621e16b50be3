"""Brings files of a store into the cache: some at a time, each checked, again if it breaks off, and from there on.

The files of each model of a remote repository, from nothing but their keys and sizes.
"""

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, ParamSpec, TypeVar

from modserve.core.files.remote_place import RemotePlace
from modserve.core.version import may_be_model, parse_directory
from modserve.repository import rollbacks

from .cache import Claim, DownloadCache, unwritable
from .failures import StoreError, broken

MOST_CONFIG_BYTES = 16 << 20
_MOST_PART_BYTES = 255
_COMPILED = "__pycache__"
"""Directory that Python writes next to a model's modules; it is no part of the model."""


class RemoteFile(NamedTuple):
    """A file of a model, as the store lists it."""

    path: str
    """Below the repository, with the model's name first; its parts are separated by slashes."""
    size: int
    """Size in bytes."""
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
    """Files by version directory; those outside of all, which all versions share, by None."""
    problem: str = ""
    """Reason for which nothing of it is touched."""
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
        """Return a file that all versions share, by its path in the model's folder."""
        return next((file for file in self.by_version.get(None, ()) if file.path == f"{self.name}/{below}"), None)


def trick(path: str) -> str:
    """Return the fault of a key as a path below a directory; empty without one."""
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
    """Return the models that some files make up, by name; files outside their folders are left out.

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
    """Return the names that belong to no model: files without a folder, and folders that no model can be in."""
    tops = {file.path.partition("/")[0] for file in files if "/" in file.path or file.size}
    return sorted(top for top in tops - models.keys() if not top.startswith(".") or trick(top))


_log = logging.getLogger(__name__)

_MD5 = re.compile(r"[0-9a-f]{32}")
_WAIT_S = 0.05
_PROGRESS_S = 5.0

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
OnBytes = Callable[[int], None]


class Download(NamedTuple):
    """A file that has been opened for reading, from some byte on."""

    size: int
    """Size of the whole file in bytes, as the store reports now."""
    mark: str
    """Mark as in `RemoteFile.mark`."""
    sha256: str
    """Digest that the uploader of the file declares; empty for none."""
    blocks: AsyncIterator[bytes]


Open = Callable[[int], Awaitable[Download]]
"""Function from the first byte to read to the file; raises StoreError, as its blocks do."""


@dataclass(slots=True)
class Patience:
    """Time-out and number of attempts."""

    timeout_s: float = 10.0
    """Longest time without a byte from the store."""
    attempts: int = 4
    pause_s: float = 0.5
    """Pause before the second attempt; twice as long before each further one."""
    look_pause_s: float = 10.0
    """Pause before polling retries a failure; twice as long after each further failure."""


@dataclass(slots=True)
class Transfer:
    """State and limits that all repositories of a process share."""

    cache: DownloadCache
    patience: Patience = field(default_factory=Patience)
    at_a_time: int = 8
    _slots: asyncio.Semaphore | None = field(default=None, init=False)
    _executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8, "repository"), init=False)
    _plain_marks: set[RemotePlace] = field(default_factory=set, init=False)
    """The places where a mark that looks like an MD5 is none, as where the store encrypts."""

    async def blocking(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run something on a thread; what the system says is wrong with the cache becomes INTERNAL."""
        try:
            return await asyncio.wrap_future(self._executor.submit(work, *args, **kwargs))
        except OSError as error:
            raise unwritable(self.cache.root, error) from error

    async def bring(self, place: RemotePlace, file: RemoteFile, open_at: Open, on_bytes: OnBytes) -> str:
        """Have the content of a file in the cache, and return its digest. Raises StoreError, or INTERNAL for the cache.

        If several tasks of any process want the same file, one downloads it. `on_bytes` hears how many more bytes
        are here, or no longer.
        """
        while (claim := await self._take(file)) is None:  # noqa: ASYNC110 - a lock of the system, of any process
            await asyncio.sleep(_WAIT_S)
        if isinstance(claim, str):
            on_bytes(file.size)
            return claim
        if self._slots is None:
            self._slots = asyncio.Semaphore(self.at_a_time)
        try:
            async with self._slots:
                return await self._download(place, file, open_at, on_bytes, claim)
        finally:
            self._executor.submit(claim.close)

    async def _take(self, file: RemoteFile) -> Claim | str | None:
        taking = self._executor.submit(self.cache.take, file.source, file.size)
        try:
            return await asyncio.wrap_future(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_let_go)
            raise

    async def _download(
        self, place: RemotePlace, file: RemoteFile, open_at: Open, on_bytes: OnBytes, claim: Claim
    ) -> str:
        on_bytes(claim.size)
        doubted = ""
        attempt = 0
        while True:
            try:
                await self._receive(place, file, open_at, on_bytes, claim)
                if self._is_sound(place, file, claim, doubted):
                    break
                doubted = claim.sha256
                await self._restart(claim, on_bytes)
            except StoreError as error:
                attempt += 1
                if not error.transient or attempt >= self.patience.attempts:
                    raise
                _log.info("%s; attempt %d of %d", error.message, attempt, self.patience.attempts)
                await asyncio.sleep(self.patience.pause_s * 2 ** (attempt - 1))
        return await self.blocking(self.cache.keep, file.source, claim)

    async def _receive(
        self, place: RemotePlace, file: RemoteFile, open_at: Open, on_bytes: OnBytes, claim: Claim
    ) -> None:
        """Read what is missing of a file. Raises StoreError."""
        if claim.size > file.size:
            await self._restart(claim, on_bytes)
        if claim.size == file.size and file.size:
            return
        incoming = await self._in_time(place, file, open_at(claim.size))
        if incoming.mark != file.mark:
            await self._restart(claim, on_bytes)
            raise broken(place, file.path, "it changed while it was read; the next scan will find its new state")
        if incoming.size != file.size:
            why = f"the store lists {file.size} bytes, but would send {incoming.size}"
            raise broken(place, file.path, why)
        blocks = aiter(incoming.blocks)
        while (block := await self._in_time(place, file, _next(blocks))) is not None:
            if claim.size + len(block) > file.size:
                await self._restart(claim, on_bytes)
                raise broken(place, file.path, f"the store lists {file.size} bytes, but sends more")
            await self.blocking(claim.write, block)
            on_bytes(len(block))
        if claim.size < file.size:
            raise broken(place, file.path, f"the transfer ended after {claim.size} of {file.size} bytes")
        if incoming.sha256 and incoming.sha256 != claim.sha256:
            arrived = claim.sha256
            await self._restart(claim, on_bytes)
            raise broken(place, file.path, f"its SHA-256 is {arrived}, but its metadata says {incoming.sha256}")

    async def _in_time(self, place: RemotePlace, file: RemoteFile, reading: Awaitable[Result]) -> Result:
        try:
            # The library has time-outs, too; this one is for what they leave out.
            async with asyncio.timeout(4 * self.patience.timeout_s):
                return await reading
        except TimeoutError as error:
            raise broken(place, file.path, "the store does not respond in time") from error

    async def _restart(self, claim: Claim, on_bytes: OnBytes) -> None:
        on_bytes(-claim.size)
        await self.blocking(claim.restart)

    def _is_sound(self, place: RemotePlace, file: RemoteFile, claim: Claim, doubted: str) -> bool:
        """True if a file has arrived as it is in the store; False if a second download must decide.

        The ETag of many stores is the content's MD5, but not where they encrypt: then two downloads are the same.
        """
        if _MD5.fullmatch(file.mark) is None or file.mark == claim.md5 or place in self._plain_marks:
            return True
        if doubted and doubted != claim.sha256:
            raise broken(place, file.path, "it arrives damaged: its MD5 does not match its ETag and differs each time")
        if doubted:
            self._plain_marks.add(place)
            _log.info("the ETags of '%s' are not MD5 digests, as with encryption: only sizes are compared", place)
        return bool(doubted)


async def _next(blocks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(blocks, None)


def _let_go(taking: "Future[Claim | str | None]") -> None:
    if not taking.cancelled() and taking.exception() is None and isinstance(claim := taking.result(), Claim):
        claim.close()


class DownloadProgress:
    """Says in the log how far the download of a version has come. `clock` is in seconds."""

    def __init__(self, subject: str, place: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._subject, self._place, self._total, self._clock = subject, place, total, clock
        self._done = 0
        self._began = self._said = clock()

    def add(self, count: int) -> None:
        """Add `count` downloaded bytes; it is negative where they have to come again."""
        self._done += count
        now = self._clock()
        if now - self._said >= _PROGRESS_S:
            self._said = now
            percent = 100 * self._done // self._total if self._total else 100
            amount = f"{in_bytes(self._done)} of {in_bytes(self._total)} ({percent} %)"
            seconds = now - self._began
            rate = in_bytes(int(max(0, self._done) / seconds))
            text = "%s: %s downloaded from '%s', in %.0f s, %s a second"
            _log.info(text, self._subject, amount, self._place, seconds, rate)

    def end(self, total: int | None = None) -> None:
        """Log the end of a download: `total` bytes, where their number was not known before."""
        amount, seconds = in_bytes(self._total if total is None else total), self._clock() - self._began
        _log.info("%s: %s downloaded from '%s', in %.1f s", self._subject, amount, self._place, seconds)


def in_bytes(count: int) -> str:
    """Format a number of bytes for people, such as ``1.5 MB``."""
    size, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    if count == 1:
        return "1 byte"
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
