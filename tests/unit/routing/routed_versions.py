"""Versions that respond when the test says so."""

from collections.abc import Mapping

from modserve.core.errors import ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.memory import MemoryBudget
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, ResponseSink
from modserve.core.requests.sequence import SequenceId
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.tensors import dtypes
from modserve.core.version import ModelId
from modserve.routing import reading
from modserve.routing.router import Routed, Router
from modserve.testing import config, tensor


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


class Version:
    """Keeps what it takes in `waiting`."""

    def __init__(self, number: int) -> None:
        self.id = ModelId("m", number)
        self.config = config("m")
        self.config_message = b""
        self.statistics = ModelStatistics()
        self.labels: Mapping[str, tuple[str, ...]] = {}
        self.unready_reason: str | None = None
        self.refusal: ModserveError | None = None
        self.requests: list[InferenceRequest] = []
        self.waiting: list[Inflight] = []
        self.lent = 0

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        inflight = Inflight(request, sink, request.inputs, (), 1, None, now_ns)
        self.waiting.append(inflight)
        return inflight

    def respond(self, value: float | ModserveError = 1.0) -> None:
        """To the first that waits."""
        if not isinstance(value, ModserveError):
            outputs = {"OUTPUT0": tensor(dtypes.FP32, (4,), value)}
            self.waiting.pop(0).settle(InferenceResponse("m", self.id.version, outputs))
        else:
            self.waiting.pop(0).settle(value)

    async def check_ready(self) -> bool:
        return self.refusal is None

    async def drain(self) -> None: ...

    async def close(self) -> None: ...


class Keeper(Version):
    """With sequences."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.sequences: set[SequenceId] = set()

    @property
    def open_sequences(self) -> int:
        return len(self.sequences)

    def has_sequence(self, id: SequenceId) -> bool:
        return id in self.sequences

    def abandon_sequence(self, id: SequenceId) -> None:
        self.sequences.discard(id)


class Stage:
    """A router in front of versions 1, 2, … of model m."""

    def __init__(self, document: object, *versions: Version, limit: int = 0) -> None:
        self.clock = Clock()
        self.memory = MemoryBudget(limit)
        self.versions = {version.id.version: version for version in versions or (Version(1), Version(2))}
        self.router = Router("m", reading.read(document), "api", self.memory, self.clock, lambda: 17)
        self.front = self.routed(*self.versions)

    def routed(self, *numbers: int) -> Routed:
        served = {number: self.versions[number] for number in numbers}
        return Routed(self.router, served, served[max(numbers)])

    @property
    def taken_by(self) -> dict[int, int]:
        """How many requests each version has got."""
        return {number: len(version.requests) for number, version in self.versions.items()}
