"""Changes of a configuration that are applied to what serves, without opening the model's files again."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from in_place_bench import CONFIG, DYNAMIC, ONE, SLOW, TWO, Bench, until

from modserve import ModserveError
from modserve.backends.api import QUEUES, InstanceSpec
from modserve.models.serving.model import Model
from modserve.testing import write_model
from modserve.testing.puppets import _PuppetModel


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    write_model(tmp_path, "m", CONFIG + ONE + DYNAMIC)
    (tmp_path / "m" / "1" / "weights").write_text("first")
    made = Bench(tmp_path)
    async with made.server:
        yield made
    assert (made.backend.open_models, made.backend.open_instances) == (0, 0)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (TWO + DYNAMIC, "instance_group"),
        (ONE + SLOW, "dynamic_batching"),
        (TWO + SLOW, "dynamic_batching, instance_group"),
        (ONE + DYNAMIC + "version_policy { all {} }", "version_policy"),
        (ONE + DYNAMIC + "response_cache { enable: true }", "response_cache"),
        ("# only a remark\n" + ONE + DYNAMIC, "an equivalent configuration"),
        (ONE + ONE + DYNAMIC, "instance_group"),
        ("instance_group [ { name: 'other' count: 1 kind: KIND_CPU } ]\n" + DYNAMIC, "instance_group"),
        (
            "instance_group [ { count: 2 kind: KIND_CPU rate_limiter { priority: 2 } } ]\n" + DYNAMIC,
            "instance_group",
        ),
    ],
)
async def test_applied_in_place(bench: Bench, caplog: pytest.LogCaptureFixture, text: str, fields: str) -> None:
    caplog.set_level(logging.INFO)
    await bench.change(text)
    assert bench.opened == 1
    assert f"model 'm', version 1: applied in place: {fields}" in caplog.text
    [entry] = await bench.server.repository_index(False)
    assert (entry.state.value, entry.reason) == ("READY", "")


async def test_an_engine_describes_its_model_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def describe(model: object) -> None:
        raise AssertionError("an engine may have started a process for the answer, which is nobody's now")

    monkeypatch.setattr(_PuppetModel, "describe", describe)
    await bench.change(TWO + DYNAMIC)
    await bench.change("# only a remark\n" + TWO + DYNAMIC)
    assert bench.opened == 1


@pytest.mark.parametrize(
    "text",
    [
        ONE + DYNAMIC + 'parameters { key: "a" value { string_value: "b" } }',
        ONE,
        TWO + DYNAMIC + "optimization { priority: PRIORITY_MAX }",
        ONE + "sequence_batching {}",
        "instance_group [ { count: 1 kind: KIND_MODEL } ]\n" + DYNAMIC,
    ],
    ids=["parameters", "no queue any more", "one field of two", "sequences", "kinds"],
)
async def test_all_else_loads_anew(bench: Bench, text: str) -> None:
    await bench.change(text)
    assert bench.opened == 2


async def test_a_backend_that_says_nothing_loads_anew(bench: Bench) -> None:
    bench.backend.in_place = ()
    await bench.change(TWO + DYNAMIC)
    assert bench.opened == 2


async def test_a_backend_may_know_of_its_instances_and_not_of_queues(bench: Bench) -> None:
    bench.backend.in_place = QUEUES
    await bench.change(ONE + SLOW)
    assert bench.opened == 1
    await bench.change(TWO + SLOW)
    assert bench.opened == 2


def _rewritten(path: Path) -> None:
    path.write_text("second, and longer")


def _replaced(path: Path) -> None:
    """Another file of the same size and time."""
    status = path.stat()
    other = path.with_name("other")
    other.write_text("other")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("how", [_rewritten, _replaced])
async def test_weights_that_have_changed_are_read(bench: Bench, how: Callable[[Path], None]) -> None:
    how(bench.root / "m" / "1" / "weights")
    await bench.change(TWO + DYNAMIC)
    assert bench.opened == 2


async def test_versions_that_stay_are_left_alone_when_others_come(bench: Bench) -> None:
    before = bench.model
    (bench.root / "m" / "2").mkdir()
    await bench.change(ONE + DYNAMIC + "version_policy { all {} }")
    assert [source.version for source in bench.backend.sources] == [1, 2]
    assert [each.id.version for each in bench.server.ready_models()] == [1, 2]
    assert bench.server.ready_models()[0] is before
    await bench.change(ONE + DYNAMIC + "version_policy { specific { versions: [ 2 ] } }")
    assert [each.id.version for each in bench.server.ready_models()] == [2]
    assert bench.opened == 2


async def test_instances_come_and_go_while_requests_run(bench: Bench) -> None:
    first = bench.infer(1)
    execution = await bench.begun()
    waiting = bench.infer(2)
    await bench.change(TWO + DYNAMIC)
    assert (bench.opened, bench.backend.open_instances) == (1, 2)
    second = await bench.begun()  # what waited runs on the new instance
    assert bench.model.statistics.instances == 2
    await bench.change(ONE + DYNAMIC)
    assert bench.model.statistics.instances == 1
    for one in (execution, second):
        one.finish({"OUTPUT0": one.inputs["INPUT0"]})
    assert [(await each).outputs["OUTPUT0"].array[0, 0] for each in (first, waiting)] == [1, 2]
    await until(lambda: bench.backend.open_instances == 1)
    await bench.run(3)


async def test_what_waits_in_the_old_queue_runs_first(bench: Bench) -> None:
    await bench.change(ONE + SLOW)
    running = [bench.infer(value) for value in range(8)]  # a full batch
    execution = await bench.begun()
    old = [bench.infer(value) for value in (20, 21)]  # these would wait for ten minutes
    await until(lambda: bench.model.statistics.pending == 2)
    await bench.change(ONE + "dynamic_batching { preferred_batch_size: [ 4 ] }\n")
    assert bench.opened == 1
    new = bench.infer(30)
    await until(lambda: bench.model.statistics.pending == 3)
    values = []
    for _ in range(3):
        values.append(execution.inputs["INPUT0"][:, 0].tolist())
        execution.finish({"OUTPUT0": execution.inputs["INPUT0"]})
        if len(values) < 3:
            execution = await bench.begun()
    assert values == [list(range(8)), [20, 21], [30]]
    await asyncio.gather(*running, *old, new)
    await bench.run(4)


async def test_three_changes_while_requests_wait_in_each_queue(bench: Bench) -> None:
    tasks = [bench.infer(1)]
    execution = await bench.begun()
    for value, text in enumerate((ONE + SLOW, ONE + DYNAMIC, ONE + SLOW), 2):
        tasks.append(bench.infer(value))
        await until(lambda: bench.model.statistics.pending == value - 1)  # noqa: B023 - it is over by then
        await bench.change(text)
    values = []
    for _ in range(4):
        values.append(execution.inputs["INPUT0"][:, 0].tolist())
        execution.finish({"OUTPUT0": execution.inputs["INPUT0"]})
        if len(values) < 4:
            execution = await bench.begun()
    assert values == [[1], [2], [3], [4]]  # the oldest queue first
    await asyncio.gather(*tasks)
    assert not list(bench.model._former)
    assert bench.opened == 1


async def test_the_cache_is_put_before_the_model_and_taken_away(bench: Bench) -> None:
    cached = ONE + DYNAMIC + "response_cache { enable: true }"
    await bench.change(cached)
    await bench.run(5)
    assert (await bench.infer(5)).outputs["OUTPUT0"].array.tolist() == [[5] * 4]  # nobody ended an execution
    await bench.change(TWO + DYNAMIC + "response_cache { enable: true }")
    assert (await bench.infer(5)).outputs["OUTPUT0"].array.tolist() == [[5] * 4]  # what was kept stays
    await bench.change(TWO + DYNAMIC)
    await bench.run(5)
    await bench.change(cached)
    await bench.run(5)
    assert bench.opened == 1


async def test_the_order_of_responses_is_kept_over_a_change(bench: Bench) -> None:
    ordered = "dynamic_batching { preserve_ordering: true }\n"
    await bench.change(TWO + ordered)
    done: list[int] = []

    async def note(value: int) -> None:
        await bench.infer(value)
        done.append(value)

    tasks = [asyncio.create_task(note(value)) for value in (1, 2)]
    executions = [await bench.begun()]
    if len(executions[0].inputs["INPUT0"]) == 1:
        executions.append(await bench.begun())
    await bench.change(TWO + ordered + "response_cache { enable: true }")
    for execution in reversed(executions):
        execution.finish({"OUTPUT0": execution.inputs["INPUT0"]})
    await asyncio.gather(*tasks)
    assert done == [1, 2]
    assert bench.opened == 1


async def test_an_instance_that_cannot_be_made_changes_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = bench.model.opened.engine
    make = opened.instance

    def instance(spec: InstanceSpec) -> Any:
        if spec.index == 2:
            raise RuntimeError("no memory for a third one")
        return make(spec)

    monkeypatch.setattr(opened, "instance", instance)
    with pytest.raises(ModserveError, match="no memory for a third one"):
        await bench.change("instance_group [ { count: 3 kind: KIND_CPU } ]\n" + DYNAMIC)
    assert (bench.opened, bench.backend.open_instances) == (1, 1)
    [entry] = await bench.server.repository_index(False)
    assert (entry.state.value, entry.version) == ("READY", 1)
    assert "version 1 is served as before, because it failed to load: " in entry.reason
    await bench.run()


async def test_a_new_instance_that_fails_its_warm_up_changes_nothing(bench: Bench) -> None:
    warm_up = (
        'model_warmup { name: "w" batch_size: 1 inputs { key: "INPUT0" value { data_type: TYPE_INT32 dims: [ 4 ] '
        "zero_data: true } } }\n"
    )
    change = asyncio.create_task(bench.change(TWO + DYNAMIC + warm_up))
    execution = await bench.begun()
    await bench.run()  # beside it
    execution.fail(RuntimeError("cold"))
    with pytest.raises(ModserveError, match=r"warm-up sample 'w' failed: .*cold"):
        await change
    await until(lambda: bench.backend.open_instances == 1)
    change = asyncio.create_task(bench.change(TWO + DYNAMIC + warm_up))
    execution = await bench.begun()
    assert bench.model.statistics.instances == 1
    execution.finish({"OUTPUT0": execution.inputs["INPUT0"]})
    await change
    assert bench.model.statistics.instances == 2
    assert bench.opened == 1


async def test_all_versions_are_changed_or_none(bench: Bench) -> None:
    (bench.root / "m" / "2").mkdir()
    bench.backend.fail_to_open = RuntimeError("no good")
    with pytest.raises(ModserveError, match="no good"):
        await bench.change(TWO + DYNAMIC + "version_policy { all {} }")
    assert bench.model.statistics.instances == 1
    await until(lambda: bench.backend.open_instances == 1)
    await bench.run()


OVERRIDE: dict[str, Any] = {
    "backend": "puppet",
    "max_batch_size": 8,
    "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [4]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [4]}],
    "dynamic_batching": {},
}


def _load(bench: Bench, count: int, files: dict[str, bytes] | None = None) -> Awaitable[None]:
    config = json.dumps({**OVERRIDE, "instance_group": [{"count": count, "kind": "KIND_CPU"}]})
    return bench.server.load_model("m", config, files)


async def test_a_configuration_that_comes_with_the_call(bench: Bench) -> None:
    await _load(bench, 3)
    assert (bench.opened, bench.backend.open_instances) == (1, 3)


async def test_files_that_come_with_the_call_are_compared_by_their_content(bench: Bench) -> None:
    files = {"1/weights": b"x" * 10}
    await _load(bench, 1, files)
    assert bench.opened == 2
    await _load(bench, 2, files)
    await _load(bench, 3, files)
    assert bench.opened == 2
    await until(lambda: bench.backend.open_instances == 3)
    assert bench.backend.sources[-1].path.parent.is_dir()
    await bench.run()
    await _load(bench, 3, {"1/weights": b"y" * 10})
    assert bench.opened == 3


async def test_a_model_that_was_changed_is_unloaded_whole(bench: Bench) -> None:
    await bench.change(TWO + SLOW)
    await bench.change(ONE + DYNAMIC)
    model = bench.model
    assert isinstance(model, Model)
    await bench.server.unload_model("m")
    await until(lambda: (bench.backend.open_models, bench.backend.open_instances) == (0, 0))
