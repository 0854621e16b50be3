"""A loaded model with all that its configuration asks for, put together of parts that know nothing of each other.

    OrderedModel(CachedModel(Model))                  models, each of which submits to the next
    Model: grouped(grouped(Signature.accept)), then QueuedScheduler, then InstancePool

Only the parts that the configuration names are there.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeAlias, TypeVar

from modserve.core.configuration.merging import PaddingPolicy
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.normalize import Signature
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import ResponseSink
from modserve.core.servable import Servable, base
from modserve.core.version import ModelId
from modserve.execution.instance import Instance
from modserve.execution.limited import LimitedPool
from modserve.execution.pool import InstancePool
from modserve.execution.rate_limit import RateLimiter, turns
from modserve.resources.response_cache import Cache
from modserve.scheduling import batching
from modserve.scheduling.adaptive.adaptation import Adaptation
from modserve.scheduling.adaptive.buckets import LengthBuckets
from modserve.scheduling.queued import QueuedScheduler
from modserve.scheduling.scheduler import Clock, LoopClock, OnDrop, Scheduler

from ..serving.cached import CachedModel
from ..serving.model import Accept, Model, Opened, Queueing, SequenceModel
from ..serving.wrappers import ModelWrapper, OrderedModel, find, wrappers

_log = logging.getLogger(__name__)

ServableT = TypeVar("ServableT", bound=Servable)
_Runners: TypeAlias = Callable[[InstancePool], InstancePool | LimitedPool]


def assemble_model(
    model_id: ModelId, opened: Opened, clock: LoopClock, cache: Cache | None = None
) -> Model | ModelWrapper:
    """Make a model that takes requests, but is cold. `cache` is the server's. For the event loop's thread.

    The model closes what was `opened`; if this raises, that is left to the caller.
    """
    return wrapped(bare_model(model_id, opened, clock), clock, cache)


def bare_model(model_id: ModelId, opened: Opened, clock: LoopClock, limiter: RateLimiter | None = None) -> Model:
    """The same without what stands before a model: the cache, and the order of responses.

    Raises INVALID_ARG if an instance needs more of a resource than there is.
    """
    instances = turns(opened.config)
    if not instances:
        return _bare_model(model_id, opened, clock, _plain)
    if limiter is None:
        _log.warning(
            "model '%s': its instances' rate_limiter has no effect, since the server runs each instance whenever it "
            "is free. Start the server with --rate-limit=execution_count",
            model_id.name,
        )
        return _bare_model(model_id, opened, clock, _plain)
    limiter.add(instances)

    def closed() -> None:
        limiter.remove(instances)
        opened.on_closed()

    def limited(pool: InstancePool) -> LimitedPool:
        return LimitedPool(pool, limiter, instances)

    try:
        return _bare_model(model_id, replace(opened, on_closed=closed), clock, limited)
    except BaseException:
        limiter.remove(instances)
        raise


def _plain(pool: InstancePool) -> InstancePool:
    return pool


def _bare_model(model_id: ModelId, opened: Opened, clock: LoopClock, runner: _Runners) -> Model:
    """`runner`: what schedulers see of the instances."""
    config = opened.config
    signature = Signature(config)
    if config.sequence_batching is not None:
        return SequenceModel(model_id, opened, clock, signature.accept, runner)
    queueing, adaptation = _queueing(config, signature, runner)
    model = Model(model_id, opened, clock, queueing.accept, queueing.make_scheduler, queueing.observe)
    _show(model, adaptation)
    return model


def change(model: Model, opened: Opened, added: Collection[Instance], removed: Collection[int], queue: bool) -> None:
    """Give a model another configuration, which may ask for another `queue` and for other instances."""
    if not queue:
        model.change(opened, None, added, removed)
        return
    queueing, adaptation = _queueing(opened.config, Signature(opened.config))
    model.change(opened, queueing, added, removed)
    _show(model, adaptation)


def _show(model: Model, adaptation: Adaptation) -> None:
    model.statistics.tuner, model.statistics.choice = adaptation.statistics, adaptation.choice


def _queueing(config: ModelConfig, signature: Signature, runner: _Runners = _plain) -> tuple[Queueing, Adaptation]:
    adaptation = Adaptation(config)
    accept, alike = _accept(config, signature)

    def make_scheduler(pool: InstancePool, clock: Clock, on_drop: OnDrop) -> Scheduler:
        adaptation.use(pool.most_places, pool.free_places)
        instances = runner(pool)
        if instances is pool:
            pool.expect = adaptation.expect
        return QueuedScheduler(
            adaptation.rule,
            instances,
            clock,
            on_drop,
            adaptation.policy,
            ripe_size=batching.ripe_size(adaptation.policy, config.max_batch_size),
            alike=alike,
            gate=adaptation.gate(pool.remaining_ns),
            padded=adaptation.padded,
        )

    return Queueing(accept, make_scheduler, adaptation.observe), adaptation


def _accept(config: ModelConfig, signature: Signature) -> tuple[Accept, bool]:
    """How requests are accepted, and whether a batch may then have any of them, or each runs alone."""
    accept: Accept = signature.accept
    policy, padding = config.dynamic_batching, config.padding
    if policy is None:
        return accept, True
    if padding is not None and padding.policy is PaddingPolicy.NEVER:
        padded = padding.padded
        accept = grouped(accept, lambda inflight: padded(inflight.length))
    elif padding is not None and padding.policy is PaddingPolicy.ALWAYS and padding.buckets > 1:
        buckets = LengthBuckets(padding.buckets, padding.multiple_of, padding.relearn_every)
        accept = grouped(accept, lambda inflight: buckets.of(inflight.length))
    if policy.separate_by:
        accept = grouped(accept, by_parameters(policy.separate_by, config.name))
    return accept, signature.alike and not policy.separate_by


def wrapped(servable: ServableT, clock: Clock, cache: Cache | None) -> ServableT | ModelWrapper:
    """A model or an ensemble behind the cache and the order of its responses, if it has these."""
    config = servable.config
    outer: ServableT | ModelWrapper = servable
    if config.cached and cache is None:
        _log.warning(
            "model '%s' has response_cache enabled, but the server has no cache: every request is run. Start the "
            "server with --cache-config=local,size=<bytes>",
            servable.id.name,
        )
    elif config.cached and cache is not None:
        outer = CachedModel(outer, cache, clock)
    if config.dynamic_batching is not None and config.dynamic_batching.preserve_ordering:
        outer = OrderedModel(outer)
    return outer


def rewrapped(servable: Servable, clock: Clock, cache: Cache | None) -> Servable:
    """What stands before a model whose configuration has changed. What stays keeps its order and its responses.

    `servable` is what stood there: one of `wrapped`, behind those of others' making.
    """
    model = base(servable)
    config = model.config
    order, store, outer = find(servable, OrderedModel), find(servable, CachedModel), servable
    ordered = config.dynamic_batching is not None and config.dynamic_batching.preserve_ordering
    inner: Servable = model
    if config.cached and cache is not None:
        inner = store or CachedModel(inner, cache, clock)
    elif store is not None:
        store.stop()
    if ordered:
        order = order or OrderedModel(inner)
        order.stand_before(inner)
        inner = order
    foreign = None
    while isinstance(outer, ModelWrapper) and not isinstance(outer, OrderedModel | CachedModel):
        foreign, outer = outer, outer.behind
    for wrapper in wrappers(inner):
        wrapper.refresh()
    if foreign is None:
        return inner
    foreign.stand_before(inner)
    for wrapper in wrappers(servable):
        wrapper.refresh()
    return servable


def grouped(accept: Accept, key: Callable[[Inflight], object]) -> Accept:
    """Accept requests that only share a batch if `key` is the same for them, not only their shapes."""

    def accept_grouped(request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        inflight = accept(request, sink, now_ns)
        inflight.shape_key = (inflight.shape_key, key(inflight))
        return inflight

    return accept_grouped


def by_parameters(names: tuple[str, ...], model: str) -> Callable[[Inflight], object]:
    """A key made of request parameters. It raises INVALID_ARG for values that parameters cannot have."""

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
