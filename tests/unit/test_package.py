"""The package as users import it."""

import asyncio
from pathlib import Path

import numpy as np

import modserve
from modserve import InferenceServer, Settings

REPOSITORY = Path(__file__).parents[2] / "model_repository"


def test_public_names_are_there() -> None:
    assert sorted(modserve.__all__) == modserve.__all__
    assert not [name for name in modserve.__all__ if not hasattr(modserve, name)]


def test_a_server_starts_on_one_event_loop_after_another() -> None:
    ones = np.ones((1, 16), np.int32)

    async def use() -> int:
        async with InferenceServer(Settings(model_repository=(REPOSITORY,))) as server:
            response = await server.infer("simple", {"INPUT0": ones, "INPUT1": ones})
            return int(response.outputs["OUTPUT0"].array.sum())

    assert [asyncio.run(use()) for _ in range(2)] == [32, 32]
