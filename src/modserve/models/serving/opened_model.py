"""Parts of a model: what a loading thread has opened, and how its requests get to the instances.

Reports for ``GET /v2/models/{model}/engine``: a model's backend and instances, and what its engine reports.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from modserve.backends.api import BackendModel, Executor, InstanceSpec
from modserve.core.configuration.model_config import ModelConfig, ModelDescription
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import ResponseSink
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.tensors.tensor import Tensor
from modserve.execution.revival import Make
from modserve.execution.warming import MakeSamples, Sample
from modserve.scheduling.batch_policy import BatchPolicy

_log = logging.getLogger(__name__)


def engine_report(backend: str, engine: BackendModel, specs: Sequence[InstanceSpec]) -> dict[str, object]:
    """Report in the form of `core.servable.EngineReporter`. An engine that reports nothing is called as its backend is.

    Never raises: a report that is no good is told in the log, and left out.
    """
    kinds = Counter(spec.kind.value for spec in specs)
    ours = {"backend": backend, "instances": {"count": len(specs), "kinds": dict(kinds)}}
    return {**ours, "engine": backend, **_read_report(backend, engine), **ours}


def _read_report(backend: str, engine: BackendModel) -> Mapping[str, object]:
    report = getattr(engine, "report", None)
    if not callable(report):
        return {}
    try:
        said = json.loads(json.dumps(report(), allow_nan=False))
        if not isinstance(said, dict):
            raise TypeError(f"a {type(said).__name__} in place of an object")
    except Exception as error:
        _log.warning("backend '%s' returned an unusable report of its model: %s", backend, error)
        return {}
    return said


@dataclass(frozen=True)
class OpenedModel:
    """Result of a loading thread for the event loop: an engine with its instances, and what was read from files."""

    config: ModelConfig
    message: bytes
    """The normalised ``inference.ModelConfig``, serialised."""
    engine: BackendModel
    instances: Sequence[tuple[str, Executor]]
    any_thread: bool
    """True if instances may run on the event loop's thread."""
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    initial_states: Mapping[str, Tensor] = field(default_factory=dict)
    """The states of new sequences that come from files, by input."""
    make: Make | None = None
    """Makes a lost instance again; None: it stays lost."""
    on_health: Callable[[], None] = lambda: None
    """Called when the model may have become ready, or not ready, by itself."""
    on_closed: Callable[[], None] = lambda: None
    """Called when the engine is closed, or is left to itself since it does not close."""
    engine_report: Mapping[str, object] = field(default_factory=dict)
    """Report in the form of `core.servable.EngineReporter`."""
    samples: Sequence[Sample] = ()
    """Samples that the instances run before the model takes requests."""
    make_samples: MakeSamples | None = None
    """Maker of samples for an instance revived much later; None: it takes requests at once."""
    warmed_at_a_time: int = 1
    """The instances that run them side by side."""
    description: ModelDescription | None = None
    """The engine's description of the model when it was opened: finding out may take a process."""
    specs: dict[int, InstanceSpec] = field(default_factory=dict)
    """Specifications of the instances, by number. `make` reads them; they change with the instances."""
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    """Counts of the model, also of earlier loads of it."""
    execution_timeout_ns: int = 0
    """Time after which an execution is given up, unless the configuration sets another; 0: never."""


Accept: TypeAlias = Callable[[InferenceRequest, ResponseSink, int], Inflight]
"""Checks a request that arrived at a time, as `core.requests.normalize.Signature.accept`. Raises INVALID_ARG."""


@dataclass(frozen=True)
class QueueConfig:
    """Settings of how requests get to the instances."""

    accept: Accept
    policy: BatchPolicy | None = None
    """Batch policy; None for models with sequences."""
