"""A repository in a bucket or an archive, with models downloaded on demand, and the interface of its source."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from modserve.core.errors import ModserveError, invalid, unavailable
from modserve.core.files.config_file import CONFIG_FILE
from modserve.core.files.remote_place import RemotePath, RemotePlace
from modserve.core.loading import DirectoryLease, Listing
from modserve.core.version import RolledBack, folder_owner
from modserve.repository import rollbacks
from modserve.repository.rollbacks import Rollbacks

from .cache import Placed
from .failures import StoreError
from .transfer import MOST_CONFIG_BYTES, DownloadProgress, ModelFiles, OnBytes, RemoteFile, Transfer, in_bytes


class Contents(NamedTuple):
    """Result of a look at the source."""

    models: Mapping[str, ModelFiles]
    beside: Sequence[str] = ()
    """Names that belong to no model; empty for a look at some models only."""
    sources: Sequence[str] = ()
    """Files that the cache keeps in addition to files of models."""


class RemoteSource(Protocol):
    """Interface of each kind of source. All methods raise `StoreError`."""

    async def names(self) -> Collection[str]:
        """Return the names of all models, cheaply."""

    async def look(self, names: Collection[str] | None) -> Contents:
        """Return the existing models with these names, all for None."""

    async def write(self, path: str, content: bytes) -> None:
        """Write a small file to the store, by its path below the repository; without content, delete it."""

    async def bring(self, file: RemoteFile, on_bytes: OnBytes) -> str:
        """Download a file into the cache, and return its digest; `on_bytes` as in `Transfer.bring`."""


_log = logging.getLogger(__name__)

_FRESH_S = 2.0
"""Seconds for which the names of the last look are used."""
_LONGEST_PAUSE_S = 600.0
_REFER_S = 86_400.0
"""Seconds after which needed files are reported to the cache again."""
_PLACING_ATTEMPTS = 3


@dataclass(slots=True)
class _Failure:
    """Failed download that may succeed later; once due, it counts as a change of the model."""

    count: int
    due: float


class RemoteRepository:
    """Implements `core.loading.Repository`. `clock` is in seconds; for `config_name` see `LocalRepository`."""

    def __init__(
        self,
        place: RemotePlace,
        source: RemoteSource,
        transfer: Transfer,
        clock: Callable[[], float] = time.monotonic,
        config_name: str = "",
    ) -> None:
        self.place = place
        self._custom = f"configs/{config_name}.pbtxt" if config_name else ""
        self._source = source
        self._transfer = transfer
        self._clock = clock
        self._pause_s = transfer.patience.look_pause_s
        self._names: Collection[str] | None = None
        """Models of the last successful look."""
        self._looked = self._failed = float("-inf")
        self._beside: Sequence[str] = ()
        self._last: dict[str, Listing] = {}
        """Last listing of each model with a readable configuration."""
        self._failures: dict[tuple[str, int | None], _Failure] = {}
        self._cleaning = asyncio.Lock()
        self._referred: dict[str, tuple[frozenset[str], float]] = {}
        """Sources of each model recorded in the cache, with the time of recording."""

    def __str__(self) -> str:
        return str(self.place)

    async def names(self) -> Collection[str]:
        """Return the names of the models; while the store does not respond, the names of the last look."""
        now = self._clock()
        if self._names is not None and (now - self._looked < _FRESH_S or now - self._failed < self._pause_s):
            return self._names
        try:
            self._names = frozenset(await self._source.names())
        except StoreError as error:
            self._failed = self._clock()
            if self._names is None:
                raise
            _log.debug("%s", error.message)
            return self._names
        self._looked = self._clock()
        return self._names

    async def look(self, names: Collection[str] | None = None) -> Mapping[str, Listing]:
        try:
            contents = await self._source.look(names)
        except StoreError:
            self._failed = self._clock()
            raise
        self._failed = float("-inf")
        if names is None:
            self._looked = self._clock()
            self._names, self._beside = frozenset(contents.models), contents.beside
            self._failures = {key: each for key, each in self._failures.items() if key[0] in contents.models}
            self._last = {name: each for name, each in self._last.items() if name in contents.models}
        await self._refer(contents, names is None)
        kept = await self._transfer.blocking(self._read_kept)
        async with asyncio.TaskGroup() as tasks:
            listings = [
                tasks.create_task(self._listing(model, kept.get(model.name, {}))) for model in contents.models.values()
            ]
        return {each.result().name: each.result() for each in listings}

    async def remarks(self) -> Sequence[str]:
        return [
            f"'{self.place}/{name}' is ignored: "
            + (folder_owner(name) or "a model is a folder, such as 'NAME/1/model.onnx'")
            for name in self._beside
        ]

    # Looking

    async def _refer(self, contents: Contents, whole: bool) -> None:
        """Report needed files to the cache, and let it clean the rest."""

        now, cache, first = self._clock(), self._transfer.cache, not self._referred
        news = {}
        for model in contents.models.values():
            sources = frozenset({file.source for file in model.all}.union(contents.sources))
            known, since = self._referred.get(model.name, (frozenset(), float("-inf")))
            if sources != known or now - since > _REFER_S:
                news[model.name] = sources
        gone = self._referred.keys() - contents.models.keys() if whole else set()
        if not (news or gone or first):
            return

        def refer() -> None:
            changed = [cache.refer(str(self.place), name, sources) for name, sources in news.items()]
            if whole:
                changed.append(cache.forget_others(str(self.place), contents.models.keys()))
            if first or any(changed):
                cache.clean()

        await self._transfer.blocking(refer)
        self._referred |= {name: (sources, now) for name, sources in news.items()}
        for name in gone:
            del self._referred[name]

    async def _listing(self, model: ModelFiles, kept: Rollbacks) -> Listing:
        marks: dict[int | None, object] = dict(model.marks())
        for version in {None, *model.versions}:
            if failures := self._count_due(model.name, version):
                marks[version] = (marks[version], failures)
        last = self._last.get(model.name)
        content: bytes | ModserveError | None
        custom = self._custom and model.file(self._custom)
        config_file = self._custom if custom else CONFIG_FILE
        rolled_back, remark = kept, ""
        try:
            stored, remark = await self._read_stored(model)
            rolled_back = {**kept, **stored}
            if last is not None and last.marks == marks:
                last = self._last[model.name] = replace(last, rolled_back=rolled_back, remark=remark)
                return last
            content = await self._config(model, custom or model.file(CONFIG_FILE))
        except ModserveError as error:
            content = error
            if isinstance(error, StoreError) and error.transient:
                self._note_failure(model.name, None)
                if last is not None:
                    _log.warning("%s; model '%s' stays as it is", error.message, model.name)
                    return last
        path = RemotePath(f"{self.place}/{model.name}")
        listing = Listing(
            model.name,
            self,
            path,
            model.versions,
            content,
            config_file=config_file,
            marks=marks,
            filenames=model.filenames,
            folders=model.folders,
            rolled_back=rolled_back,
            remark=remark,
        )
        if not isinstance(content, ModserveError):
            self._last[model.name] = listing
        return listing

    async def _config(self, model: ModelFiles, file: RemoteFile | None) -> bytes | None:
        if model.problem:
            raise invalid(model.problem)
        if file is None:
            return None
        if file.size > MOST_CONFIG_BYTES:
            most = in_bytes(MOST_CONFIG_BYTES)
            raise invalid(f"'{file.path}' has {in_bytes(file.size)}; a configuration may have at most {most}")
        return await self._content(model, file)

    async def _content(self, model: ModelFiles, file: RemoteFile) -> bytes:
        for _ in range(_PLACING_ATTEMPTS):
            digest = await self._source.bring(file, _ignore)
            try:
                return await asyncio.to_thread(self._transfer.cache.content(digest).read_bytes)
            except FileNotFoundError:  # removed by cleaning
                continue
        raise _make_removal_error(model.name)

    # Rollbacks

    def _read_kept(self) -> dict[str, Rollbacks]:
        """Read the rollbacks by model that are stored on this machine instead of the store. Blocking."""
        folder = self._transfer.cache.rollback_folder(str(self.place))
        return {path.name: rollbacks.read(path)[0] for path in (folder.iterdir() if folder.is_dir() else ())}

    async def _read_stored(self, model: ModelFiles) -> tuple[Rollbacks, str]:
        """Read a model's rollbacks from the store, and the reason if its file is ignored. Raises StoreError."""
        file = model.rolled_back
        if file is None:
            return {}, ""
        long = file.size > rollbacks.MOST_BYTES
        content = bytes(rollbacks.MOST_BYTES + 1) if long else await self._content(model, file)
        return rollbacks.parse(content, f"{self.place}/{file.path}")

    async def keep_rollback(self, listing: Listing, version: int, rolled_back: RolledBack | None) -> str:
        """Write a rollback (`RollbackKeeper`) to the store, or else to the cache."""
        name, cache = listing.name, self._transfer.cache
        why = ""
        try:
            model = (await self._source.look((name,))).models.get(name)
            before = {} if model is None else (await self._read_stored(model))[0]
            after = rollbacks.replace_version(before, version, rolled_back)
            if after != before:
                await self._source.write(f"{name}/{rollbacks.FILE}", rollbacks.content_of(after) if after else b"")
        except StoreError as error:
            why = error.message
        own, here = cache.rollback_folder(str(self.place)) / name, bool(why) and rolled_back is not None

        def keep() -> None:
            if here:
                own.mkdir(mode=0o700, parents=True, exist_ok=True)
            if own.exists():
                rollbacks.write(own, version, rolled_back if here else None)

        forgetting = f"a server without the cache '{cache}'"
        try:
            await self._transfer.blocking(keep)
        except ModserveError as error:
            why, forgetting = "; ".join(filter(None, (why, error.message))), "a restart of this or another server"
        return f"{why}: {rollbacks.remedy(listing, version, rolled_back, forgetting)}" if why else ""

    # Fetching

    async def fetch(self, listing: Listing, version: int) -> DirectoryLease:
        files = [*_files(listing.marks.get(None)), *_files(listing.marks.get(version))]
        folders = {f"{listing.name}/{version}": ""}
        try:
            placed = await self._place(listing.name, version, files, folders)
        except StoreError as error:
            if error.transient:
                self._note_failure(listing.name, version)
            raise

        async def release() -> None:
            await self._transfer.blocking(placed.remove)
            await self._clean()

        return DirectoryLease(placed.path, release)

    async def _place(self, name: str, version: int, files: Sequence[RemoteFile], folders: Mapping[str, str]) -> Placed:
        for _ in range(_PLACING_ATTEMPTS):
            digests = await self._bring(name, version, files)
            below = {path.partition("/")[2]: digest for path, digest in {**folders, **digests}.items()}
            placing = asyncio.ensure_future(self._transfer.blocking(self._transfer.cache.place, name, below))
            try:
                placed = await asyncio.shield(placing)
            except asyncio.CancelledError:
                placing.add_done_callback(_remove)
                raise
            if placed is not None:
                return placed
        raise _make_removal_error(name)

    async def _bring(self, name: str, version: int, files: Sequence[RemoteFile]) -> dict[str, str]:
        """Download files into the cache and log this; return their digests by path."""
        find = self._transfer.cache.find
        missing = await self._transfer.blocking(
            lambda: [file for file in files if find(file.source, file.size) is None]
        )
        size = sum(file.size for file in missing)
        what = f"model '{name}', version {version}"
        progress = DownloadProgress(what, str(self.place), size)
        if missing:
            count = f"{len(missing)} file{'s' if len(missing) > 1 else ''}"
            _log.info("%s: downloading %s, %s, from '%s'", what, count, in_bytes(size), self.place)
        new = set(missing)
        tasks: dict[str, asyncio.Task[str]] = {}
        try:
            async with asyncio.TaskGroup() as group:
                for file in files:
                    on_bytes = progress.add if file in new else _ignore
                    tasks[file.path] = group.create_task(self._source.bring(file, on_bytes))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        if missing:
            progress.end()
        return {path: task.result() for path, task in tasks.items()}

    async def _clean(self) -> None:
        """Remove unneeded entries of the cache; failures do not affect the models."""
        async with self._cleaning:
            try:
                await self._transfer.blocking(self._transfer.cache.clean)
            except ModserveError as error:
                _log.warning("%s", error.message)

    # Temporary failures

    def _note_failure(self, name: str, version: int | None) -> None:
        former = self._failures.get((name, version))
        count = 1 if former is None else former.count + 1
        pause = min(self._pause_s * 2 ** min(count - 1, 10), _LONGEST_PAUSE_S)
        self._failures[name, version] = _Failure(count, self._clock() + pause)

    def _count_due(self, name: str, version: int | None) -> int:
        """Return the number of due failures: another one counts as a change of the files, and polling retries them."""
        failure = self._failures.get((name, version))
        return 0 if failure is None else failure.count - (self._clock() < failure.due)


def _files(mark: object) -> Sequence[RemoteFile]:
    """Return the files in the mark of a listing, with or without a number of failures."""
    if isinstance(mark, tuple) and len(mark) == 2 and isinstance(mark[1], int):
        mark = mark[0]
    return [file for file in mark if isinstance(file, RemoteFile)] if isinstance(mark, tuple) else []


def _ignore(count: int) -> None:
    pass


def _remove(placing: "asyncio.Future[Placed | None]") -> None:
    if not placing.cancelled() and placing.exception() is None and (placed := placing.result()) is not None:
        placed.remove()


def _make_removal_error(name: str) -> ModserveError:
    return unavailable(f"another process keeps removing the files of model '{name}': try again")
