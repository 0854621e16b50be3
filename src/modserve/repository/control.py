"""Which models are wanted. The start, polling and explicit calls each write it; the manager makes it so."""

import asyncio
import dataclasses
import enum
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modserve.core.errors import ModserveError, internal, invalid, not_found, unavailable
from modserve.core.lifecycle import IndexEntry, State
from modserve.core.servable import ModelDirectory

from . import overrides, poll, source
from .manager import ModelManager

_log = logging.getLogger(__name__)

DUPLICATE = "model appears in two or more repositories"
ALL = "*"
_MOST_NAMES = 10


class ControlMode(enum.Enum):
    NONE = "none"
    """All models are loaded at the start, and that is it."""
    EXPLICIT = "explicit"
    """Chosen models are loaded at the start, others when a client says so."""
    POLL = "poll"
    """All models are loaded at the start, and the repositories are looked through for changes."""


@dataclass(frozen=True, slots=True)
class ControlOptions:
    mode: ControlMode = ControlMode.NONE
    load: tuple[str, ...] = ()
    """In mode explicit, the models to load at the start; `ALL` alone stands for all."""
    poll_seconds: float = 15
    """In mode poll, the time between two looks; 0 for never."""


class ModelControl:
    """The models which a server should serve. Lives on the event loop's thread."""

    def __init__(self, manager: ModelManager, repositories: Sequence[Path], options: ControlOptions) -> None:
        self._manager = manager
        self._repositories = tuple(repositories)
        self._options = options
        self._wanted: dict[str, ModelDirectory] = {}
        self._asked: set[str] = set()
        """The models that somebody asked for by name, or by asking for all."""
        self._seen: dict[str, ModelDirectory | None] = {}
        """What polling found the last time; None for what has to be looked at again."""
        self._polling: asyncio.Task[None] | None = None
        self._operations: set[asyncio.Task[None]] = set()
        self.waiting: tuple[str, ...] = ()
        """The models that were in the repositories at the start and were not loaded then."""

    def __repr__(self) -> str:
        return f"ModelControl({self._options.mode.value}, {len(self._wanted)} models wanted)"

    async def start(self) -> None:
        """Load what is to be loaded at the start, and begin to poll. Models that fail are states with reasons.

        Raises INVALID_ARG if a repository can not be read.
        """
        self._manager.expect(None)
        try:
            await self._start()
        finally:
            self._manager.expect(())
        if self._options.mode is ControlMode.POLL and self._options.poll_seconds:
            self._polling = asyncio.create_task(self._keep_polling(self._options.poll_seconds))

    async def _start(self) -> None:
        scan = await asyncio.to_thread(source.scan, self._repositories)
        chosen = self._chosen(scan)
        self._manager.expect(chosen & scan.models.keys())
        for path in await asyncio.to_thread(source.loose_files, self._repositories):
            _log.warning("'%s' is ignored: a model is a folder, such as '%s/1/model%s'", path, path.stem, path.suffix)
        if not scan.models and not scan.duplicates:
            where = ", ".join(f"'{path}'" for path in self._repositories)
            _log.warning("there are no models in %s: each folder in it would be one", where)
        for name in chosen & set(scan.duplicates):
            _log.error("model '%s' appears in two or more repositories, none of them is served", name)
            self._manager.refuse(name, DUPLICATE)
        for name in chosen - scan.models.keys() - set(scan.duplicates):
            failure = _not_in_repository(name)
            _log.error("%s", failure.message)
            self._manager.refuse(name, failure.reason)
        self._seen = dict(scan.models)
        self._asked |= chosen
        wanted = {name: directory for name, directory in scan.models.items() if name in chosen}
        wanted |= await self._composing(wanted, scan.models.get)
        self._wanted.update(wanted)
        self.waiting = tuple(sorted(scan.models.keys() - wanted.keys()))
        if wanted:
            _log.info("loading %d model%s", len(wanted), "s" if len(wanted) > 1 else "")
        await self._manager.update(wanted)
        if waiting := sorted(scan.models.keys() - wanted.keys()):
            _log.info("not loaded until a call or --load-model asks for them: %s", _some(waiting))

    async def stop(self) -> None:
        """End polling and what clients have asked for, finish what is in flight, and unload everything."""
        ending = {*self._operations, *([self._polling] if self._polling is not None else [])}
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        self._wanted.clear()
        await self._manager.reconcile(self._wanted)

    # Explicit calls

    async def load(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Load a model, or load it again; on return it is READY in all its versions.

        What is READY already, and has not changed since, is left alone. If a version fails, none is taken, and what was
        served is served on. The models that it is made of are loaded before it. `config` (JSON) takes the place of the
        model's configuration, until the model's files change or it is unloaded; `files`, by path in the model's
        directory, that of all its files, for this load only. A caller that goes away changes nothing.

        Raises INVALID_ARG or INTERNAL, as Triton does, and UNAVAILABLE when the mode is not explicit.
        """
        self._check_explicit()
        overrides.check_model_name(name)
        if files and config is None:
            raise invalid("Load parameter 'config' must be specified for model file override")
        await self._operate(self._load(name, config, files or {}))

    async def unload(self, name: str, dependents: bool = False) -> None:
        """Take a model out of service, after what is being done with it already.

        Returns when it takes nothing new; what it has accepted is finished later. With `dependents`, also the models
        that it is made of, unless somebody asked for them by name or something else needs them. A model that is not
        loaded is no error. Raises UNAVAILABLE when the mode is not explicit.
        """
        self._check_explicit()
        await self._operate(self._unload(name, dependents))

    async def _load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        directory = await asyncio.to_thread(self._directory, name, config, files)
        before = self._wanted.get(name)
        if config is None and before is not None and before.lease is None and directory.same_files(before):
            directory = before
        self._wanted[name] = directory
        done = False
        try:
            composing = await self._composing({name: directory}, self._find)
            self._wanted |= composing
            failures = await self._manager.update({**composing, name: directory}, together=True)
            done = name not in failures
            if done:
                self._asked.add(name)
        finally:
            if not done and self._wanted.get(name) is directory:
                del self._wanted[name]
                if before is not None:
                    self._wanted[name] = before
            if directory.lease is not None:
                await directory.lease.release()
        if not done:
            raise failures[name]

    async def _unload(self, name: str, dependents: bool) -> None:
        self._wanted.pop(name, None)
        self._asked.discard(name)
        for gone in await self._manager.unload(name, dependents, self._asked):
            self._wanted.pop(gone, None)

    def _directory(self, name: str, config: str | None, files: Mapping[str, bytes]) -> ModelDirectory:
        """What a load is to be made from. Blocking."""
        if files and config is not None:
            return overrides.write(name, config, files)
        paths = source.locate(self._repositories).get(name, [])
        if not paths:
            raise _not_in_repository(name)
        if len(paths) > 1:
            raise internal(f"{_not_in_repository(name).message}: {DUPLICATE}")
        return dataclasses.replace(source.read_model(paths[0]), config=config)

    def _find(self, name: str) -> ModelDirectory | None:
        """A model in the repositories, None if it is not there or they can not be read. Blocking."""
        try:
            return self._directory(name, None, {})
        except ModserveError:
            return None

    async def _composing(
        self, wanted: Mapping[str, ModelDirectory], find: Callable[[str], ModelDirectory | None]
    ) -> dict[str, ModelDirectory]:
        """What else is to be loaded for these models: what they are made of, and so on, as far as it can be found.

        What is loaded with a configuration or files of its own stays as it is.
        """
        found: dict[str, ModelDirectory] = {}
        pending = list(wanted.values())
        while pending:
            for need in await self._manager.needs(pending.pop()):
                before = self._wanted.get(need)
                if need in wanted or need in found or (before is not None and before.config is not None):
                    continue
                directory = await asyncio.to_thread(find, need)
                if directory is not None:
                    found[need] = directory
                    pending.append(directory)
        return found

    async def _operate(self, operation: Coroutine[None, None, None]) -> None:
        """Run an operation to its end, whatever becomes of the caller."""
        task = asyncio.create_task(operation)
        self._operations.add(task)
        task.add_done_callback(self._operated)
        await asyncio.wait((task,))
        if task.cancelled():
            raise unavailable("Server not ready")
        task.result()

    def _operated(self, task: asyncio.Task[None]) -> None:
        self._operations.discard(task)
        if not task.cancelled():
            task.exception()  # which the caller may not be there to take

    def _check_explicit(self) -> None:
        if self._options.mode is not ControlMode.EXPLICIT:
            raise unavailable(
                "explicit model load / unload is not allowed if polling is enabled: the model control mode of this "
                f"server is '{self._options.mode.value}', start it with --model-control-mode=explicit"
            )

    # Polling

    async def poll(self) -> None:
        """Load what is new or different in the repositories, and unload what is gone."""
        try:
            scan = await asyncio.to_thread(source.scan, self._repositories)
        except ModserveError as error:
            _log.error("%s; what is loaded stays", error.message)
            return
        changes = poll.changes(self._seen, scan.models)
        self._seen = dict(scan.models)
        for name in scan.duplicates:
            changes.pop(name, None)
            self._seen[name] = None
            self._manager.refuse(name, DUPLICATE)
        gone = [name for name, directory in changes.items() if directory is None]
        self._wanted = scan.models | {
            name: directory for name, directory in self._wanted.items() if name in scan.duplicates
        }
        for name in changes:
            _log.info("model '%s' %s", name, "is gone" if name in gone else "is new or has changed")
        if changes:
            await self._manager.update(changes)
        for name in gone:
            self._manager.forget(name)

    async def _keep_polling(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.poll()
            except Exception:  # the next look may go better
                _log.exception("looking through the model repositories failed unforeseen")

    # What there is

    async def index(self) -> list[IndexEntry]:
        """The table of the models, with those in the repositories that were never loaded."""
        try:
            found = await asyncio.to_thread(source.locate, self._repositories)
        except ModserveError as error:
            _log.warning("the repository index has only models that were loaded: %s", error.message)
            found = {}
        entries = self._manager.index()
        listed = {entry.name for entry in entries}
        for name, paths in found.items():
            if name not in listed:
                entries.append(IndexEntry(name, None, State.UNKNOWN, DUPLICATE if len(paths) > 1 else ""))
        return sorted(entries, key=lambda entry: (entry.name, entry.version or 0))

    def _chosen(self, scan: source.Scan) -> set[str]:
        """The names of the models to load at the start."""
        if self._options.mode is ControlMode.EXPLICIT and self._options.load != (ALL,):
            return set(self._options.load)
        return {*scan.models, *scan.duplicates}


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _not_in_repository(name: str) -> ModserveError:
    return not_found(f"failed to load '{name}', failed to poll from model repository")
