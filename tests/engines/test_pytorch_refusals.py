"""What the pytorch backend refuses, at load and later: TorchScript models and their configurations."""

# mypy: allow-subclassing-any, allow-untyped-defs, allow-incomplete-defs

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from pytorch_models import floats, running, script, tensors

from modserve import ModserveError
from modserve.core.errors import Code

X4 = ("x", "FP32", "4")


class Two(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor):
        return x + y, x - y


class Dictionary(torch.nn.Module):
    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": batch["a"] + batch["b"], "difference": batch["a"] - batch["b"]}


class Fussy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 2)

    def forward(self, ids: torch.Tensor):
        if ids.max() == 9:
            raise ValueError("nine is too many")
        if ids.min() == 8:
            return torch.empty([1 << 60])
        return self.embedding(ids)


FUSSY = "max_batch_size: 8\n" + tensors("input", ("ids", "INT64", "-1")) + tensors("output", ("y", "FP32", "-1, 2"))


@pytest.mark.parametrize(
    ("value", "code", "text"),
    [
        (100, Code.INTERNAL, "pytorch refused the request: index out of range in self"),
        (9, Code.INTERNAL, "pytorch refused the request: nine is too many"),
        (8, Code.INTERNAL, "has not enough memory"),
    ],
)
async def test_refused(tmp_path: Path, value: int, code: Code, text: str) -> None:
    async with running(tmp_path, FUSSY, script(Fussy())) as model:
        with pytest.raises(ModserveError, match=text) as caught:
            await model({"ids": np.array([[value]])})
        assert caught.value.code is code
        assert "\n" not in caught.value.message
        assert len(caught.value.message) < 300
        assert (await model({"ids": np.array([[1]])}))["y"].shape == (1, 1, 2)


async def test_only_the_one_that_is_refused_fails(tmp_path: Path) -> None:
    batching = FUSSY + "dynamic_batching { max_queue_delay_microseconds: 20000 }"
    async with running(tmp_path, batching, script(Fussy())) as model:
        calls = [model({"ids": np.array([[value]])}) for value in (1, 2, 77, 3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(result, ModserveError) for result in results] == [False, False, True, False]


async def _reason(tmp_path: Path, config: str | None, module: Any) -> str:
    async with running(tmp_path, config, script(module)) as model:
        return model.reason


WRONG = {
    "nothing said": ("", Two(), ["forward takes (x: Tensor, y: Tensor) and returns", "INPUT__0, INPUT__1"]),
    "one missing": (tensors("input", X4) + tensors("output", X4), Two(), ["takes 2 inputs ('x', 'y')", "none for 'y'"]),
    "too many": (
        tensors("input", X4, ("y", "FP32", "4"), ("z", "FP32", "4")) + tensors("output", X4),
        Two(),
        ["input 'z' is the model's input number 2, counted from 0, but it has 2"],
    ),
    "no such index": (
        tensors("input", ("x__0", "FP32", "4"), ("y__7", "FP32", "4")) + tensors("output", X4),
        Two(),
        ["input 'y__7' is the model's input number 7"],
    ),
    "no such result": (
        tensors("input", X4, ("y", "FP32", "4")) + tensors("output", ("o__2", "FP32", "4")),
        Two(),
        ["output 'o__2' is the model's output number 2, counted from 0, but it has 2"],
    ),
    "strings for a tensor": (
        tensors("input", ("x", "STRING", "4"), ("y", "FP32", "4")) + tensors("output", X4),
        Two(),
        ["input 'x' is TYPE_STRING, but the model takes a tensor"],
    ),
    "a bad parameter": (
        tensors("input", X4, ("y", "FP32", "4"))
        + tensors("output", X4)
        + 'parameters { key: "PRECISION" value { string_value: "int8" } }',
        Two(),
        ["'PRECISION' is 'int8', expected 'fp32', 'bf16' or 'fp16'"],
    ),
}


@pytest.mark.parametrize(("config", "module", "parts"), WRONG.values(), ids=WRONG)
async def test_configurations_that_do_not_fit(tmp_path: Path, config: str, module: Any, parts: list[str]) -> None:
    reason = await _reason(tmp_path, f'backend: "pytorch"\n{config}', module)
    for part in parts:
        assert part in reason


async def test_keys_that_a_result_does_not_have(tmp_path: Path) -> None:
    config = tensors("input", ("a", "FP32", "4"), ("b", "FP32", "4")) + tensors("output", ("summ", "FP32", "4"))
    async with running(tmp_path, config, script(Dictionary())) as model:
        with pytest.raises(ModserveError, match="has no output 'summ': it has 'sum', 'difference'"):
            await model({"a": floats(4), "b": floats(4)})
