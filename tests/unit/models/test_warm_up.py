"""From the warm-up of a configuration to what instances run, and what a model makes of it."""

import asyncio
import math
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from modserve.backends.api import Executor, InstanceLostError, ModelSource
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.configuration.sequence_config import Control, ControlKind, SequenceBatching, SequenceState
from modserve.core.configuration.warm_up_config import DataKind, WarmUp, WarmUpInput, WarmUpMode
from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.requests.response import NOBODY
from modserve.core.runtime.clock import LoopClock
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId
from modserve.execution.warming import Sample
from modserve.models.loading.assembly import bare_model
from modserve.models.serving.model import Model
from modserve.models.serving.opened_model import OpenedModel
from modserve.models.serving.warm_up import make_samples
from modserve.testing import Execution, PuppetBackend, instance_spec

INPUT = TensorSpec("IN", dtypes.INT32, (2,))
TEXT = TensorSpec("TEXT", dtypes.BYTES, (1,), optional=True)
OUTPUT = TensorSpec("OUT", dtypes.INT32, (2,))
ZEROS = WarmUpInput(dtypes.INT32, (2,), DataKind.ZERO)
CONTROLS = (
    Control("START", ControlKind.START, dtypes.INT32),
    Control("END", ControlKind.END, dtypes.FP32, (-1, 1)),
    Control("READY", ControlKind.READY, dtypes.BOOL),
    Control("ID", ControlKind.CORRID, dtypes.UINT64),
)


def model(*warm_ups: WarmUp, **more: object) -> ModelConfig:
    fields: dict[str, object] = {"inputs": (INPUT, TEXT), "outputs": (OUTPUT,), "max_batch_size": 4, **more}
    return ModelConfig("m", "puppet", warm_ups=warm_ups, **fields)  # type: ignore[arg-type]


def samples(
    config: ModelConfig, directory: Path = Path(), mode: WarmUpMode = WarmUpMode.CONFIG, **states: Tensor
) -> Sequence[Sample]:
    return make_samples(config, mode, directory, states)


def contents(sample: Sample) -> list[dict[str, object]]:
    """The inputs of each request."""
    return [{name: one.array.tolist() for name, one in each.inputs.items()} for each in sample.requests(NOBODY)]


def test_each_row_is_a_request_with_the_same_data() -> None:
    (made,) = samples(model(WarmUp("w", 3, 2, {"IN": ZEROS})))
    assert (made.name, made.times, made.made_up) == ("w", 2, False)
    assert contents(made) == [{"IN": [[0, 0]]}] * 3
    assert [each.request.id for each in made.requests(NOBODY)] == ["warm-up w"] * 3


def test_random_data_and_files(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "text").write_bytes(struct.pack("<I", 3) + b"abc")
    random = WarmUpInput(dtypes.INT32, (2,), DataKind.RANDOM)
    text = WarmUpInput(dtypes.BYTES, (1,), DataKind.FILE, "text")
    (made,) = samples(model(WarmUp("w", 1, 1, {"IN": random, "TEXT": text})), tmp_path)
    [inputs] = contents(made)
    assert inputs["TEXT"] == [[b"abc"]]
    assert 0 <= np.min(inputs["IN"]) <= np.max(inputs["IN"]) < 100  # type: ignore[call-overload]


def test_a_file_that_has_gone_names_the_sample(tmp_path: Path) -> None:
    said = WarmUpInput(dtypes.INT32, (2,), DataKind.FILE, "data")
    with pytest.raises(ModserveError) as refused:
        samples(model(WarmUp("w", 1, 1, {"IN": said})), tmp_path)
    assert refused.value.message == f"model 'm': warm-up sample 'w': there is no file '{tmp_path}/warmup/data'"


def test_without_a_batch_dimension() -> None:
    (made,) = samples(model(WarmUp("w", 1, 1, {"IN": ZEROS}), max_batch_size=0))
    assert contents(made) == [{"IN": [0, 0]}]


