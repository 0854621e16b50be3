"""Assembles a loaded model from independent parts, as its configuration requires.

    OrderedModel(CachedModel(Model))                  models, each of which submits to the next
    Model: grouped(grouped(Signature.accept)), then QueuedScheduler, then InstancePool

Only the configured parts are present. Also creates a model's instances, when it loads and to replace lost ones.
"""

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from modserve import config as model_config
from modserve.backends.api import (
    AsyncInstance,
    AsyncRequestInstance,
    Backend,
    BackendModel,
    Executor,
    InstanceSpec,
    Placement,
    RequestInstance,
)
from modserve.backends.registry import new_instance
from modserve.core.configuration.merging import PaddingPolicy
from modserve.core.configuration.model_config import InstanceKind, ModelConfig, ModelDescription
from modserve.core.errors import internal, invalid
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.normalize import Signature
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import ResponseSink
from modserve.core.runtime.clock import Clock, LoopClock
from modserve.core.servable import Servable
from modserve.core.version import ModelId
from modserve.execution.placement import placements
from modserve.execution.rate_limit import RateLimiter, turns
from modserve.models.serving.cached import CachedModel
from modserve.models.serving.model import Model
from modserve.models.serving.opened_model import Accept, OpenedModel, QueueConfig
from modserve.models.serving.sequence_model import SequenceModel
from modserve.models.serving.wrappers import ModelWrapper, OrderedModel, find
from modserve.resources.response_cache import Cache
from modserve.scheduling.batch_policy import BatchPolicy, adapts
from modserve.scheduling.ordering import ResponseOrder

_log = logging.getLogger(__name__)

_MOST_AT_A_TIME = 8
"""Number of a version's instances created concurrently, for backends that allow it."""
_CLOSING_S = 10.0
"""Seconds for a lost instance to close before its replacement is created."""


def place(config: ModelConfig, backend: Backend) -> list[tuple[str, Placement]]:
    """Return the placements of a model's instances, by instance name."""
    gpus = gpu_count(config.backend, backend)
    if config.instance_groups:
        return placements(config.name, config.instance_groups, gpus)
    kind = InstanceKind.GPU if gpus else InstanceKind.CPU
    count = gpus or backend.default_cpu_instances
    return [(f"{config.name}_{index}", Placement(kind, index if gpus else 0)) for index in range(count)]


def gpu_count(name: str, backend: Backend) -> int:
    """Return the number of GPUs that a backend reports. Raises INTERNAL if it fails."""
    try:
        count: object = backend.gpu_count()
    except Exception as error:
        raise internal(f"backend '{name}' cannot tell how many GPUs there are: {error}") from error
    if not isinstance(count, int) or count < 0:
        raise internal(f"backend '{name}' reports {count!r} GPUs, expected a number of 0 or more")
    return count


def only_reads(backend: Backend) -> bool:
    """True if loading never writes to the model's files; any change then comes from elsewhere."""
    return bool(getattr(backend, "in_place", ())) and not getattr(backend, "writes_files", False)


def count_cpu(places: Sequence[tuple[str, Placement]]) -> int:
    """Return the number of instances on the CPU."""
    return sum(placement.kind is not InstanceKind.GPU for _, placement in places)


def description_of(name: str, engine: BackendModel) -> ModelDescription | None:
    """Return the engine's description of a model. Raises INTERNAL for an object that is not a description."""
    description: object = engine.describe()
    if description is not None and not isinstance(description, ModelDescription):
        raise internal(
            f"backend '{name}' describes its model by a {type(description).__name__}, expected a "
            "modserve.ModelDescription or None"
        )
    return description


def specs_of(complete: model_config.Complete, places: Sequence[tuple[str, Placement]]) -> list[InstanceSpec]:
    """Return the instances' descriptions for the engine. They share one lazy JSON text of the configuration."""
    write = functools.cache(lambda: model_config.to_text(complete.message))
    return [
        InstanceSpec(name, placement.kind, placement.device, index, complete.config, write)
        for index, (name, placement) in enumerate(places)
    ]


def make_instance(engine: BackendModel, spec: InstanceSpec) -> Executor:
    """Create an instance. Raises the engine's errors, and after closing it the errors of `_check`."""
    instance = new_instance(engine, spec)
    try:
        _check(spec.config, instance)
    except Exception:
        if callable(close := getattr(instance, "close", None)):
            close()
        raise
    return instance


def threads_for(backend: Backend, count: int, cores: int) -> int:
    """Return the number of threads that create `count` instances."""
    if getattr(backend, "parallel_instances", False) is not True:
        return 1
    return min(count, cores, _MOST_AT_A_TIME)


def make_instances(
    engine: BackendModel, specs: Sequence[InstanceSpec], threads: int, made: list[tuple[str, Executor]]
) -> None:
    """Append the instances of a version to `made`, in the order of `specs`, `threads` at a time.

    Raises the error of the first failed instance. By then, instances under way have been waited for, others are not
    begun, and `made` has all instances to close.
    """
    if threads <= 1:
        for spec in specs:
            made.append((spec.name, make_instance(engine, spec)))
        return
    failures: list[BaseException] = []

    def make(spec: InstanceSpec) -> Executor | None:
        try:
            return None if failures else make_instance(engine, spec)
        except BaseException as error:
            failures.append(error)
            return None

    with ThreadPoolExecutor(threads, thread_name_prefix="make-instance") as pool:
        instances = list(pool.map(make, specs))
    made += [(spec.name, each) for spec, each in zip(specs, instances, strict=True) if each is not None]
    if failures:
        raise failures[0]


