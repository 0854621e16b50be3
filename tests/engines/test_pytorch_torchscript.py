"""TorchScript models, as their users write them, served by the pytorch backend."""
# mypy: allow-subclassing-any, allow-untyped-defs, allow-incomplete-defs

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from pytorch_models import floats, parameters, put, running, script, served, tensors

from modserve import ModserveError
from modserve.backends.pytorch.backend import PyTorchBackend
from modserve.core.errors import Code
from modserve.core.tensors import dtypes

X4 = ("x", "FP32", "4")


class Two(torch.nn.Module):
    """Two arguments, two results, and weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        return self.linear(x), x - y


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (("y", "x"), ("OUTPUT__1", "OUTPUT__0")),
        (("a__1", "b__0"), ("diff__1", "linear__0")),
        (("first", "second"), ("linear", "diff")),
        (("x", "y"), ("RESULT[0]", "RESULT[1]")),
    ],
    ids=["arguments", "indices", "order", "result"],
)
async def test_names(tmp_path: Path, inputs: tuple[str, str], outputs: tuple[str, str]) -> None:
    module, x, y = Two(), floats(2, 4), floats(2, 4, seed=1)
    swapped = inputs[0] in ("y", "a__1")
    values = dict(zip(inputs, (y, x) if swapped else (x, y), strict=True))
    widths = {name: "4" if "1" in name or name == "diff" else "3" for name in outputs}
    config = (
        "max_batch_size: 8\n"
        + tensors("input", *((name, "FP32", "4") for name in inputs))
        + tensors("output", *((name, "FP32", widths[name]) for name in outputs))
    )
    async with running(tmp_path, config, script(module)) as model:
        found = await model(values)
    with torch.no_grad():
        expected = module(torch.from_numpy(x), torch.from_numpy(y))
    for name in outputs:
        wanted = expected[1] if widths[name] == "4" else expected[0]
        np.testing.assert_allclose(found[name], wanted.numpy(), rtol=1e-6)


class Copies(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        return x.clone(), x, x[1:]


NUMBERS = [datatype for datatype in dtypes.ALL if datatype is not dtypes.BYTES]


@pytest.mark.parametrize("datatype", NUMBERS, ids=[datatype.name for datatype in NUMBERS])
async def test_every_type(tmp_path: Path, datatype: dtypes.Datatype) -> None:
    kind = datatype.config_name.removeprefix("TYPE_")
    names = ("fresh", "same", "part")
    config = tensors("input", ("x", kind, "-1")) + tensors("output", *((name, kind, "-1") for name in names))
    values = np.array([1, 0, 5, 7]).astype(datatype.numpy)
    async with running(tmp_path, config, script(Copies())) as model:
        found = await model({"x": values})
        empty = await model({"x": values[:0]})
    assert [found[name].dtype for name in names] == [datatype.numpy] * 3
    assert [found[name].tolist() for name in names] == [values.tolist(), values.tolist(), values[1:].tolist()]
    assert [empty[name].shape for name in names] == [(0,)] * 3


class Strings(torch.nn.Module):
    def forward(self, texts: list[str], suffix: str) -> tuple[list[str], torch.Tensor]:
        return [text + suffix for text in texts], torch.tensor([len(text) for text in texts])


async def test_strings(tmp_path: Path) -> None:
    config = (
        "max_batch_size: 8\n"
        'input [ { name: "texts" data_type: TYPE_STRING dims: [ 1 ] reshape: { shape: [ ] } },\n'
        '        { name: "suffix" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
        'output [ { name: "texts__0" data_type: TYPE_STRING dims: [ 1 ] reshape: { shape: [ ] } },\n'
        '         { name: "lengths__1" data_type: TYPE_INT64 dims: [ 1 ] reshape: { shape: [ ] } } ]'
    )
    async with running(tmp_path, config, script(Strings())) as model:
        text = np.array([["grün".encode()]], object)
        found = await model({"texts": text, "suffix": np.array([[b"!"]], object)})
        assert found["texts__0"].tolist() == [["grün!".encode()]]
        assert found["lengths__1"].tolist() == [[5]]  # TorchScript counts bytes
        with pytest.raises(ModserveError, match="not UTF-8") as caught:
            await model({"texts": np.array([[b"\xff"]], object), "suffix": np.array([[b"!"]], object)})
        assert caught.value.code is Code.INVALID_ARG


class Dictionary(torch.nn.Module):
    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": batch["a"] + batch["b"], "difference": batch["a"] - batch["b"]}


class Lists(torch.nn.Module):
    def forward(self, xs: list[torch.Tensor], pair: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
        return [xs[0] - xs[1], pair[0] - pair[1]]


async def test_dictionaries(tmp_path: Path) -> None:
    config = tensors("input", ("b", "FP32", "4"), ("a", "FP32", "4")) + tensors(
        "output", ("difference", "FP32", "4"), ("sum", "FP32", "4")
    )
    a, b = floats(4), floats(4, seed=1)
    async with running(tmp_path, config, script(Dictionary())) as model:
        found = await model({"a": a, "b": b})
    np.testing.assert_array_equal(found["sum"], a + b)
    np.testing.assert_array_equal(found["difference"], a - b)


async def test_lists_and_tuples(tmp_path: Path) -> None:
    names = ("xs[0]", "xs[1]", "pair[0]", "pair[1]")
    config = tensors("input", *((name, "FP32", "4") for name in names)) + tensors(
        "output", ("OUTPUT__0", "FP32", "4"), ("OUTPUT__1", "FP32", "4")
    )
    values = {name: floats(4, seed=seed) for seed, name in enumerate(names)}
    async with running(tmp_path, config, script(Lists())) as model:
        found = await model(values)
    np.testing.assert_array_equal(found["OUTPUT__0"], values["xs[0]"] - values["xs[1]"])
    np.testing.assert_array_equal(found["OUTPUT__1"], values["pair[0]"] - values["pair[1]"])


class Optional(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None, times: int = 2, shift: float = 0.5):
        if mask is not None:
            x = x * mask
        return x * times + shift


async def test_optional_arguments_and_numbers(tmp_path: Path) -> None:
    config = (
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] },\n'
        '        { name: "mask" data_type: TYPE_FP32 dims: [ 4 ] optional: true },\n'
        '        { name: "times" data_type: TYPE_INT64 dims: [ 1 ] optional: true } ]\n'
    ) + tensors("output", ("y", "FP32", "4"))
    x, mask = floats(4), np.array([0, 1, 0, 1], np.float32)
    async with running(tmp_path, config, script(Optional())) as model:
        plain = await model({"x": x})
        every = await model({"x": x, "mask": mask, "times": np.array([3])})
    np.testing.assert_array_equal(plain["y"], x * 2 + np.float32(0.5))
    np.testing.assert_array_equal(every["y"], x * mask * 3 + np.float32(0.5))


class Spoiler(torch.nn.Module):
    """Writes into its input, by way of a view."""

    def forward(self, x: torch.Tensor):
        x.view(-1).add_(1)
        return x.relu_()


async def test_a_model_that_writes_into_its_inputs(tmp_path: Path) -> None:
    config = "max_batch_size: 8\n" + tensors("input", X4) + tensors("output", ("y", "FP32", "4"))
    x = np.full((2, 4), 3, np.float32)
    x.flags.writeable = False
    async with running(tmp_path, config, script(Spoiler())) as model:
        for _ in range(3):
            found = await model({"x": x})
            assert found["y"].tolist() == np.full((2, 4), 4).tolist()
    assert x.tolist() == np.full((2, 4), 3).tolist()


class Odd(torch.nn.Module):
    """Results that are no memory of their own: a weight, a view, something expanded, something transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(4.0))

    def forward(self, x: torch.Tensor):
        halves = (x + 1).chunk(2)
        return self.weight, self.weight[1:], x[:1].expand(4), x.view(2, 2).t(), halves[0], halves[1], (x * self.weight)