def test_an_input_that_is_left_out_is_made_up() -> None:
    (made,) = samples(model(WarmUp("w", 1, 1, {})))
    [inputs] = contents(made)
    assert [*inputs] == ["IN"]


def test_reshape() -> None:
    config = model(WarmUp("w", 1, 1, {"IN": ZEROS}), inputs=(TensorSpec("IN", dtypes.INT32, (2,), (1, 2)),))
    (made,) = samples(config)
    assert contents(made) == [{"IN": [[[0, 0]]]}]


def test_each_row_is_a_sequence() -> None:
    state = SequenceState("S", "T", dtypes.FP32, (1,))
    sequences = SequenceBatching(controls=CONTROLS, states=(state,))
    (made,) = samples(model(WarmUp("w", 2, 1, {"IN": ZEROS}), sequence_batching=sequences))
    row = {"IN": [[0, 0]], "START": [[1]], "END": [[1.0]], "READY": [[True]], "S": [[0.0]]}
    assert contents(made) == [{**row, "ID": [[1]]}, {**row, "ID": [[2]]}]
    first, second = made.requests(NOBODY)
    assert first.request.parameters == {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    assert first.states is not None
    assert first.states is not second.states


def test_a_sequence_begins_with_the_states_of_files() -> None:
    sequences = SequenceBatching(states=(SequenceState("S", "T", dtypes.FP32, (1,)),))
    config = model(WarmUp("w", 1, 1, {"IN": ZEROS}), sequence_batching=sequences)
    (made,) = samples(config, S=Tensor.from_array(np.array([7], np.float32)))
    assert contents(made)[0]["S"] == [[7.0]]


def test_a_sample_may_say_what_the_server_makes() -> None:
    sequences = SequenceBatching(controls=CONTROLS, states=(SequenceState("S", "T", dtypes.FP32, (1,)),))
    inputs = {
        "IN": ZEROS,
        "START": WarmUpInput(dtypes.INT32, (1,), DataKind.ZERO),
        "ID": WarmUpInput(dtypes.UINT64, (1,), DataKind.ZERO),
    }
    (made,) = samples(model(WarmUp("w", 1, 1, inputs), sequence_batching=sequences))
    [request] = made.requests(NOBODY)
    assert request.inputs["START"].array.tolist() == [[0]]
    assert request.request.parameters["sequence_start"] is False
    assert request.request.parameters["sequence_end"] is True


def test_an_id_may_be_a_text() -> None:
    sequences = SequenceBatching(controls=(Control("ID", ControlKind.CORRID, dtypes.BYTES),))
    (made,) = samples(model(WarmUp("w", 1, 1, {"IN": ZEROS}), sequence_batching=sequences))
    assert contents(made)[0]["ID"] == [[b"warm-up w 1"]]


# Modes


@pytest.mark.parametrize("mode", [WarmUpMode.CONFIG, WarmUpMode.OFF])
def test_nothing_is_made_up_unless_somebody_asks(mode: WarmUpMode) -> None:
    assert samples(model(), mode=mode) == []


def test_off() -> None:
    assert samples(model(WarmUp("w", 1, 1, {"IN": ZEROS})), mode=WarmUpMode.OFF) == []


def test_auto() -> None:
    one, most = samples(model(inputs=(TensorSpec("IN", dtypes.FP32, (-1, 3)), TEXT)), mode=WarmUpMode.AUTO)
    assert (one.name, most.name, one.made_up, most.made_up) == ("generated, 1 row", "generated, 4 rows", True, True)
    assert [len(each.requests(NOBODY)) for each in (one, most)] == [1, 4]
    [request] = one.requests(NOBODY)
    assert {name: tensor.shape for name, tensor in request.inputs.items()} == {"IN": (1, 64, 3), "TEXT": (1, 1)}


def test_auto_leaves_models_alone_that_say_it_themselves() -> None:
    (made,) = samples(model(WarmUp("w", 1, 1, {"IN": ZEROS})), mode=WarmUpMode.AUTO)
    assert (made.name, made.made_up) == ("w", False)


def test_auto_does_not_start_streams() -> None:
    assert samples(model(decoupled=True), mode=WarmUpMode.AUTO) == []


def test_auto_takes_no_more_than_so_much_memory() -> None:
    large = model(inputs=(TensorSpec("IN", dtypes.FP32, (1 << 20,)),), max_batch_size=1000)
    _, most = samples(large, mode=WarmUpMode.AUTO)
    assert most.name == "generated, 16 rows"


def test_auto_with_a_shape_that_does_not_fit_is_only_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = model(inputs=(TensorSpec("IN", dtypes.FP32, (-1, 3)),), parameters={"sample_shape": "IN:1x2x3"})
    assert samples(config, mode=WarmUpMode.AUTO) == []
    assert "model 'm' is not warmed up: model 'm': sample_shape is 1x2x3 for 'IN'" in caplog.text


# Models


class Bench:
    def __init__(self, config: ModelConfig, instances: int = 1, mode: WarmUpMode = WarmUpMode.CONFIG) -> None:
        self.backend = PuppetBackend(by_request=config.decoupled)
        engine = self.backend.open(ModelSource(config, 1, Path(), Path()))
        spec = instance_spec(config)
        made = [(f"m_{index}", engine.instance(spec)) for index in range(instances)]
        self.samples = samples(config, mode=mode)
        self.sampled = 0
        opened = OpenedModel(
            config, b"", engine, made, False, make=lambda number, close: self._anew(close), make_samples=self._again
        )
        self._make: Callable[[], Executor] = lambda: engine.instance(spec)
        self.model: Model = bare_model(ModelId("m", 1), opened, LoopClock(asyncio.get_running_loop()))

    def _anew(self, close: Callable[[], None]) -> "Future[Executor]":
        future: Future[Executor] = Future()
        close()
        future.set_result(self._make())
        return future

    def _again(self) -> "Future[Sequence[Sample]]":
        self.sampled += 1
        future: Future[Sequence[Sample]] = Future()
        future.set_result(self.samples)
        return future

    def warm_up(self, at_a_time: int = 1) -> "asyncio.Task[None]":
        return asyncio.create_task(self.model.warm_up(self.samples, at_a_time))

    async def execution(self) -> Execution:
        return await asyncio.to_thread(self.backend.next_execution)

    async def finish(self) -> list[list[int]]:
        execution = await self.execution()
        array = execution.inputs["IN"]
        execution.finish({"OUT": array})
        rows: list[list[int]] = array.tolist()
        return rows

    def counts(self) -> tuple[int, int, int]:
        statistics = self.model.statistics
        return statistics.inference_count, statistics.execution_count, statistics.pending


TWICE = WarmUp("twice", 3, 2, {"IN": ZEROS})
ONCE = WarmUp("once", 1, 1, {"IN": ZEROS})


async def test_every_sample_runs_on_every_instance_and_counts_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bench = Bench(model(TWICE, ONCE), instances=2)
    start_ns = time.monotonic_ns()
    task = bench.warm_up()
    for _ in range(2):
        assert [len(await bench.finish()) for _ in range(3)] == [3, 3, 1]
    await task
    assert bench.counts() == (0, 0, 0)
    assert bench.model.outstanding == 0
    report = bench.model.engine_report["warm_up"]
    assert isinstance(report, dict)
    assert {name: [(each["sample"], each["count"]) for each in ran] for name, ran in report["instances"].items()} == {
        "m_0": [("twice", 2), ("once", 1)],
        "m_1": [("twice", 2), ("once", 1)],
    }
    assert max(each["ms"] for ran in report["instances"].values() for each in ran) <= report["ms"]
    assert report["ms"] <= math.ceil((time.monotonic_ns() - start_ns) / 1e6), "the whole was within this test"
    assert "model 'm', instance 'm_1': warm-up sample 'twice' ran 2 times in " in caplog.text
    await bench.model.close()


async def test_several_instances_at_a_time() -> None:
    bench = Bench(model(ONCE), instances=2)
    task = bench.warm_up(at_a_time=2)
    both = [await bench.execution(), await bench.execution()]
    for execution in both:
        execution.finish({"OUT": execution.inputs["IN"]})
    await task
    await bench.model.close()


async def test_a_failing_sample_says_which_and_why() -> None:
    bench = Bench(model(TWICE, ONCE))
    task = bench.warm_up()
    await bench.finish()
    (await bench.execution()).fail(invalid("no zeros, please"))
    with pytest.raises(ModserveError) as refused:
        await task
    assert refused.value.code is Code.INVALID_ARG
    assert refused.value.message == "model 'm', instance 'm_0': warm-up sample 'twice' failed: no zeros, please"
    assert bench.counts() == (0, 0, 0)
    await bench.model.close()
    assert bench.backend.open_instances == 0


async def test_outputs_that_are_no_good_fail() -> None:
    bench = Bench(model(ONCE))
    task = bench.warm_up()
    (await bench.execution()).finish({"OUT": np.zeros((1, 2), np.float32)})
    with pytest.raises(
        ModserveError, match="warm-up sample 'once' failed: output 'OUT' of model 'm' is of type float32"
    ):
        await task
    await bench.model.close()


async def test_an_instance_that_is_lost_meanwhile_fails_the_load_and_is_not_made_anew() -> None:
    bench = Bench(model(ONCE))
    task = bench.warm_up()
    (await bench.execution()).fail(InstanceLostError("it died"))
    with pytest.raises(InstanceLostError, match="warm-up sample 'once' failed: was lost: it died"):
        await task
    assert bench.model.statistics.instances_lost == 0
    await bench.model.close()


async def test_data_that_is_made_up_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(model(), mode=WarmUpMode.AUTO)
    task = bench.warm_up()
    (await bench.execution()).fail(invalid("I take primes only"))
    await task
    assert "warm-up sample 'generated, 1 row' failed: I take primes only. This data was generated" in caplog.text
    await bench.model.close()


async def test_a_decoupled_model_is_warm_when_all_responses_have_come() -> None:
    bench = Bench(model(WarmUp("w", 2, 1, {"IN": ZEROS}), decoupled=True))
    task = bench.warm_up()
    execution = await bench.execution()
    first, second = execution.requests
    first.respond({"OUT": np.zeros((1, 2), np.int32)})
    first.complete()
    execution.finish()
    await asyncio.sleep(0)
    assert not task.done()
    second.respond({"OUT": np.zeros((1, 2), np.int32)})
    second.complete()
    await task
    assert bench.counts() == (0, 0, 0)
    await bench.model.close()


async def test_a_decoupled_model_that_fails() -> None:
    bench = Bench(model(WarmUp("w", 1, 1, {"IN": ZEROS}), decoupled=True))
    task = bench.warm_up()
    execution = await bench.execution()
    [request] = execution.requests
    request.fail(invalid("no"))
    execution.finish()
    with pytest.raises(ModserveError, match="warm-up sample 'w' failed: no"):
        await task
    await bench.model.close()


async def test_a_request_without_a_final_response_fails() -> None:
    bench = Bench(model(WarmUp("w", 1, 1, {"IN": ZEROS}), decoupled=True))
    task = bench.warm_up()
    execution = await bench.execution()
    execution.requests = ()
    execution.finish()
    del execution
    with pytest.raises(ModserveError, match="released a request without a final response"):
        await task
    await bench.model.close()


async def test_nothing_to_run() -> None:
    bench = Bench(model())
    await bench.warm_up()
    assert "warm_up" not in bench.model.engine_report
    await bench.model.close()
