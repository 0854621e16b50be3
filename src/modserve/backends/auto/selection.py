"""Selection of a model version's engine: opens the candidates and makes the samples to measure them with."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from modserve.core.configuration.model_config import InstanceKind, ModelConfig, ModelDescription

from ..api import Backend, BackendModel, InstanceSpec, ModelSource
from ..options import QUANTIZED_DIRECTORY, default_max_batch_size
from ..registry import BackendRegistry, new_instance
from ..runner import AsyncRunner, Inputs, Runner, runner
from ..tensors import output_datatypes
from .candidates import INT8, Artifact, Candidate
from .options import LATENCY, THROUGHPUT, AutoOptions, engine_parameters
from .samples import Samples, samples
from .setting import BatchSetting

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenCandidate:
    """A candidate's model, open."""

    candidate: Candidate
    backend: Backend
    model: BackendModel
    tuned: BatchSetting | None = None
    """Setting that it was opened for, if chosen by measuring; 0 stands for a value that was not."""


class Selection:
    """Candidates of a model version. `clock` and `sleep` count seconds; the registry has the engines."""

    def __init__(
        self,
        source: ModelSource,
        artifact: Artifact,
        options: AutoOptions,
        registry: BackendRegistry,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.source = source
        self.artifact = artifact
        self.options = options
        self.clock = clock
        self.sleep = sleep
        self._registry = registry

    @property
    def name(self) -> str:
        return self.source.config.name

    def open(self, candidate: Candidate, tuned: BatchSetting | None = None) -> OpenCandidate:
        """Open the model by one engine. Raises any exception of the engine."""
        source = self.source
        if tuned is not None and tuned.instances:
            threads = max(1, source.cpu_threads * source.cpu_instances // tuned.instances)
            source = replace(source, cpu_threads=threads, cpu_instances=tuned.instances)
        backend = self._registry.get(candidate.backend)
        config = replace(
            source.config,
            backend=candidate.backend,
            platform="",
            default_model_filename=self.artifact.path.name,
            parameters=engine_parameters(source.config, candidate.backend, candidate.parameters),
        )
        options = {**self._directories(candidate), **source.options_of.get(candidate.backend, {})}
        model = backend.open(replace(source, config=config, path=self.artifact.path, options=options))
        return OpenCandidate(candidate, backend, model, tuned)

    def _directories(self, candidate: Candidate) -> dict[str, str]:
        """Return the option that keeps quantised models next to the choices."""
        if candidate.precision != INT8:
            return {}
        cache = self.options.cache_directory
        return {QUANTIZED_DIRECTORY: str(cache / "quantized") if cache is not None else "none"}

    def describe(self, opened: OpenCandidate) -> ModelDescription | None:
        """Return an engine's description of the model; the largest batch is the same for all unless tuned."""
        description, tuned = opened.model.describe(), opened.tuned
        if description is None:
            return None
        size = default_max_batch_size(self.source.options)
        if tuned is not None:
            size, description = tuned.batch or size, replace(description, cpu_instances=tuned.instances)
        return replace(description, default_max_batch_size=size) if description.default_max_batch_size else description

    def complete(self, opened: OpenCandidate) -> ModelConfig:
        """Return the configuration as the server completes it with this engine. Raises INVALID_ARG."""
        return self.source.completed(self.describe(opened))

    def spec(self, spec: InstanceSpec, candidate: Candidate) -> InstanceSpec:
        """Return the instance in the engine's form."""
        parameters = engine_parameters(spec.config, candidate.backend, candidate.parameters)
        return replace(spec, config=replace(spec.config, backend=candidate.backend, parameters=parameters))

    def objective(self, config: ModelConfig) -> str:
        return self.options.objective or (THROUGHPUT if config.max_batch_size > 1 else LATENCY)

    def samples(self, config: ModelConfig) -> Samples:
        """Make samples for a complete configuration. Raises as `samples.samples`."""
        large = self.objective(config) == THROUGHPUT
        return samples(config, self.source.model_directory, self.options.sample_shape, large=large)

    def runner(
        self, opened: OpenCandidate, config: ModelConfig, timed: tuple[Inputs, ...], *, alone: bool = False
    ) -> Runner | AsyncRunner:
        """Make an instance to run without a server. Raises any exception of the engine, and as `runner.runner`."""
        spec = InstanceSpec(f"{config.name}_measured", InstanceKind.CPU, 0, 0, config, self.source.write_config)
        instance = new_instance(opened.model, self.spec(spec, opened.candidate))
        try:
            return runner(instance, tuple(output_datatypes(config)), timed, alone=alone)
        except BaseException:
            instance.close()
            raise


def close_quietly(close: Callable[[], None], candidate: Candidate) -> None:
    try:
        close()
    except Exception:
        _log.warning("closing %s after it was measured failed", candidate.title, exc_info=True)


def error_text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