async def test_results_that_are_not_fresh(tmp_path: Path) -> None:
    names = [f"o__{index}" for index in range(7)]
    dims = ["4", "3", "4", "2, 2", "2", "2", "4"]
    rows = [(name, "FP32", each) for name, each in zip(names, dims, strict=True)]
    config = tensors("input", X4) + tensors("output", *rows)
    x = floats(4)
    expected = [
        np.arange(4),
        np.arange(1, 4),
        np.full(4, x[0]),
        x.reshape(2, 2).T,
        x[:2] + 1,
        x[2:] + 1,
        x * np.arange(4),
    ]
    async with running(tmp_path, config, script(Odd())) as model:
        found = await model({"x": x})
        for array in found.values():
            if array.flags.writeable:
                array.fill(9)
        again = await model({"x": x})
    for name, wanted in zip(names, expected, strict=True):
        np.testing.assert_allclose(again[name], wanted)


class Holding(torch.nn.Module):
    """Keeps what it returned, changes it the next time, and returns a weight, and two parts of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(LARGE))
        self.weight = torch.nn.Parameter(torch.ones(LARGE))
        self.last = torch.zeros(LARGE)

    def forward(self, x: torch.Tensor):
        self.total.add_(x)
        self.last.add_(x)
        self.last = self.last + 1
        first, second = (torch.cat([x, x]) * self.weight[0]).chunk(2)
        return self.total, self.last, self.weight, first, second


LARGE = 300_000
"""Elements of an output that the server does not copy."""


async def test_what_a_model_holds_on_to_is_copied(tmp_path: Path) -> None:
    names = [f"o__{index}" for index in range(5)]
    one = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    config = tensors("input", ("x", "FP32", "-1")) + tensors("output", *((name, "FP32", "-1") for name in names)) + one
    x = np.ones(LARGE, np.float32)
    async with running(tmp_path, config, script(Holding())) as model:
        first = await model({"x": x})
        kept = {name: array.copy() for name, array in first.items()}
        second = await model({"x": x})
        for name in names:
            np.testing.assert_array_equal(first[name], kept[name])
            address = first[name].__array_interface__["data"][0]
            assert all(address != second[other].__array_interface__["data"][0] for other in names)
    assert [float(second[name][-1]) for name in names] == [2, 4, 1, 1, 1]


class Counter(torch.nn.Module):
    """Keeps a buffer between calls and returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x: torch.Tensor):
        self.total.add_(x)
        return self.total


