"""Selection of the models that are loaded on demand, and how they begin."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from modserve.config import Draft
from modserve.core.errors import ModserveError
from modserve.core.loading import Needs
from modserve.core.residency import LoadMode, MemoryReport
from modserve.core.runtime.clock import Clock, LoopClock
from modserve.core.servable import Borrow, Servable
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.version import ModelId

from .memory import WAIT_NS, Files, Meter, ModelMemory, files_of
from .on_demand import OnDemandModel
from .on_demand_sequences import OnDemandKeeper
from .waiting import NOBODY_BORROWS, Borrowers, StayRules

_log = logging.getLogger(__name__)

LoadVersion: TypeAlias = Callable[..., Awaitable[Servable]]
"""Loads a version from the model's directory at a path; `statistics` are those it counts in, its own without them."""
Look: TypeAlias = Callable[[Path, int], Sequence[ModserveError]]
"""Function that returns what is wrong with a version's files, as far as that shows without an engine. Blocking."""


class Residency:
    """Residency of the models of one server. Without a limit or an option, they enter memory when loaded.

    `limit` is that of all models together, in bytes; 0: none. `lazy`, `idle_ns`: defaults for models without their own.
    """

    def __init__(
        self,
        limit: int = 0,
        *,
        lazy: bool = False,
        idle_ns: int = 0,
        wait_ns: int = WAIT_NS,
        borrowers: Borrowers = NOBODY_BORROWS,
        meter: Meter | None = None,
        on_health: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self.limit = limit
        self._lazy = lazy
        self._idle_ns = idle_ns
        self._wait_ns = wait_ns
        self._borrowers = borrowers
        self._meter = meter
        self._on_health = on_health
        self._clock = clock
        self._memory: ModelMemory | None = None

    @property
    def report(self) -> MemoryReport:
        return MemoryReport(self.limit, 0) if self._memory is None else self._memory.report

    def around(self, draft: Draft, needs: Needs, load: LoadVersion, look: Look, borrow: Borrow) -> LoadVersion:
        """Return the loader of versions in place of `load`: of the model itself, or of one loaded on demand."""
        if draft.is_ensemble:
            return functools.partial(_load_ensemble, needs, load, borrow)
        rules = draft.provisional().residency
        if not (self.limit or self._lazy or self._idle_ns or rules.idle_ns or rules.load is LoadMode.LAZY):
            return load
        return functools.partial(self._admit, draft, load, look)

    async def _admit(self, draft: Draft, load: LoadVersion, look: Look, path: Path, version: int) -> Servable:
        """Admit a version. Raises errors of its files, of files above the limit, and of an eager load."""
        self._clock = self._clock or LoopClock(asyncio.get_running_loop())
        memory = self._memory = self._memory or ModelMemory(self.limit, self._clock, self._meter, wait_ns=self._wait_ns)
        for failure in await asyncio.to_thread(look, path, version):
            raise failure
        files = await asyncio.to_thread(files_of, path / str(version))
        config = draft.provisional()
        rules = config.residency
        kind = OnDemandModel if config.sequence_batching is None else OnDemandKeeper
        model = kind(
            memory,
            ModelId(draft.name, version),
            config,
            draft.identified.SerializeToString(deterministic=True),
            functools.partial(_make, load, path, version, files),
            self._clock,
            files=files.size,
            whole=_is_whole(draft),
            rules=StayRules(rules.pin, self._idle_ns if rules.idle_ns is None else rules.idle_ns),
            borrowers=self._borrowers,
            on_health=self._on_health,
        )
        memory.check(model)
        # Where an older load of the model is in memory, a failure of the new one must show before it takes its place.
        default = LoadMode.LAZY if self._lazy and not memory.has(draft.name) else LoadMode.EAGER
        if (default if rules.load is None or memory.has(draft.name) else rules.load) is LoadMode.EAGER:
            try:
                await model.ensure()
            except BaseException:
                await model.close()
                raise
        return model


async def _make(load: LoadVersion, path: Path, version: int, files: Files, statistics: ModelStatistics) -> Servable:
    if await asyncio.to_thread(files_of, path / str(version)) != files:
        _log.warning(
            "the files in '%s' have changed since the version was loaded; the new ones are loaded now. To check "
            "changes before they serve, load the model again",
            path / str(version),
        )
    return await load(path, version, statistics)


async def _load_ensemble(
    needs: Needs, load: LoadVersion, borrow: Borrow, path: Path, version: int, *rest: Any
) -> Servable:
    """Load an ensemble and check it against its models. Models that only their engine can describe are loaded."""
    for name, versions in needs.items():
        for needed in versions:
            try:
                handle = borrow(name, needed)
            except ModserveError:
                continue  # which the load says better
            try:
                if isinstance(handle.servable, OnDemandModel) and not handle.servable.whole:
                    await handle.servable.describe()
            finally:
                handle.release()
    return await load(path, version, *rest)


def _is_whole(draft: Draft) -> bool:
    """True if a configuration gives the datatypes and shapes of all its tensors."""
    message = draft.identified
    inputs = [bool(each.data_type and each.dims) for each in message.input]
    outputs = [bool(each.data_type and each.dims) for each in message.output]
    return bool(inputs and outputs) and all(inputs + outputs)
