"""A loader whose loads end when the test says so."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from modserve.core.errors import internal
from modserve.core.loading import Blueprint, DirectoryLease, Listing
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import ResponseSink
from modserve.core.requests.sequence import SequenceId
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.version import ModelId
from modserve.testing import config


class FakeServable:
    """A loaded version which is drained and closed when the test says so."""

    def __init__(self, model_id: ModelId) -> None:
        self.id = model_id
        self.config = config(model_id.name)
        self.config_message = b""
        self.statistics = ModelStatistics()
        self.labels: Mapping[str, tuple[str, ...]] = {}
        self.drained = asyncio.Event()
        self.log: list[str] = []
        self.fail_to_close = False
        self.open_sequences = 0
        self.sequences: set[SequenceId] = set()
        self.submitted: list[InferenceRequest] = []
        self.unready_reason: str | None = None

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        self.submitted.append(request)
        return Inflight(request, sink, request.inputs, (), 1, None, now_ns)

    def has_sequence(self, id: SequenceId) -> bool:
        return id in self.sequences

    def abandon_sequence(self, id: SequenceId) -> None:
        self.sequences.discard(id)

    async def drain(self) -> None:
        self.log.append("drain")
        await self.drained.wait()

    async def close(self) -> None:
        self.log.append("close")
        if self.fail_to_close:
            raise OSError("stuck")


class FakeLoader:
    """Loads end when the test says so, or at once if `patient` is off."""

    def __init__(self) -> None:
        self.patient = False
        self.unusable: dict[str, Exception] = {}
        self.failures: dict[ModelId, Exception] = {}
        self.loads: dict[ModelId, asyncio.Future[FakeServable]] = {}
        self.order: list[ModelId] = []
        self.servables: dict[ModelId, FakeServable] = {}
        self.forgotten: list[str] = []
        self.inspected: list[str] = []
        self._begun: defaultdict[ModelId, asyncio.Event] = defaultdict(asyncio.Event)
        self.listings: list[Listing] = []
        """What was loaded, in order."""
        self.paths: list[Path] = []
        """From where."""
        self.failing = 0
        """So many loads fail."""
        self.needed: dict[str, Mapping[str, frozenset[int | None]]] = {}
        """What a model is made of."""

    async def begun(self, name: str, version: int) -> None:
        """Return when a load of the version has begun."""
        async with asyncio.timeout(30):
            await self._begun[ModelId(name, version)].wait()

    def forget(self, name: str) -> None:
        self.forgotten.append(name)

    async def inspect(self, listing: Listing) -> Blueprint:
        self.inspected.append(listing.name)
        if listing.name in self.unusable:
            raise self.unusable[listing.name]
        needs = self.needed.get(listing.name, {})
        return Blueprint(listing, listing.versions, needs, partial(self._load, listing))

    async def _load(self, listing: Listing, path: Path, version: int) -> FakeServable:
        model_id = ModelId(listing.name, version)
        self.order.append(model_id)
        self.listings.append(listing)
        self.paths.append(path)
        self._begun[model_id].set()
        if self.failing:
            self.failing -= 1
            raise internal("not yet")
        if model_id in self.failures:
            raise self.failures[model_id]
        servable = self.servables[model_id] = FakeServable(model_id)
        if not self.patient:
            servable.drained.set()
            return servable
        self.loads[model_id] = asyncio.get_running_loop().create_future()
        return await self.loads[model_id]

    def finish(self, name: str, version: int) -> None:
        model_id = ModelId(name, version)
        self.loads[model_id].set_result(self.servables[model_id])


class FakeStore:
    """Implements `core.loading.Repository`: has no models of its own, and counts the leases on what it lists."""

    def __init__(self) -> None:
        self.leases = 0
        self.failures: list[Exception] = []
        """Raised by the next fetches."""

    def listing(self, name: str, *versions: int, mark: object = None, config: str | None = None) -> Listing:
        return Listing(name, self, Path(name), versions, config=config, marks={None: mark})

    async def names(self) -> Collection[str]:
        return ()

    async def look(self, names: Collection[str] | None = None) -> Mapping[str, Listing]:
        return {}

    async def remarks(self) -> Sequence[str]:
        return ()

    async def fetch(self, listing: Listing, version: int) -> DirectoryLease:
        if self.failures:
            raise self.failures.pop()
        self.leases += 1
        return DirectoryLease(listing.path, self._release)

    async def _release(self) -> None:
        self.leases -= 1


async def turns(condition: Callable[[], bool]) -> None:
    """Let the event loop run until the condition holds."""
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("that never came about")
