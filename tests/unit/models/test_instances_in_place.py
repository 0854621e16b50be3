"""Instances that come and go while a model serves: which ones stay, and what becomes of sequences and of resources."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from in_place_bench import CONFIG, DYNAMIC, Bench, until

from modserve import ModserveError
from modserve.backends.api import InstanceLostError, InstanceSpec, Placement
from modserve.core.configuration.model_config import InstanceKind
from modserve.models.loading.changing import match_instances
from modserve.testing import Execution, config, write_model

SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 3600000000 oldest { max_candidate_sequences: 1 } }\n"
CPU, GPU0, GPU1 = Placement(InstanceKind.CPU, 0), Placement(InstanceKind.GPU, 0), Placement(InstanceKind.GPU, 1)


def group(count: int = 1, more: str = "", name: str = "") -> str:
    return f'instance_group [ {{ count: {count} kind: KIND_CPU name: "{name}" {more} }} ]\n'


def resources(count: int, priority: int = 1) -> str:
    return f'rate_limiter {{ resources [ {{ name: "R" count: {count} }} ] priority: {priority} }}'


def answer(execution: Execution) -> None:
    execution.finish({"OUTPUT0": execution.inputs["INPUT0"]})


# Which ones stay


def specs(*names: str) -> list[InstanceSpec]:
    """Instances, by names that end with where they run: nothing for the CPU."""
    places = {"@0": GPU0, "@1": GPU1}
    made = config()
    return [
        InstanceSpec(name, place.kind, place.device, index, made, lambda: "")
        for index, name in enumerate(names)
        for place in [places.get(name[-2:], CPU)]
    ]


@pytest.mark.parametrize(
    ("before", "now", "staying", "made"),
    [
        ("a b c", "a b", {0: "a", 1: "b"}, ""),
        ("a", "a b c", {0: "a"}, "b c"),
        ("a b", "b", {1: "b"}, ""),
        ("a b", "x y", {0: "a", 1: "b"}, ""),
        ("a b", "x", {0: "a"}, ""),
        ("a b", "x b", {0: "a", 1: "b"}, ""),
        ("a", "x y", {0: "a"}, "y"),
        ("a@0 b@1", "a@0", {0: "a@0"}, ""),
        ("a@0 b", "c@1 b", {1: "b"}, "c@1"),
        ("a a", "a a a", {0: "a", 1: "a"}, "a"),
    ],
)
def test_which_ones_stay(before: str, now: str, staying: dict[int, str], made: str) -> None:
    former = dict(enumerate(specs(*before.split())))
    stay, new = match_instances(former, specs(*now.split()))
    assert {number: spec.name for number, spec in stay.items()} == staying
    assert [spec.name for spec in new] == made.split()
    indices = [spec.index for spec in (*stay.values(), *new)]
    assert sorted(indices) == list(range(len(now.split())))


# Sequences


@pytest.fixture
async def sequences(tmp_path: Path) -> AsyncIterator[Bench]:
    write_model(tmp_path, "m", CONFIG + group() + SEQUENCES)
    made = Bench(tmp_path)
    async with made.server:
        yield made
    assert (made.backend.open_models, made.backend.open_instances) == (0, 0)


async def step(bench: Bench, id: int, value: int, **flags: Any) -> None:
    """A request of a sequence, from its beginning to its end."""
    response = bench.infer(value, sequence_id=id, **flags)
    answer(await bench.begun())
    assert (await response).outputs["OUTPUT0"].array[0, 0] == value


async def test_a_sequence_ends_on_its_instance_although_that_was_removed(sequences: Bench) -> None:
    bench = sequences
    await bench.change(group(2) + SEQUENCES)
    await step(bench, 1, 10, sequence_start=True)
    await step(bench, 2, 20, sequence_start=True)
    await bench.change(group(1) + SEQUENCES)
    assert (bench.opened, bench.backend.open_instances) == (1, 2)
    waiting = bench.infer(30, sequence_id=3, sequence_start=True, sequence_end=True)
    await step(bench, 1, 11)
    await step(bench, 2, 21)
    await step(bench, 2, 22, sequence_end=True)
    await until(lambda: bench.backend.open_instances == 1)
    assert bench.model.statistics.instances == 1
    assert not waiting.done()  # its place would have been on the instance that has left
    await step(bench, 1, 12, sequence_end=True)
    answer(await bench.begun())
    assert (await waiting).outputs["OUTPUT0"].array[0, 0] == 30


async def test_sequences_that_wait_get_places_on_new_instances(sequences: Bench) -> None:
    bench = sequences
    await step(bench, 1, 10, sequence_start=True)
    waiting = [bench.infer(id, sequence_id=id, sequence_start=True, sequence_end=True) for id in (2, 3)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting)
    await bench.change(group(3) + SEQUENCES)
    for execution in (await bench.begun(), await bench.begun()):
        answer(execution)
    await asyncio.gather(*waiting)
    await step(bench, 1, 11, sequence_end=True)
    assert bench.opened == 1


async def test_an_instance_that_was_removed_and_is_lost_ends_its_sequences(sequences: Bench) -> None:
    bench = sequences
    await bench.change(group(2) + SEQUENCES)
    await step(bench, 1, 10, sequence_start=True)
    last = bench.infer(20, sequence_id=2, sequence_start=True)
    execution = await bench.begun()
    await bench.change(group(1) + SEQUENCES)
    execution.fail(InstanceLostError("gone"))
    with pytest.raises(ModserveError, match="gone"):
        await last
    await until(lambda: bench.backend.open_instances == 1)
    await step(bench, 1, 11, sequence_end=True)
    assert bench.model.statistics.instances_lost == 0


async def test_a_removed_instance_comes_back_as_another_one(sequences: Bench) -> None:
    bench = sequences
    await bench.change(group(2) + SEQUENCES)
    await step(bench, 1, 10, sequence_start=True)
    await step(bench, 2, 20, sequence_start=True)
    await bench.change(group(1) + SEQUENCES)
    await bench.change(group(2) + SEQUENCES)
    assert (bench.opened, bench.backend.open_instances) == (1, 3)
    await step(bench, 3, 30, sequence_start=True, sequence_end=True)
    for id in (1, 2):
        await step(bench, id, 11, sequence_end=True)
    await until(lambda: bench.backend.open_instances == 2)


async def test_sequences_on_removed_instances_when_the_model_is_unloaded(sequences: Bench) -> None:
    bench = sequences
    await step(bench, 1, 10, sequence_start=True)
    await bench.change(group(1, name="x") + SEQUENCES)
    await bench.change(group(2) + SEQUENCES)
    await step(bench, 2, 20, sequence_start=True)
    await bench.change(group(1) + SEQUENCES)
    await bench.server.unload_model("m")
    await step(bench, 2, 21, sequence_end=True)
    await step(bench, 1, 11, sequence_end=True)
    await until(lambda: (bench.backend.open_models, bench.backend.open_instances) == (0, 0))
    assert bench.opened == 1


# Resources


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[Bench]:
    write_model(tmp_path, "m", CONFIG + group(2, resources(2)))
    made = Bench(tmp_path, rate_limit="execution_count", rate_limit_resource={("R", None): 2})
    async with made.server:
        yield made
    assert (made.backend.open_models, made.backend.open_instances) == (0, 0)


async def rests(bench: Bench) -> bool:
    """Whether nothing more has begun, by now."""
    await asyncio.sleep(0.02)
    return bench.backend._executions.empty()


async def test_instances_need_less_from_now_on(limited: Bench) -> None:
    bench = limited
    tasks = [bench.infer(value) for value in (1, 2)]
    first = await bench.begun()
    assert await rests(bench)
    await bench.change(group(2, resources(1)))
    assert await rests(bench)  # the execution under way still has both
    answer(first)
    second = await bench.begun()
    tasks.append(bench.infer(3))
    third = await bench.begun()  # side by side
    answer(second)
    answer(third)
    await asyncio.gather(*tasks)
    assert (bench.opened, bench.backend.open_instances) == (1, 2)


async def test_what_a_removed_instance_runs_keeps_its_resources(limited: Bench) -> None:
    bench = limited
    await bench.change(group(2, resources(1)))
    tasks = [bench.infer(value) for value in (1, 2, 3)]
    running = [await bench.begun(), await bench.begun()]
    await bench.change(group(1, resources(2)))
    answer(running[0])
    assert await rests(bench)  # one is still in use
    answer(running[1])
    answer(await bench.begun())
    await asyncio.gather(*tasks)
    await until(lambda: bench.backend.open_instances == 1)
    assert bench.opened == 1


async def test_resources_that_nobody_needs_any_more_and_again(limited: Bench) -> None:
    bench = limited
    await bench.change(group(2))
    tasks = [bench.infer(value) for value in (1, 2)]
    for execution in (await bench.begun(), await bench.begun()):
        answer(execution)
    await asyncio.gather(*tasks)
    await bench.change(group(2, resources(2)))
    tasks = [bench.infer(value) for value in (1, 2)]
    first = await bench.begun()
    assert await rests(bench)
    answer(first)
    answer(await bench.begun())
    await asyncio.gather(*tasks)
    assert bench.opened == 1


async def test_more_than_there_is_changes_nothing(limited: Bench) -> None:
    bench = limited
    with pytest.raises(ModserveError, match='Resource count for "R" is limited to 2'):
        await bench.change(group(3, resources(3)))
    await until(lambda: bench.backend.open_instances == 2)
    assert bench.opened == 1
    await bench.run(1)
    await bench.change(group(3, resources(1)))  # what was refused is forgotten
    assert (bench.opened, bench.backend.open_instances) == (1, 3)


async def test_a_resource_of_each_device_becomes_one_of_the_server(limited: Bench) -> None:
    bench = limited
    await bench.change(group(2, 'rate_limiter { resources [ { name: "R" global: true count: 1 } ] }'))
    tasks = [bench.infer(value) for value in (1, 2)]
    for execution in (await bench.begun(), await bench.begun()):
        answer(execution)
    await asyncio.gather(*tasks)
    assert bench.opened == 1


async def test_batching_changes_where_instances_need_resources(tmp_path: Path) -> None:
    write_model(tmp_path, "m", CONFIG + group(2, resources(1)) + DYNAMIC)
    bench = Bench(tmp_path, rate_limit="execution_count", rate_limit_resource={("R", None): 1})
    async with bench.server:
        tasks = [bench.infer(1)]
        running = await bench.begun()
        tasks.append(bench.infer(2))
        await until(lambda: bench.model.statistics.pending == 1)
        await bench.change(group(2, resources(1)) + "dynamic_batching { preferred_batch_size: [ 4 ] }\n")
        assert await rests(bench)
        answer(running)
        answer(await bench.begun())
        await asyncio.gather(*tasks)
        assert bench.opened == 1
