"""What the server and the repository see of models. Both are implemented in `models/`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .inflight import Inflight
from .model_config import ModelConfig
from .request import InferenceRequest
from .response import ResponseSink
from .statistics import ModelStatistics
from .version import ModelId


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


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A model in a model repository, and the versions that are there, in ascending order."""

    name: str
    path: Path
    versions: tuple[int, ...]


class ModelLoader(Protocol):
    """Makes servables out of model directories."""

    async def wanted_versions(self, model: ModelDirectory) -> Sequence[int]:
        """Which of the versions its version policy selects. Raises `ModserveError` for an unusable configuration."""
        ...

    async def load(self, model: ModelDirectory, version: int) -> Servable:
        """Load one version; ready to take requests on return. Raises `ModserveError`, leaving nothing behind."""
        ...
