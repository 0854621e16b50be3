"""What the server and the repository see of models. Both are implemented in `models/`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from .errors import ModserveError
from .inflight import Inflight
from .model_config import ModelConfig
from .request import InferenceRequest
from .response import ResponseSink
from .sequence import SequenceId
from .statistics import ModelStatistics
from .tracing import RequestTrace
from .version import ModelId


class Submitter(Protocol):
    """Takes requests for a model version: a `Servable`, or what stands before one."""

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        """As `Servable.submit`."""
        ...


def submit_traced(
    trace: RequestTrace, servable: Submitter, request: InferenceRequest, sink: ResponseSink, now_ns: int
) -> Inflight:
    """Like `servable.submit`, and `trace` records the request."""
    trace.request_id = request.id
    inflight = servable.submit(request, sink, now_ns)
    inflight.trace = trace  # in time, since no response comes before `submit` returns
    start_ns = inflight.request_start_ns
    trace.submitted(inflight.inputs, start_ns, inflight.queue_start_ns or start_ns)
    return inflight


class Servable(Protocol):
    """A loaded model version that takes requests."""

    id: ModelId
    config: ModelConfig
    config_message: bytes
    """The normalised ``inference.ModelConfig``, serialised: what the configuration calls echo."""
    statistics: ModelStatistics
    labels: Mapping[str, tuple[str, ...]]
    """The names of the classes of the outputs that have a label file, by output."""

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        """Check and queue a request; the answer comes to `sink`, never before this returns.

        Never waits. Raises `ModserveError` when the request is wrong or can not be taken; `sink` is then not called.
        """
        ...

    async def drain(self) -> None:
        """Take nothing new; return when everything accepted is settled."""
        ...

    async def close(self) -> None:
        """Let go of the engine. What has not been settled by now is failed."""
        ...


@runtime_checkable
class RequestHolder(Protocol):
    """A servable that knows how many requests it has accepted and not settled."""

    @property
    def outstanding(self) -> int:
        """An ensemble's own requests; those to its steps are counted by the models that run them."""
        ...


@runtime_checkable
class SequenceKeeper(Submitter, Protocol):
    """A servable that lets the sequences that have begun go on while it drains, and refuses all other requests."""

    @property
    def open_sequences(self) -> int:
        """How many have begun and not ended."""
        ...

    def has_sequence(self, id: SequenceId) -> bool:
        """Whether a sequence has begun, and more of its requests may come."""
        ...

    def abandon_sequence(self, id: SequenceId) -> None:
        """If there is such a sequence, end it after those of its requests that have come: it begins anew elsewhere."""
        ...


class Handle(Protocol):
    """A borrowed servable. Until it is given back it takes requests, also while its version is being unloaded."""

    @property
    def servable(self) -> Servable: ...

    def release(self) -> None:
        """Give it back; once."""
        ...


Borrow: TypeAlias = Callable[[str, int | None], Handle]
"""Lends the READY version of a model, the latest for None. Raises NOT_FOUND or UNAVAILABLE with Triton's texts."""


class Lease(Protocol):
    """A claim on a temporary directory, which is deleted when nobody holds it any more."""

    def hold(self) -> None: ...

    async def release(self) -> None: ...


@dataclass(slots=True)
class LoaderMemory:
    """What a loader has read of a model directory already."""

    draft: object | None = None
    """The configuration, in a form that only the loader knows."""


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A model in a model repository, and the versions that are there, in ascending order."""

    name: str
    path: Path
    versions: tuple[int, ...]
    config: str | None = None
    """A configuration as JSON, to be used in place of that in the directory."""
    marks: Mapping[int | None, object] = field(default_factory=dict, compare=False)
    """What the files were like when they were looked at: by version, and for None all outside the version directories.

    Marks are compared for equality and nothing else.
    """
    lease: Lease | None = field(default=None, compare=False)
    """Of a temporary directory, None for a model in a repository."""
    memory: LoaderMemory = field(init=False, compare=False, repr=False, default_factory=LoaderMemory)
    """So that all versions of a load have one configuration, also when the file changes meanwhile."""

    def mark(self, version: int) -> object:
        """Equal for two directories from which a version would be loaded alike."""
        return self.path, self.config, self.marks.get(None), self.marks.get(version)

    def same_files(self, other: "ModelDirectory") -> bool:
        """Whether the files of both are the same, whatever configuration is used in place of theirs."""
        return self.path == other.path and self.marks == other.marks


class UnreadableModelError(ModserveError):
    """A model's configuration can not be read: there is nothing to be tried."""


class ModelLoader(Protocol):
    """Makes servables out of model directories."""

    async def wanted_versions(self, model: ModelDirectory) -> Sequence[int]:
        """Which of the versions its version policy selects.

        Raises `UnreadableModelError`, or another `ModserveError` for an unusable configuration.
        """
        ...

    async def needs(self, model: ModelDirectory) -> Mapping[str, frozenset[int | None]]:
        """The models, with their versions (None: any), that must be READY before this one is loaded.

        None for a configuration that can not be read or used: `wanted_versions` tells what is wrong with it.
        """
        ...

    async def load(self, model: ModelDirectory, version: int) -> Servable:
        """Load one version; ready to take requests on return.

        Raises `ModserveError`, leaving nothing behind; nor does a cancelled call, though what it began may end later.
        """
        ...

    def forget(self, name: str) -> None:
        """No version of a model is loaded any more: what was put aside for it is free."""
        ...
