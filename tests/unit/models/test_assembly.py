"""Which parts a model is put together of."""

import asyncio
import inspect
import logging
from pathlib import Path

import pytest

from modserve.backends.api import ModelSource
from modserve.core.configuration.merging import Padding, PaddingPolicy
from modserve.core.configuration.model_config import DynamicBatching, ModelConfig, TensorSpec
from modserve.core.configuration.sequence_config import OldestStrategy, SequenceBatching
from modserve.core.runtime.clock import LoopClock
from modserve.core.servable import SequenceKeeper, Servable
from modserve.core.tensors import dtypes
from modserve.core.version import ModelId
from modserve.models.loading.assembly import assemble_model
from modserve.models.serving.model import Model
from modserve.models.serving.opened_model import OpenedModel
from modserve.resources.response_cache import ResponseCache
from modserve.scheduling.queued import QueuedScheduler
from modserve.testing import PuppetBackend, config, instance_spec

VARIABLE = (TensorSpec("INPUT0", dtypes.INT32, (-1,)),)


def parts(servable: Servable) -> list[str]:
    """The names of the parts from outside in, to the queue."""
    names = []
    part: object = servable
    while not isinstance(part, Model):
        names.append(type(part).__name__)
        part = part._servable  # type: ignore[attr-defined]
    names.append(type(part).__name__)
    accept = part._accept
    while inspect.isfunction(accept) and "accept" in (closure := inspect.getclosurevars(accept).nonlocals):
        names.append("grouped")
        accept = closure["accept"]
    if isinstance(part._scheduler, QueuedScheduler):
        names.append(type(part._scheduler._queue).__name__)
    return names


async def assembled(given: ModelConfig, cache: ResponseCache | None = None) -> Servable:
    engine = PuppetBackend().open(ModelSource(given, 1, Path(), Path()))
    instances = [("model_0", engine.instance(instance_spec(given)))]
    opened = OpenedModel(given, b"", engine, instances, False)
    return assemble_model(ModelId("model", 1), opened, LoopClock(asyncio.get_running_loop()), cache)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (config(), ["Model", "LevelQueue"]),
        (config(inputs=VARIABLE), ["Model", "LevelQueue"]),
        (config(dynamic_batching=DynamicBatching()), ["Model", "LevelQueue"]),
        (config(dynamic_batching=DynamicBatching(), inputs=VARIABLE), ["Model", "LevelQueue"]),
        (config(dynamic_batching=DynamicBatching(priority_levels=2)), ["Model", "LevelQueue"]),
        (config(dynamic_batching=DynamicBatching(separate_by=("a",))), ["Model", "grouped", "LevelQueue"]),
        (
            config(
                dynamic_batching=DynamicBatching(separate_by=("a",)),
                inputs=VARIABLE,
                padding=Padding({"INPUT0": 0}, policy=PaddingPolicy.ALWAYS, buckets=2),
            ),
            ["Model", "grouped", "grouped", "LevelQueue"],
        ),
        (
            config(dynamic_batching=DynamicBatching(), inputs=VARIABLE, padding=Padding({"INPUT0": 0})),
            ["Model", "LevelQueue"],
        ),
        (config(cached=True), ["CachedModel", "Model", "LevelQueue"]),
        (
            config(cached=True, dynamic_batching=DynamicBatching(preserve_ordering=True)),
            ["OrderedModel", "CachedModel", "Model", "LevelQueue"],
        ),
        (config(sequence_batching=SequenceBatching(OldestStrategy())), ["SequenceModel"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
async def test_parts(given: ModelConfig, expected: list[str]) -> None:
    servable = await assembled(given, ResponseCache(1 << 16))
    assert parts(servable) == expected
    assert isinstance(servable, SequenceKeeper) == (expected == ["SequenceModel"])
    assert repr(servable).startswith(expected[0].removeprefix("Sequence"))
    await servable.close()


async def test_a_server_without_a_cache_runs_every_request(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        servable = await assembled(config(cached=True))
    assert parts(servable) == ["Model", "LevelQueue"]
    assert "every request is run" in caplog.text
    await servable.close()
