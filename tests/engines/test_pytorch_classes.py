"""Classes in model.py with weights beside them, served by the pytorch backend."""

# mypy: allow-subclassing-any, allow-untyped-defs, allow-incomplete-defs

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from pytorch_models import floats, parameters, python_class, running, script, tensors

from modserve.backends.pytorch.python_class import PythonClass
from modserve.core.tensors.tensor import Array


class Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor):
        return self.linear(x)


NET = """
import torch
from torch.nn import Linear


class Block(torch.nn.Module):
    def forward(self, x):
        return x + 1


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = Linear(4, 3)
        self.block = Block()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("scale", torch.tensor([2.0]), persistent=False)

    def forward(self, x, y=None, *, times: int = 1):
        self.calls += 1
        out = self.block(self.linear(x)) * self.scale * times
        if y is not None:
            x += y
        return {"out": out, "x": x, "calls": self.calls.expand(len(x), 1)}
"""
NET_CONFIG = (
    'backend: "pytorch"\nruntime: "model.py"\nmax_batch_size: 8\n'
    'input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] },\n'
    '        { name: "y" data_type: TYPE_FP32 dims: [ 4 ] optional: true } ]\n'
    + tensors("output", ("out", "FP32", "3"), ("x", "FP32", "4"), ("calls", "FP32", "1"))
)


def _net() -> tuple[dict[str, Any], Array, Array]:
    linear = torch.nn.Linear(4, 3)
    weights = {"linear.weight": linear.weight, "linear.bias": linear.bias, "calls": torch.zeros(1)}
    x = floats(2, 4)
    with torch.no_grad():
        return weights, x, (linear(torch.from_numpy(x)).numpy() + 1) * 2


async def test_a_class_with_weights(tmp_path: Path) -> None:
    weights, x, expected = _net()
    x.flags.writeable = False
    kept = x.copy()
    config = NET_CONFIG + parameters(MODEL_CLASS="Net")
    async with running(tmp_path, config, python_class(NET, weights)) as model:
        assert model.reason == ""
        found = [await model({"x": x, "y": x}) for _ in range(4)]
        plain = await model({"x": x})
    for each in found:
        np.testing.assert_allclose(each["out"], expected, rtol=1e-5)
        np.testing.assert_array_equal(each["x"], kept * 2)
    np.testing.assert_array_equal(plain["x"], kept)
    np.testing.assert_array_equal(x, kept)


MORE = """
import torch


class Net(torch.nn.Module):
    def forward(self, x, y=None, *more, scale=1):
        out = x + (1000 if y is None else y)
        for place, each in enumerate(more):
            out = out + 10 ** (place + 1) * each
        return {"out": out}
"""


async def test_what_follows_an_argument_that_was_left_out_keeps_its_place(tmp_path: Path) -> None:
    names = ("x", "y", "more[0]", "more[1]")
    inputs = ", ".join(
        f'{{ name: "{name}" data_type: TYPE_FP32 dims: [ 1 ] {"" if name == "x" else "optional: true"} }}'
        for name in names
    )
    config = f'backend: "pytorch"\nruntime: "model.py"\nmax_batch_size: 8\ninput [ {inputs} ]\n'
    config += tensors("output", ("out", "FP32", "1"))
    one = np.ones((1, 1), np.float32)
    async with running(tmp_path, config, python_class(MORE)) as model:
        assert model.reason == ""

        async def out(*present: str) -> float:
            return float((await model(dict.fromkeys(present, one)))["out"][0, 0])

        assert await out(*names) == 112
        assert await out("x", "more[0]", "more[1]") == 1111
        assert await out("x", "more[0]") == 1011
        assert await out("x") == 1001
        assert await out("x", "y") == 2
        with pytest.raises(Exception, match="needs all inputs before 'more\\[1\\]'"):
            await out("x", "more[1]")


CLASSES = {
    "several": (NET, {}, None, "has several classes that derive from torch.nn.Module (Block, Net); Block is served"),
    "no such class": (NET, {"MODEL_CLASS": "Nit"}, "'MODEL_CLASS' is 'Nit', but the classes of", ""),
    "none": ("x = 1", {}, "has no class that derives from torch.nn.Module", ""),
    "it fails": ("import nothing_like_it", {}, "failed: ModuleNotFoundError: No module named 'nothing_like_it'", ""),
    "it needs arguments": (
        "import torch\nclass Net(torch.nn.Module):\n    def __init__(self, size): pass",
        {},
        "failed (it is called without arguments)",
        "",
    ),
}


@pytest.mark.parametrize(("source", "values", "reason", "warning"), CLASSES.values(), ids=CLASSES)
async def test_the_class_that_is_served(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    source: str,
    values: dict[str, str],
    reason: str | None,
    warning: str,
) -> None:
    async with running(tmp_path, NET_CONFIG + parameters(**values), python_class(source)) as model:
        assert reason is None or reason in model.reason
    assert warning in caplog.text


async def test_a_class_that_nobody_asks_for(tmp_path: Path) -> None:
    config = NET_CONFIG.replace('runtime: "model.py"', "")
    async with running(tmp_path, config, python_class(NET)) as model:
        assert 'to serve the class in model.py beside it, set runtime: "model.py" in config.pbtxt' in model.reason


async def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    config = NET_CONFIG + parameters(MODEL_CLASS="Net")
    async with running(tmp_path / "a", config, python_class(NET, {"other": torch.ones(1)})) as model:
        assert "failed to load weights for Net" in model.reason
        assert "Missing key(s) in state_dict" in model.reason

    def scripted(directory: Path) -> None:
        python_class(NET)(directory)
        script(Plain())(directory)

    async with running(tmp_path / "b", config, scripted) as model:
        assert "it is TorchScript; save weights with torch.save(model.state_dict(), 'model.pt')" in model.reason


async def test_instances_of_a_class_share_weights_and_nothing_else(tmp_path: Path) -> None:
    weights, x, expected = _net()
    made: list[Any] = []
    sibling = PythonClass._sibling

    def noted(self: Any, first: Any, device: Any) -> Any:
        made.append((first, sibling(self, first, device)))
        return made[-1][1]

    config = NET_CONFIG + parameters(MODEL_CLASS="Net") + "instance_group [ { count: 2 kind: KIND_CPU } ]"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PythonClass, "_sibling", noted)
        async with running(tmp_path, config, python_class(NET, weights)) as model:
            found = [(await model({"x": x}))["out"] for _ in range(4)]
    ((first, second),) = made
    assert first.linear.weight.data_ptr() == second.linear.weight.data_ptr()
    assert first.calls.data_ptr() != second.calls.data_ptr()
    assert float(first.calls + second.calls) == 4
    for each in found:
        np.testing.assert_allclose(each, expected, rtol=1e-5)


async def test_compiled_when_it_first_runs(tmp_path: Path) -> None:
    """With a backend of torch.compile's that needs no compiler, which is quicker."""
    weights, x, expected = _net()
    config = NET_CONFIG + parameters(
        MODEL_CLASS="Net", TORCH_COMPILE_OPTIONAL_PARAMETERS='{"backend": "eager", "dynamic": true}'
    )
    async with running(tmp_path, config, python_class(NET, weights)) as model:
        assert model.reason == ""
        found = await model({"x": x})
    np.testing.assert_allclose(found["out"], expected, rtol=1e-5)
