"""Models that come and go, with a clock turned by hand, and loads and executions that end when a test says so."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from modserve.core.errors import ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, ResponseSink
from modserve.core.servable import Servable
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.version import ModelId
from modserve.models.residency.memory import Meter, ModelMemory
from modserve.models.residency.on_demand import OnDemandModel
from modserve.models.residency.on_demand_sequences import OnDemandKeeper
from modserve.models.residency.waiting import NO_RULES, Borrowers, StayRules
from modserve.testing import FakeClock, RecordingSink, config, request

SECOND = 1_000_000_000


class Loaded:
    """Implements `core.servable.Servable`, `RequestHolder` and `Finisher`: a model that is in memory."""

    config_message = b"complete"
    labels: Mapping[str, tuple[str, ...]] = {"OUTPUT0": ("cat", "dog")}
    unready_reason: str | None = None

    def __init__(self, bench: "Bench", name: str, statistics: ModelStatistics) -> None:
        self.id = ModelId(name, 1)
        self.config = config(name)
        self.statistics = statistics
        self.inflights: list[Inflight] = []
        self.bench = bench
        self.closed = self.abandoned = False
        self._settled = asyncio.Event()

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        assert not self.closed, "a request came to a model that has left memory"
        inflight = Inflight(request, sink, request.inputs, ("OUTPUT0",), 1, None, now_ns)
        self.inflights.append(inflight)
        return inflight

    def answer(self) -> None:
        """Settle all that it has."""
        inflights, self.inflights = self.inflights, []
        for each in inflights:
            each.settle(InferenceResponse(self.id.name, 1, dict(each.inputs), each.request.id))
        self._settled.set()
        self._settled = asyncio.Event()

    @property
    def outstanding(self) -> int:
        self.inflights = [each for each in self.inflights if not each.settled]
        return len(self.inflights)

    @property
    def busy(self) -> bool:
        return self.outstanding > 0 and not self.abandoned

    def hurry(self) -> None: ...

    async def idle(self) -> None:
        while self.busy:
            await self._settled.wait()

    async def drain(self) -> None:
        await self.idle()

    async def close(self) -> None:
        assert not self.busy, "a model with work in flight was closed"
        self.closed = True
        self.bench.process -= self.bench.sizes[self.id.name]
        self.bench.log.append(f"-{self.id.name}")


class Sequences(Loaded):
    """The same with sequences."""

    open_sequences = 0

    def has_sequence(self, id: object) -> bool:
        return self.open_sequences > 0

    def abandon_sequence(self, id: object) -> None:
        self.open_sequences = 0


class Bench:
    """A budget, and models by name. `process` is what the process has grown to."""

    def __init__(self, limit: int, wait_s: int = 30, **sizes: int) -> None:
        self.sizes = sizes
        self.process = 1000
        self.clock = FakeClock()
        self.log: list[str] = []
        self.loaded: dict[str, Loaded] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.failures: dict[str, ModserveError] = {}
        self.borrowed: set[str] = set()
        self.health = 0
        meter = Meter(own=lambda: self.process, processes=frozenset, share=lambda pid: 0)

        async def run(work: Callable[[], Any]) -> Any:
            await asyncio.sleep(0)
            return work()

        self.memory = ModelMemory(limit, self.clock, meter, wait_ns=wait_s * SECOND, run=run)
        self.models = {name: self.model(name) for name in sizes}

    def model(
        self,
        name: str,
        rules: StayRules = NO_RULES,
        files: int = 0,
        kind: type[OnDemandModel] = OnDemandModel,
        whole: bool = True,
    ) -> OnDemandModel:
        async def make(statistics: ModelStatistics) -> Servable:
            if name in self.gates:
                await self.gates[name].wait()
            if name in self.failures:
                raise self.failures[name]
            loaded_kind = Sequences if kind is OnDemandKeeper else Loaded
            loaded = self.loaded[name] = loaded_kind(self, name, statistics)
            self.process += self.sizes[name]
            self.log.append(f"+{name}")
            return loaded

        def health() -> None:
            self.health += 1

        lending = Borrowers(lambda servable: servable.id.name in self.borrowed)
        return kind(
            self.memory,
            ModelId(name, 1),
            config(name),
            b"",
            make,
            self.clock,
            files=files,
            whole=whole,
            rules=rules,
            borrowers=lending,
            on_health=health,
        )

    def send(self, name: str, sink: RecordingSink | None = None, **more: Any) -> RecordingSink:
        self.clock.advance(1)
        sink = sink or RecordingSink()
        self.models[name].submit(request(model=name, **more), sink, self.clock.now_ns())
        return sink

    async def infer(self, *names: str) -> None:
        """One request to each model, from its load to its response."""
        for name in names:
            sink = self.send(name)
            await settle()
            self.loaded[name].answer()
            assert sink.responses, sink.errors
            await settle()

    async def wait(self, seconds: float) -> None:
        """Let time pass in steps, with all that follows from it."""
        for _ in range(20):
            self.clock.advance(int(seconds * SECOND / 20))
            await settle()

    @property
    def resident(self) -> str:
        return "".join(name for name, model in self.models.items() if model.residency.resident)


async def settle() -> None:
    """Let all tasks run until none of them can go on."""
    for _ in range(60):
        await asyncio.sleep(0)
