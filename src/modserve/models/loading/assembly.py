"""A loaded model with all that its configuration asks for, put together of parts that know nothing of each other.

    OrderedModel(CachedModel(Model))                  models, each of which submits to the next
    Model: grouped(grouped(Signature.accept)), then QueuedScheduler, then InstancePool

Only the parts that the configuration names are there.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from modserve.core.configuration.merging import PaddingPolicy
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.normalize import Signature
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import ResponseSink
from modserve.core.servable import Servable
from modserve.core.version import ModelId
from modserve.execution.rate_limit import RateLimiter, turns
from modserve.resources.response_cache import Cache
from modserve.scheduling.batch_policy import BatchPolicy, adapts
from modserve.scheduling.ordering import ResponseOrder
from modserve.scheduling.scheduler import Clock, LoopClock

from ..serving.cached import CachedModel
from ..serving.model import Model
from ..serving.opened_model import Accept, OpenedModel, QueueConfig
from ..serving.sequence_model import SequenceModel
from ..serving.wrappers import ModelWrapper, OrderedModel, find

_log = logging.getLogger(__name__)

ServableT = TypeVar("ServableT", bound=Servable)


def assemble_model(
    model_id: ModelId, opened: OpenedModel, clock: LoopClock, cache: Cache | None = None
) -> Model | ModelWrapper:
    """Make a model that takes requests, but is cold. `cache` is the server's. For the event loop's thread.

    The model closes what was `opened`; if this raises, that is left to the caller.
    """
    return wrapped(bare_model(model_id, opened, clock), clock, cache)


def bare_model(model_id: ModelId, opened: OpenedModel, clock: LoopClock, limiter: RateLimiter | None = None) -> Model:
    """The same without what stands before a model: the cache, and the order of responses.

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
    """How requests get to the instances of a model."""
    signature = Signature(config)
    if config.sequence_batching is not None:
        return QueueConfig(signature.accept)
    policy, batching, padding = _policy(config), config.dynamic_batching, config.padding
    accept: Accept = signature.accept
    if batching is None:
        return QueueConfig(accept, policy, True)
    if padding is not None and padding.policy is PaddingPolicy.NEVER:
        padded = padding.padded
        accept = grouped(accept, lambda inflight: padded(inflight.length))
    elif policy.range_of is not None:
        accept = grouped(accept, policy.range_of)
    if batching.separate_by:
        accept = grouped(accept, by_parameters(batching.separate_by, config.name))
    return QueueConfig(accept, policy, signature.alike and not batching.separate_by)


def _policy(config: ModelConfig) -> BatchPolicy:
    if not adapts(config):
        return BatchPolicy(config)
    from modserve.scheduling.adaptive.adaptation import Adaptation  # not before a model asks for it

    return Adaptation(config)


def wrapped(
    servable: ServableT, clock: Clock, cache: Cache | None, former: Servable | None = None
) -> ServableT | ModelWrapper:
    """A model or an ensemble behind the cache and the order of its responses, if it has these.

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