async def test_a_model_with_a_state(tmp_path: Path) -> None:
    """Each instance has its own, and what a client got does not change afterwards."""
    config = tensors("input", ("x", "FP32", "1")) + tensors("output", ("total", "FP32", "1"))
    one = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    async with running(tmp_path, config + one, script(Counter())) as model:
        found = [(await model({"x": np.array([1], np.float32)}))["total"] for _ in range(3)]
    assert [array.tolist() for array in found] == [[1], [2], [3]]


@pytest.mark.parametrize("shared", [False, True])
async def test_a_state_and_several_instances(tmp_path: Path, caplog: pytest.LogCaptureFixture, shared: bool) -> None:
    config = tensors("input", ("x", "FP32", "1")) + tensors("output", ("total", "FP32", "1"))
    sharing = parameters(ENABLE_WEIGHT_SHARING="true") if shared else ""
    async with running(tmp_path, config + sharing, script(Counter())) as model:
        totals = [(await model({"x": np.array([1], np.float32)}))["total"].item() for _ in range(4)]
    warning = "its instances share it (ENABLE_WEIGHT_SHARING)" if shared else "each instance has a separate state"
    assert warning in caplog.text
    assert not shared or totals == [1, 2, 3, 4]


async def test_instances_share_weights_unless_the_model_changes(tmp_path: Path) -> None:
    config = "max_batch_size: 8\n" + tensors("input", X4, ("y", "FP32", "4")) + tensors("output", ("a", "FP32", "3"))
    state = tensors("input", ("x", "FP32", "1")) + tensors("output", ("total", "FP32", "1"))
    put(tmp_path, "two", config, script(Two()))
    put(tmp_path, "counter", state, script(Counter()))
    own = 'parameters { key: "ENABLE_WEIGHT_SHARING" value { string_value: "false" } }'
    put(tmp_path, "own", config + own, script(Two()))
    reports = {}
    opened = PyTorchBackend.open

    def noted(self: PyTorchBackend, source: Any) -> Any:
        model = opened(self, source)
        reports[source.config.name] = model.report()
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PyTorchBackend, "open", noted)
        async with served(tmp_path) as server:
            assert [entry.reason for entry in server.index()] == ["", "", ""]
    assert {name: report["weights_shared"] for name, report in reports.items()} == {
        "two": True,
        "counter": False,
        "own": False,
    }
    report = reports["two"]
    assert (report["engine"], report["version"], report["form"]) == ("PyTorch", torch.__version__, "TorchScript")
    assert (report["precision"], report["device"], report["file"]) == ("fp32", "cpu", "model.pt")


