"""A loaded model with all that its configuration asks for, put together of parts that know nothing of each other.

    OrderedModel(CachedModel(Model))                    models, each of which submits to the next
    Model → Grouped(Grouped(QueuedScheduler)) → InstancePool

Only the parts that the configuration names are there.
"""

import asyncio
import logging
from typing import TypeVar

from modserve.core.model_config import ModelConfig
from modserve.core.normalize import Signature
from modserve.core.servable import Servable
from modserve.core.version import ModelId
from modserve.execution.pool import InstancePool
from modserve.resources.response_cache import ResponseCache
from modserve.scheduling import batching
from modserve.scheduling.adaptive.adaptation import Adaptation
from modserve.scheduling.adaptive.buckets import LengthBuckets
from modserve.scheduling.grouping import Grouped, by_parameters
from modserve.scheduling.queued import QueuedScheduler
from modserve.scheduling.scheduler import Clock, OnDrop, Scheduler

from .cached import CachedModel
from .model import Model, Opened, SequenceModel
from .ordered import OrderedModel
from .wrapper import ModelWrapper

_log = logging.getLogger(__name__)

ServableT = TypeVar("ServableT", bound=Servable)


def assemble_model(
    model_id: ModelId, opened: Opened, loop: asyncio.AbstractEventLoop, cache: ResponseCache | None = None
) -> Model | ModelWrapper:
    """Make a model that takes requests. `cache` is the server's. For the event loop's thread.

    The model closes what was `opened`; if this raises, that is left to the caller.
    """
    config = opened.config
    if config.sequence_batching is not None:
        return wrapped(SequenceModel(model_id, opened, loop), loop, cache)
    adaptation = Adaptation(config)

    def make_scheduler(pool: InstancePool, clock: Clock, on_drop: OnDrop) -> Scheduler:
        return _scheduler(config, adaptation, pool, clock, on_drop)

    model = Model(model_id, opened, loop, make_scheduler, adaptation.observe if adaptation.learns else None)
    model.statistics.tuner = adaptation.statistics
    return wrapped(model, loop, cache)


def wrapped(
    servable: ServableT, loop: asyncio.AbstractEventLoop, cache: ResponseCache | None
) -> ServableT | ModelWrapper:
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
        outer = CachedModel(outer, cache, loop)
    if config.dynamic_batching is not None and config.dynamic_batching.preserve_ordering:
        outer = OrderedModel(outer)
    return outer


def _scheduler(
    config: ModelConfig, adaptation: Adaptation, pool: InstancePool, clock: Clock, on_drop: OnDrop
) -> Scheduler:
    policy, padding = adaptation.policy, config.padding
    ranges = padding is not None and padding.buckets > 1 and config.dynamic_batching is not None
    alone = config.dynamic_batching is None
    scheduler: Scheduler = QueuedScheduler(
        adaptation.rule,
        pool,
        clock,
        on_drop,
        policy,
        ripe_size=batching.ripe_size(policy, config.max_batch_size),
        alike=alone or (Signature(config).alike and not policy.separate_by),
        gate=adaptation.gate(pool.remaining_ns),
    )
    if policy.separate_by:
        scheduler = Grouped(scheduler, by_parameters(policy.separate_by, config.name))
    if padding is not None and ranges:
        buckets = LengthBuckets(padding.buckets, padding.multiple_of, padding.relearn_every)
        scheduler = Grouped(scheduler, lambda inflight: buckets.of(inflight.length))
    return scheduler
