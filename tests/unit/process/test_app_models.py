"""What of the settings becomes the repositories of a server, and what it loads at the start."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve import InferenceServer, ModserveError, Settings, model
from modserve.process.model_setup import models_to_load, repositories

EXPLICIT = {"model_control_mode": "explicit"}


@model(inputs={"x": ("FP32", [1])}, outputs={"y": ("FP32", [1])}, isolation="thread")
def plus(x: Any) -> Any:
    return x + 1


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({}, ()),
        (EXPLICIT, ("plus",)),
        ({**EXPLICIT, "load_model": ["simple"]}, ("simple", "plus")),
        ({**EXPLICIT, "load_model": ["*"]}, ("*",)),
    ],
    ids=["mode none", "explicit", "with others", "all"],
)
def test_a_decorated_object_counts_as_named_by_load_model(more: dict[str, Any], names: tuple[str, ...]) -> None:
    assert models_to_load(Settings(python_model=plus, **more)) == names


def test_decorated_objects_are_a_repository_beside_the_others(tmp_path: Path) -> None:
    def places(**more: Any) -> list[str]:
        return list(map(str, repositories(Settings(**more))))

    assert places(model_repository=tmp_path) == [str(tmp_path)]
    assert places(model_repository=tmp_path, python_model=plus) == [str(tmp_path), "the decorated functions"]


async def test_a_decorated_object_in_a_server_without_a_repository() -> None:

    async with InferenceServer(Settings(python_model={"one": plus, "two": plus})) as server:
        for name in ("one", "two"):
            response = await server.infer(name, {"x": np.array([1], np.float32)})
            assert response.outputs["y"].array.tolist() == [2]


def test_a_function_that_no_process_can_import_is_refused_at_once() -> None:
    @model
    def local(x: float) -> float:
        return x

    with pytest.raises(ModserveError, match="or isolation='thread'"):
        InferenceServer(Settings(python_model=local))
