"""ONNX files that do not say how many dimensions a tensor has: the configuration says it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_repository import write

import modserve
from modserve.core.errors import ModserveError

pytest.importorskip("onnxruntime")

NODES = [helper.make_node("Neg", ["X"], ["Y"])]
CONFIG = (
    'max_batch_size: {batch} input {{ name: "X" data_type: TYPE_FP32 dims: [ {dims} ] }} '
    'output {{ name: "Y" data_type: TYPE_FP32 dims: [ {dims} ] }}'
)


def values(name: str, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


async def negated(repository: Path, array: Any) -> Any:
    settings = modserve.Settings(model_repository=[repository], exit_on_error=False)
    async with modserve.InferenceServer(settings) as server:
        return (await server.infer("m", {"X": array})).outputs["Y"].array


@pytest.mark.parametrize(
    ("batch", "dims", "shape"), [(4, "3", (2, 3)), (0, "2, 3", (2, 3)), (0, "-1, -1", (2, 5)), (4, "-1, 2", (1, 5, 2))]
)
async def test_dims_of_the_configuration(tmp_path: Path, batch: int, dims: str, shape: tuple[int, ...]) -> None:
    write(tmp_path, "m", NODES, [values("X", None)], [values("Y", None)], CONFIG.format(batch=batch, dims=dims))
    array = np.random.default_rng(0).random(shape).astype(np.float32)
    np.testing.assert_array_equal(await negated(tmp_path, array), -array)


async def test_a_scalar_has_one_element(tmp_path: Path) -> None:
    write(tmp_path, "m", NODES, [values("X", [])], [values("Y", [])], CONFIG.format(batch=0, dims="3"))
    with pytest.raises(ModserveError, match="scalar tensor 'X', should only provide 1"):
        await negated(tmp_path, np.zeros(3, np.float32))
