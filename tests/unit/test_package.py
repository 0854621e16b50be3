"""The package as users import it."""

import asyncio
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import modserve
from modserve import InferenceServer, Settings

REPOSITORY = Path(__file__).parents[2] / "model_repository"


def test_public_names_are_there() -> None:
    assert sorted(modserve.__all__) == modserve.__all__
    assert not [name for name in modserve.__all__ if not hasattr(modserve, name)]
    assert set(modserve.__all__) <= set(dir(modserve))
    with pytest.raises(AttributeError, match="module 'modserve' has no attribute 'nosuch'"):
        _ = modserve.nosuch  # type: ignore[attr-defined]


def test_the_supervisor_is_small() -> None:
    """It is to go on when everything else fails: of what a server needs it imports nothing."""
    imported = {name.split(".")[0] for name in imported_with("modserve.process.supervisor")}
    assert "modserve" in imported
    assert imported.isdisjoint({"asyncio", "fastapi", "grpc", "numpy", "onnxruntime", "pydantic"})


def test_a_server_starts_without_what_few_models_need() -> None:
    """Megabytes each."""
    imported = imported_with("modserve.process.app")
    assert "modserve.process.app" in imported
    assert imported.isdisjoint({"grpc", "numpy.random", "onnxruntime", "torch", "openvino", "obstore", "redis"})


SERVING = f"""
import asyncio, sys
from modserve import InferenceServer, Settings
from modserve.process.listeners import Listeners
from modserve.observability.watchdog import Watchdog

async def serve():
    settings = Settings(model_repository={str(REPOSITORY)!r})
    async with InferenceServer(settings) as server, asyncio.TaskGroup() as tasks:
        Listeners(server, server.engine_metrics, settings, tasks, Watchdog(0))

asyncio.run(serve())
print(*sys.modules)
"""
"""A server with its ports, which do not open."""

UNUSED = (
    "fastapi",
    "http.server",
    "ml_dtypes",
    "opentelemetry",
    "starlette",
    "urllib.request",
    "modserve.backends.python.",
    "modserve.commands",
    "modserve.frontends.http.console.",
    "modserve.frontends.http.rest.v1",
    "modserve.observability.path_log",
    "modserve.observability.request_trace",
    "modserve.observability.span_export",
    "modserve.observability.span_tree",
    "modserve.protocol.http.v1_",
    "modserve.workers",
)
"""How the names of modules begin that a server needs only for features which it does not use."""


def test_a_server_runs_without_the_features_that_it_does_not_use() -> None:
    imported = printed(SERVING)
    assert "modserve.frontends.grpc.listener" in imported
    assert [name for name in imported if name.startswith(UNUSED)] == []


def imported_with(module: str) -> set[str]:
    return printed(f"import {module}, sys; print(*sys.modules)")


def printed(program: str) -> set[str]:
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_a_server_starts_on_one_event_loop_after_another() -> None:
    ones = np.ones((1, 16), np.int32)

    async def use() -> int:
        async with InferenceServer(Settings(model_repository=(REPOSITORY,))) as server:
            response = await server.infer("simple", {"INPUT0": ones, "INPUT1": ones})
            return int(response.outputs["OUTPUT0"].array.sum())

    assert [asyncio.run(use()) for _ in range(2)] == [32, 32]