class Wide(torch.nn.Module):
    """With a convolution, a normalisation and an operator in place, as vision models have."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(inplace=True), torch.nn.Flatten()
        )

    def forward(self, x: torch.Tensor):
        return self.layers(x)


@pytest.mark.parametrize(
    ("values", "tolerance"),
    [
        ({"OPTIMIZE_FOR_INFERENCE": "true"}, 1e-5),
        ({"DISABLE_OPTIMIZED_EXECUTION": "true", "INFERENCE_MODE": "false"}, 1e-6),
        ({"PRECISION": "bf16"}, 5e-2),
        ({"AUTOCAST": "bfloat16"}, 5e-2),
        ({"INTRA_OP_THREAD_COUNT": "1", "ENABLE_CACHE_CLEANING": "true", "DISABLE_CUDNN": "1"}, 1e-6),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else "",
)
async def test_parameters(tmp_path: Path, values: dict[str, str], tolerance: float) -> None:
    module = Wide()
    config = (
        "max_batch_size: 8\n"
        + tensors("input", ("x", "FP32", "3, 8, 8"))
        + tensors("output", ("y", "FP32", "288"))
        + parameters(**values)
    )
    x = floats(2, 3, 8, 8)
    async with running(tmp_path, config, script(module)) as model:
        assert model.reason == ""
        found = [(await model({"x": x[:rows]}))["y"] for rows in (2, 2, 1, 2)]
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(x)).numpy()
    for array in found:
        np.testing.assert_allclose(array, expected[: len(array)], rtol=tolerance, atol=tolerance)


async def test_parameters_without_effect_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = {"ENABLE_NVFUSER": "true", "DISABLE_CUDNN": "true", "TORCH_COMPILE": "true", "INFERENCE_MOD": "true"}
    config = tensors("input", X4, ("y", "FP32", "4")) + tensors("output", ("a", "FP32", "3"))
    async with running(tmp_path, config + parameters(**values), script(Two())) as model:
        assert model.reason == ""
    assert "'ENABLE_NVFUSER' has no effect: PyTorch no longer has NVFuser" in caplog.text
    assert "'DISABLE_CUDNN' has no effect: it is for GPUs" in caplog.text
    assert "'TORCH_COMPILE' has no effect: PyTorch cannot compile TorchScript" in caplog.text
    assert "does not know it; did you mean 'INFERENCE_MODE'?" in caplog.text


class Carried(torch.nn.Module):
    def forward(self, x: torch.Tensor, state: torch.Tensor):
        state.add_(x)
        return state * 10, state


async def test_a_state_that_the_server_keeps(tmp_path: Path) -> None:
    config = (
        "max_batch_size: 4\n"
        + tensors("input", ("x__0", "FP32", "1"))
        + tensors("output", ("y__0", "FP32", "1"))
        + 'sequence_batching { state [ { input_name: "s__1" output_name: "s__1" data_type: TYPE_FP32 dims: [ 1 ]\n'
        '  initial_state { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true name: "zero" } } ] }'
    )
    async with running(tmp_path, config, script(Carried())) as model:
        assert model.reason == ""
        found: dict[int, list[float]] = {1: [], 2: []}
        for step, sequence in enumerate((1, 2, 1, 2, 1)):
            parameters = {"sequence_id": sequence, "sequence_start": step < 2, "sequence_end": step == 4}
            y = await model({"x__0": np.array([[sequence]], np.float32)}, parameters=parameters)
            found[sequence] += y["y__0"].reshape(-1).tolist()
    assert found == {1: [10, 20, 30], 2: [20, 40]}
