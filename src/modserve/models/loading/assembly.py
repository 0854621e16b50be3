"""A loaded model with all that its configuration asks for, put together of parts that know nothing of each other.

    OrderedModel(CachedModel(Model))                  models, each of which submits to the next
    Model: grouped(grouped(Signature.accept)), then QueuedScheduler, then InstancePool

Only the parts that the configuration names are there.

Makes the instances of a model: when it loads, and again when one of them was lost.
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
"""Instances of a version that are made at the same time, for backends that allow it."""
_CLOSING_S = 10.0
"""Time that a lost instance may take to close before its replacement is made."""


def place(config: ModelConfig, backend: Backend) -> list[tuple[str, Placement]]:
    """Return the places where the instances of a model run, by their names."""
    gpus = gpu_count(config.backend, backend)
    if config.instance_groups:
        return placements(config.name, config.instance_groups, gpus)
    kind = InstanceKind.GPU if gpus else InstanceKind.CPU
    count = gpus or backend.default_cpu_instances
    return [(f"{config.name}_{index}", Placement(kind, index if gpus else 0)) for index in range(count)]


def gpu_count(name: str, backend: Backend) -> int:
    """Return the number of GPUs that a backend reports. Raises INTERNAL if it cannot tell."""
    try:
        count: object = backend.gpu_count()
    except Exception as error:
        raise internal(f"backend '{name}' cannot tell how many GPUs there are: {error}") from error
    if not isinstance(count, int) or count < 0:
        raise internal(f"backend '{name}' reports {count!r} GPUs, expected a number of 0 or more")
    return count


def only_reads(backend: Backend) -> bool:
    """True if loading never writes to the model's files, so that one that changes was changed by others."""
    return bool(getattr(backend, "in_place", ())) and not getattr(backend, "writes_files", False)


def count_cpu(places: Sequence[tuple[str, Placement]]) -> int:
    """Return the number of instances on the CPU."""
    return sum(placement.kind is not InstanceKind.GPU for _, placement in places)


def description_of(name: str, engine: BackendModel) -> ModelDescription | None:
    """Return the engine's description of a model. Raises INTERNAL for what is no description."""
    description: object = engine.describe()
    if description is not None and not isinstance(description, ModelDescription):
        raise internal(
            f"backend '{name}' describes its model by a {type(description).__name__}, expected a "
            "modserve.ModelDescription or None"
        )
    return description


def specs_of(complete: model_config.Complete, places: Sequence[tuple[str, Placement]]) -> list[InstanceSpec]:
    """Return the instances' descriptions for the engine. The configuration's JSON text is made once, if at all."""
    write = functools.cache(lambda: model_config.to_text(complete.message))
    return [
        InstanceSpec(name, placement.kind, placement.device, index, complete.config, write)
        for index, (name, placement) in enumerate(places)
    ]


def make_instance(engine: BackendModel, spec: InstanceSpec) -> Executor:
    """Make an instance that the server can use. Raises the engine's errors, and `_check`'s after closing it."""
    instance = new_instance(engine, spec)
    try:
        _check(spec.config, instance)
    except Exception:
        if callable(close := getattr(instance, "close", None)):
            close()
        raise
    return instance


def threads_for(backend: Backend, count: int, cores: int) -> int:
    """Return the number of threads on which `count` instances are made."""
    if getattr(backend, "parallel_instances", False) is not True:
        return 1
    return min(count, cores, _MOST_AT_A_TIME)


def make_instances(
    engine: BackendModel, specs: Sequence[InstanceSpec], threads: int, made: list[tuple[str, Executor]]
) -> None:
    """Append the instances of a version to `made`, in the order of `specs`, `threads` at a time.

    Raises the error of the first one that cannot be made. `made` then has all that are to be closed; those that were
    being made at the time are waited for, and the rest is not begun.
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
    """Make an instance in the place of a lost one, which `close` closes first. On a loading thread.

    `admit` raises where the files are not what they should be: an engine may read them again.
    """
    # What is lost may hang: then it is left to itself, or it would keep the thread from loading other models.
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
    """True if the server can use an instance.

    Raises INTERNAL for an object that is none, INVALID_ARG for what the server does to whole batches, where the engine
    wants the single requests.
    """
    by_request = isinstance(instance, RequestInstance | AsyncRequestInstance)
    if not by_request and not isinstance(instance, AsyncInstance) and not callable(getattr(instance, "execute", None)):
        raise internal(
            f"backend '{config.backend}' made a {type(instance).__name__} for an instance, which has neither 'execute' "
            "nor 'execute_requests', nor 'start' or 'start_requests' with 'attach', 'detach' and 'close'"
        )
    if config.fills_up and by_request:
        raise invalid(
            f"model '{config.name}': its parameters ask for padding ('padding.…' or 'scheduling.batch_sizes'), but "
            f"backend '{config.backend}' gets requests one by one and merges them itself, if at all"
        )


ServableT = TypeVar("ServableT", bound=Servable)


def assemble_model(
    model_id: ModelId, opened: OpenedModel, clock: LoopClock, cache: Cache | None = None
) -> Model | ModelWrapper:
    """Make a model that takes requests, but is cold. `cache` is the server's. For the event loop's thread.

    The model closes what was `opened`; if this raises, that is left to the caller.
    """
    return wrap(bare_model(model_id, opened, clock), clock, cache)


def bare_model(model_id: ModelId, opened: OpenedModel, clock: LoopClock, limiter: RateLimiter | None = None) -> Model:
    """Make a model as `assemble_model`, without its wrappers: the cache, and the order of responses.

    Raises INVALID_ARG if an instance needs more of a resource than there is.
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
    """Return the queue configuration for requests to the instances of a model."""
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
    from modserve.scheduling.adaptive.adaptation import Adaptation  # not before a model asks for it

    return Adaptation(config)


def wrap(
    servable: ServableT, clock: Clock, cache: Cache | None, former: Servable | None = None
) -> ServableT | ModelWrapper:
    """Return a model or an ensemble behind the cache and the order of its responses, if it has these.

    `former` stood before the model until its configuration changed: what stays keeps its responses, or their order.
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
    """Return an `accept` for requests that share a batch only if both `key` and their shapes agree."""

    def accept_grouped(request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        inflight = accept(request, sink, now_ns)
        inflight.shape_key = (inflight.shape_key, key(inflight))
        return inflight

    return accept_grouped


def by_parameters(names: tuple[str, ...], model: str) -> Callable[[Inflight], object]:
    """Return a key made of request parameters. It raises INVALID_ARG for values that parameters cannot have."""

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
