"""Outputs in the memory of a device, from an engine to the next one or to the client, on a device that is none."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve import EngineRequest, InferenceServer, ModserveError, Settings
from modserve.core.errors import Code
from modserve.core.tensors.tensor import Array, Tensor
from modserve.testing import FakeDevice, FakeDeviceArray, write_model

Compute = Callable[[Array], Any]


class Engine:
    """OUT is INPUT plus one, computed on `device` and left there; which tensors it takes as they are says `devices`."""

    default_model_filename = ""
    default_cpu_instances = 1
    any_thread = True

    def __init__(self, device: FakeDevice, devices: Sequence[tuple[int, int]], by_request: bool = False) -> None:
        self.device = device
        self.devices = devices
        self.by_request = by_request
        self.seen: list[type] = []
        """The types of the inputs that executions got."""
        self.result: Callable[[Array], Array] = lambda array: array + 1

    def gpu_count(self) -> int:
        return 0

    def open(self, source: object) -> "Engine":
        return self

    def describe(self) -> None:
        return None

    def instance(self, spec: object) -> "Instance | RequestInstance":
        return RequestInstance(self) if self.by_request else Instance(self)

    def close(self) -> None: ...

    def compute(self, value: Any) -> Tensor:
        self.seen.append(type(value))
        there = value if isinstance(value, FakeDeviceArray) else self.device.upload(value)
        return self.device.tensor(self.result(there.there))


class Instance:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.devices = engine.devices

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Tensor]:
        return {"OUT": self.engine.compute(inputs["INPUT"])}

    def close(self) -> None: ...


class RequestInstance:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def execute_requests(self, requests: Sequence[EngineRequest]) -> None:
        for request in requests:
            tensor = request.tensors["INPUT"]
            there = tensor.device in self.engine.devices
            request.respond({"OUT": self.engine.compute(tensor.source if there else tensor.array)})  # type: ignore[attr-defined]

    def close(self) -> None: ...


MODEL = """
backend: "%s"
max_batch_size: %d
input { name: "INPUT" data_type: TYPE_FP32 dims: [ 3 ] %s }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 3 ] }
%s
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "INPUT" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "HALF" data_type: TYPE_FP32 dims: [ 3 ] }
ensemble_scheduling {
  step {
    model_name: "first" model_version: -1
    input_map { key: "INPUT" value: "INPUT" } output_map { key: "OUT" value: "HALF" }
  }
  step {
    model_name: "second" model_version: -1
    input_map { key: "INPUT" value: "HALF" } output_map { key: "OUT" value: "OUT" }
  }
}
"""
THERE = [(12, 0)]


class Bench:
    """An ensemble of two models, `first` and `second`, each on an engine of its own."""

    def __init__(self, repository: Path, first: Engine, second: Engine) -> None:
        self.repository = repository
        self.engines = {"first": first, "second": second}

    def write(self, name: str, batch: int = 8, reshape: str = "", more: str = "") -> None:
        write_model(self.repository, name, MODEL % (name, batch, reshape, more))

    def serve(self) -> InferenceServer:
        if not (self.repository / "whole").exists():
            write_model(self.repository, "whole", ENSEMBLE)
        for name in self.engines:
            if not (self.repository / name).exists():
                self.write(name)
        settings = Settings(model_repository=(self.repository,), cache_config=1_000_000)
        return InferenceServer(settings, backends=self.engines)  # type: ignore[arg-type]

    @property
    def downloads(self) -> int:
        return sum(device.downloads for device in {id(e.device): e.device for e in self.engines.values()}.values())


def bench(repository: Path, second: Sequence[tuple[int, int]] = THERE, by_request: bool = False) -> Bench:
    device = FakeDevice()
    return Bench(repository, Engine(device, THERE, by_request), Engine(device, second, by_request))


ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


async def infer(server: InferenceServer, model: str, *outputs: str, rows: Array = ROWS) -> dict[str, Tensor]:
    response = await server.infer(model, {"INPUT": rows}, outputs=outputs)
    return dict(response.outputs)


@pytest.mark.parametrize("by_request", [False, True])
async def test_a_client_gets_outputs_on_the_host(tmp_path: Path, by_request: bool) -> None:
    models = bench(tmp_path, by_request=by_request)
    async with models.serve() as server:
        (out,) = (await infer(server, "first")).values()
    assert out.device is None
    np.testing.assert_array_equal(out.array, ROWS + 1)
    assert models.downloads == 1


@pytest.mark.parametrize("by_request", [False, True])
async def test_the_next_engine_gets_what_is_on_the_device(tmp_path: Path, by_request: bool) -> None:
    models = bench(tmp_path, by_request=by_request)
    async with models.serve() as server:
        (out,) = (await infer(server, "whole", "OUT")).values()
    np.testing.assert_array_equal(out.array, ROWS + 2)
    first, second = models.engines.values()
    assert (first.seen, second.seen) == ([np.ndarray], [FakeDeviceArray])
    assert (first.device.uploads, models.downloads) == (1, 1)


@pytest.mark.parametrize("devices", [[], [(12, 1)], [(2, 0)]], ids=["no device", "another number", "another kind"])
async def test_an_engine_that_does_not_take_it_gets_an_array(
    tmp_path: Path, devices: Sequence[tuple[int, int]]
) -> None:
    models = bench(tmp_path, devices)
    async with models.serve() as server:
        (out,) = (await infer(server, "whole", "OUT")).values()
    np.testing.assert_array_equal(out.array, ROWS + 2)
    first, second = models.engines.values()
    assert second.seen == [np.ndarray]
    assert (first.device.uploads, models.downloads) == (2, 2)


async def test_what_the_client_gets_as_well_goes_on_as_an_array(tmp_path: Path) -> None:
    models = bench(tmp_path)
    async with models.serve() as server:
        outputs = await infer(server, "whole", "OUT", "HALF")
    np.testing.assert_array_equal(outputs["HALF"].array, ROWS + 1)
    np.testing.assert_array_equal(outputs["OUT"].array, ROWS + 2)
    assert models.engines["second"].seen == [np.ndarray]
    assert models.downloads == 2


async def test_a_model_that_keeps_responses_gets_arrays(tmp_path: Path) -> None:
    """Whose contents are its key, on the event loop."""
    models = bench(tmp_path)
    models.write("second", more="response_cache { enable: true }")
    async with models.serve() as server:
        for _ in range(2):
            (out,) = (await infer(server, "whole", "OUT")).values()
            np.testing.assert_array_equal(out.array, ROWS + 2)
    first, second = models.engines.values()
    assert (len(first.seen), second.seen, models.downloads) == (2, [np.ndarray], 3)


async def test_another_shape_goes_by_the_host(tmp_path: Path) -> None:
    models = bench(tmp_path)
    models.engines["second"].result = lambda array: array.reshape(-1, 3) + 1
    models.write("second", reshape="reshape { shape: [ 3, 1 ] }")
    async with models.serve() as server:
        (out,) = (await infer(server, "whole", "OUT")).values()
    np.testing.assert_array_equal(out.array, ROWS + 2)
    assert (models.engines["second"].seen, models.downloads) == ([np.ndarray], 2)


async def test_requests_that_share_a_batch_are_merged_and_split_on_the_host(tmp_path: Path) -> None:
    models, four = bench(tmp_path), np.concatenate([ROWS, ROWS])
    queue = "dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 60000000 }"
    for name in models.engines:
        models.write(name, more=queue)
    async with models.serve() as server:
        both = await asyncio.gather(*[infer(server, "whole", "OUT", rows=rows) for rows in (four, -four)])
    for outputs, rows in zip(both, (four, -four), strict=True):
        np.testing.assert_array_equal(outputs["OUT"].array, rows + 2)
    assert [engine.seen for engine in models.engines.values()] == [[np.ndarray], [np.ndarray]]
    assert models.downloads == 2


async def test_a_program_may_give_a_tensor_on_a_device(tmp_path: Path) -> None:
    models = bench(tmp_path)
    device = models.engines["first"].device
    async with models.serve() as server:
        response = await server.infer("whole", {"INPUT": device.tensor(ROWS)}, outputs=["OUT"])
    np.testing.assert_array_equal(response.outputs["OUT"].array, ROWS + 2)
    assert (device.uploads, device.downloads) == (0, 1)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda array: array[:1], r"has shape \[1,3\], expected 2 in the first dimension"),
        (lambda array: array.astype(np.float64), "is of type .*64, but the model configuration says TYPE_FP32"),
    ],
)
@pytest.mark.parametrize("model", ["first", "whole"])
async def test_outputs_that_are_wrong(tmp_path: Path, result: Any, message: str, model: str) -> None:
    models = bench(tmp_path)
    models.engines["first"].result = result
    async with models.serve() as server:
        with pytest.raises(ModserveError, match=message) as caught:
            await infer(server, model, "OUT")
    assert caught.value.code is Code.INTERNAL
    assert models.engines["second"].seen == []


async def test_what_a_condition_is_about_comes_to_the_host_before_it_is_read(tmp_path: Path) -> None:
    """On the thread of the step that makes it, since the event loop decides."""
    models = bench(tmp_path)
    condition = 'parameters { key: "ensemble.when.second" value { string_value: "HALF > 0" } }'
    write_model(tmp_path, "whole", (ENSEMBLE + condition).replace("dims: [ 3 ]", "dims: [ 1 ]"))
    for name in models.engines:
        write_model(tmp_path, name, (MODEL % (name, 8, "", "")).replace("dims: [ 3 ]", "dims: [ 1 ]"))
    async with models.serve() as server:
        (out,) = (await infer(server, "whole", "OUT", rows=ROWS[:1, :1])).values()
    assert out.array.tolist() == [[2]]
    assert (models.engines["second"].seen, models.downloads) == ([np.ndarray], 2)


async def test_states_of_a_sequence_come_to_the_host(tmp_path: Path) -> None:
    models = bench(tmp_path)
    state = 'state { input_name: "INPUT" output_name: "OUT" data_type: TYPE_FP32 dims: [ 3 ] }'
    text = MODEL % ("first", 8, "", f"sequence_batching {{ {state} }}")
    text = text.replace('input { name: "INPUT"', 'input { name: "OTHER"')
    write_model(tmp_path, "first", text)
    async with models.serve() as server:
        for number in (1, 2, 3):
            begin = {"sequence_id": 5, "sequence_start": number == 1, "sequence_end": number == 3}
            response = await server.infer("first", {"OTHER": ROWS[:1]}, parameters=begin)
            np.testing.assert_array_equal(response.outputs["OUT"].array, np.full((1, 3), number, np.float32))
