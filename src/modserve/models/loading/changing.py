"""Changes of a configuration in place: applied to a serving model without opening its files again.

| field | effect |
|---|---|
| `instance_group` | new instances warm up and serve, others finish and are closed; a new queue |
| `dynamic_batching` | a new queue; requests in the old one run first |
| `model_warmup` | applies to instances created from now on |
| `response_cache` | the cache is put before the model, or removed |
| `version_policy` | no effect on a version that stays |

All other changes reload the version, and so do changes that its backend does not list in `in_place`.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from modserve import config as model_config
from modserve.backends.api import INSTANCES, Executor, InstanceSpec
from modserve.core.runtime.clock import Clock
from modserve.core.servable import Servable
from modserve.execution.instance import Instance
from modserve.execution.rate_limit import ResourceTurn
from modserve.resources.response_cache import Cache

from ..serving.model import Model
from ..serving.opened_model import OpenedModel
from .assembly import queue_config, wrap

_NEEDS_QUEUE: Final = frozenset({"dynamic_batching", "instance_group"})
"""Fields that require a new queue."""
_OF_GROUPS: Final = frozenset({"name", "count", "kind", "gpus", "rate_limiter"})
"""Fields of an instance group that determine number, place and scheduling of its instances."""


@dataclass(frozen=True)
class Revision:
    """A change prepared by a loading thread for a serving model."""

    fields: tuple[str, ...]
    opened: OpenedModel
    specs: dict[int, InstanceSpec]
    """Specs of the remaining instances, by number."""
    removed: tuple[int, ...]
    added: Sequence[tuple[InstanceSpec, Executor]]


def find_changed_fields(before: bytes, now: model_config.Complete, allowed: Collection[str]) -> tuple[str, ...] | None:
    """Return the fields that differ between two complete configurations if all may change in place, else None."""
    message = now.message
    old, new = [json.loads(model_config.to_text(each)) for each in (type(message).FromString(before), message)]
    fields = tuple(sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)))
    if not INSTANCES.intersection(allowed).issuperset(fields):
        return None
    if "dynamic_batching" in fields and not ("dynamic_batching" in old and "dynamic_batching" in new):
        return None  # instances are created differently for models with dynamic batching
    if "instance_group" in fields and _making(old) != _making(new):
        return None
    return fields


def _making(config: Mapping[str, Sequence[Mapping[str, object]]]) -> list[str]:
    """Return the settings of instance groups for creating an instance, except its placement."""
    groups = [{name: each[name] for name in each.keys() - _OF_GROUPS} for each in config.get("instance_group", ())]
    return sorted({json.dumps(each, sort_keys=True) for each in groups})


def match_instances(
    former: Mapping[int, InstanceSpec], now: Sequence[InstanceSpec]
) -> tuple[dict[int, InstanceSpec], list[InstanceSpec]]:
    """Return the instances that stay, by number, and the instances to create.

    An instance may stay for any instance in the same place, preferably of its own name. It keeps its name, which its
    engine knows, as in Triton (core, TritonModel::PrepareInstances).
    """
    left = dict(former)
    staying: dict[int, InstanceSpec] = {}
    new = list(now)
    for by_name in (True, False):
        for spec in list(new):
            for number, each in left.items():
                if each.placement == spec.placement and (not by_name or each.name == spec.name):
                    staying[number] = replace(spec, name=each.name)
                    new.remove(spec)
                    del left[number]
                    break
    return staying, new


class ModelChange:
    """Implements `core.loading.Change` for a revision with warm instances. `servable`: `model` in its wrappers."""

    def __init__(
        self,
        servable: Servable,
        model: Model,
        revision: Revision,
        instances: Sequence[Instance],
        needs: Mapping[int, ResourceTurn] | None,
        clock: Clock,
        cache: Cache | None,
        around: Callable[[Servable], Servable] | None,
    ) -> None:
        self.fields = revision.fields
        self._servable = servable
        self._model = model
        self._revision = revision
        self._instances = instances
        self._needs = needs
        self._clock = clock
        self._cache = cache
        self._around = around

    def apply(self) -> Servable:
        revision = self._revision
        specs = revision.opened.specs
        specs.update(revision.specs)  # read when lost instances are replaced
        specs.update({each.number: spec for each, (spec, _) in zip(self._instances, revision.added, strict=True)})
        new = None if _NEEDS_QUEUE.isdisjoint(revision.fields) else queue_config(revision.opened.config)
        self._model.change(revision.opened, new, self._instances, revision.removed, self._needs)
        model = wrap(self._model, self._clock, self._cache, self._servable)
        return model if self._around is None else self._around(model)

    async def discard(self) -> None:
        if self._needs is not None:
            self._model.break_promise(self._needs)
        for instance in self._instances:
            self._model.pool.dismiss(instance)


async def prepare(
    servable: Servable,
    model: Model,
    revision: Revision,
    clock: Clock,
    cache: Cache | None,
    around: Callable[[Servable], Servable] | None,
) -> ModelChange:
    """Add the new instances to the pool and warm them up. Raises the reason if one is not fit to serve."""
    pool = model.pool
    instances: list[Instance] = []
    needs: Mapping[int, ResourceTurn] | None = None
    try:
        for spec, engine in revision.added:
            instances.append(pool.new_instance(spec.name, engine))
        specs = revision.specs | {each.number: spec for each, (spec, _) in zip(instances, revision.added, strict=True)}
        needs = model.promise(revision.opened.config, specs)
        await model.warm(instances, revision.opened)
    except BaseException:
        if needs is not None:
            model.break_promise(needs)
        for instance in instances:
            pool.dismiss(instance)
        for _, engine in revision.added[len(instances) :]:
            engine.close()
        raise
    return ModelChange(servable, model, revision, instances, needs, clock, cache, around)