def make_replacement(
    engine: BackendModel, spec: InstanceSpec, close: Callable[[], None], admit: Callable[[], object]
) -> Executor:
    """Create an instance to replace a lost one, which `close` closes first. On a loading thread.

    `admit` raises if the files do not have the expected state: an engine may read them again.
    """
    # A lost instance may hang; then it is abandoned, since it would keep the thread from loading other models.
    closing = threading.Thread(target=_close_lost, args=(close,), name=f"close-{spec.name}", daemon=True)
    closing.start()
    closing.join(_CLOSING_S)
    admit()
    return make_instance(engine, spec)


def _close_lost(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception:
        _log.warning("closing an instance that was lost failed", exc_info=True)


def _check(config: ModelConfig, instance: Executor) -> None:
    """Check that the server can use an instance.

    Raises INTERNAL for an object that is not an instance, and INVALID_ARG for batch features of the server if the
    engine needs single requests.
    """
    by_request = isinstance(instance, RequestInstance | AsyncRequestInstance)
    if not by_request and not isinstance(instance, AsyncInstance) and not callable(getattr(instance, "execute", None)):
        raise internal(
            f"backend '{config.backend}' made a {type(instance).__name__} for an instance; expected a method "
            "'execute' or 'execute_requests', or 'start' or 'start_requests' with 'attach', 'detach' and 'close'"
        )
    if config.fills_up and by_request:
        raise invalid(
            f"model '{config.name}': its parameters ask for padding ('padding.…' or 'scheduling.batch_sizes'). "
            f"Backend '{config.backend}' cannot pad: it gets requests one by one, and merges them itself if at all"
        )


ServableT = TypeVar("ServableT", bound=Servable)


def assemble_model(
    model_id: ModelId, opened: OpenedModel, clock: LoopClock, cache: Cache | None = None
) -> Model | ModelWrapper:
    """Create a model that accepts requests, without warm-up. `cache`: the server's cache. On the event loop's thread.

    The model closes what was `opened`; if this raises, the caller must do so.
    """
    return wrap(bare_model(model_id, opened, clock), clock, cache)


def bare_model(model_id: ModelId, opened: OpenedModel, clock: LoopClock, limiter: RateLimiter | None = None) -> Model:
    """Create a model like `assemble_model`, without its wrappers (response cache, response order).

    Raises INVALID_ARG if an instance needs more of a resource than exists.
    """
    config = opened.config
    if limiter is None and turns(config):
        _log.warning(
            "model '%s': its instances' rate_limiter has no effect, since the server runs each instance whenever it "
            "is free. Start the server with --rate-limit=execution_count",
            model_id.name,
        )
    kind = Model if config.sequence_batching is None else SequenceModel
    return kind(model_id, opened, clock, queue_config(config), limiter)


def queue_config(config: ModelConfig) -> QueueConfig:
    """Return the queue configuration for requests to a model's instances."""
    signature = Signature(config)
    if config.sequence_batching is not None:
        return QueueConfig(signature.accept)
    policy, batching, padding = _policy(config), config.dynamic_batching, config.padding
    accept: Accept = signature.accept
    if batching is None:
        return QueueConfig(accept, policy)
    if padding is not None and padding.policy is PaddingPolicy.NEVER:
        padded = padding.pad_length
        accept = group_by(accept, lambda inflight: padded(inflight.length))
    elif policy.range_of is not None:
        accept = group_by(accept, policy.range_of)
    if batching.separate_by:
        accept = group_by(accept, by_parameters(batching.separate_by, config.name))
    return QueueConfig(accept, policy)


def _policy(config: ModelConfig) -> BatchPolicy:
    if not adapts(config):
        return BatchPolicy(config)
    from modserve.scheduling.adaptive.adaptation import Adaptation  # imported with the first model that uses it

    return Adaptation(config)


def wrap(
    servable: ServableT, clock: Clock, cache: Cache | None, former: Servable | None = None
) -> ServableT | ModelWrapper:
    """Return a model or an ensemble behind its response cache and response order, if configured.

    `former`: the previous outermost servable, before a change of the configuration. Wrappers that stay keep their
    state.
    """
    config = servable.config
    outer: ServableT | ModelWrapper = servable
    store = None if former is None else find(former, CachedModel)
    if config.cached and cache is not None:
        outer = store or CachedModel(outer, cache, clock)
    elif store is not None:
        store.stop()
    elif config.cached and former is None:
        _log.warning(
            "model '%s' has response_cache enabled, but the server has no cache: every request is run. Start the "
            "server with --cache-config=local,size=<bytes>",
            servable.id.name,
        )
    if config.dynamic_batching is not None and config.dynamic_batching.preserve_ordering:
        ordered = None if former is None else find(former, OrderedModel)
        outer = OrderedModel(outer, ResponseOrder() if ordered is None else ordered.order)
    return outer


def group_by(accept: Accept, key: Callable[[Inflight], object]) -> Accept:
    """Return an `accept` that lets requests share a batch only if both `key` and their shapes agree."""

    def accept_grouped(request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        inflight = accept(request, sink, now_ns)
        inflight.shape_key = (inflight.shape_key, key(inflight))
        return inflight

    return accept_grouped


def by_parameters(names: tuple[str, ...], model: str) -> Callable[[Inflight], object]:
    """Return a key from request parameters. The key raises INVALID_ARG for invalid parameter values."""

    def key(inflight: Inflight) -> object:
        request = inflight.request
        values: list[object] = []
        for name in names:
            value = request.parameters.get(name)
            if not isinstance(value, str | int | float | bool | None):
                raise invalid(
                    f"{request.label}parameter '{name}' of a request to model '{model}' is of type "
                    f"{type(value).__name__}, expected a string, a number or a boolean"
                )
            values.append((type(value), value))
        return tuple(values)

    return key
