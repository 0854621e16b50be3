"""Small PyTorch models, made on the spot, and servers that have loaded them."""

import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import modserve
from modserve.core.tensors.tensor import Array

Write = Callable[[Path], object]
"""Writes what a version directory has."""


def tensors(block: str, *rows: tuple[str, str, str]) -> str:
    """``input`` or ``output`` of a configuration: name, data type without ``TYPE_``, and dims."""
    inner = ", ".join(f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] }}' for name, kind, dims in rows)
    return f"{block} [ {inner} ]\n"


def parameters(**values: str) -> str:
    return "".join(
        f"parameters {{ key: \"{key}\" value {{ string_value: '{value}' }} }}\n" for key, value in values.items()
    )


def script(module: Any) -> Write:
    """``model.pt`` of a module, by ``torch.jit.script``."""

    def write(directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.script(module.eval()).save(str(directory / "model.pt"))

    return write


def export(module: Any, *arguments: Any, dynamic: Any = None, **keywords: Any) -> Write:
    """``model.pt2`` of a module, by ``torch.export``."""

    def write(directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module.eval(), arguments, keywords, dynamic_shapes=dynamic)
            torch.export.save(program, str(directory / "model.pt2"))

    return write


def python_class(source: str, weights: Mapping[str, Any] | None = None) -> Write:
    """``model.py``, and ``model.pt`` with weights."""

    def write(directory: Path) -> None:
        (directory / "model.py").write_text(source)
        if weights is not None:
            torch.save(dict(weights), directory / "model.pt")

    return write


def put(repository: Path, name: str, config: str | None, write: Write) -> Path:
    """A model; its version directory."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    write(directory)
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)
    return directory


@asynccontextmanager
async def served(repository: Path, **settings: Any) -> AsyncIterator[modserve.InferenceServer]:
    chosen = modserve.Settings(model_repository=[repository], exit_on_error=False, **settings)
    async with modserve.InferenceServer(chosen) as server:
        yield server


class Running:
    """A model that is served under the name ``m``."""

    def __init__(self, server: modserve.InferenceServer) -> None:
        self.server = server

    async def __call__(self, inputs: Mapping[str, Array], **keywords: Any) -> dict[str, Array]:
        response = await self.server.infer("m", inputs, **keywords)
        return {name: tensor.array for name, tensor in response.outputs.items()}

    @property
    def reason(self) -> str:
        """Why it does not serve; empty if it does."""
        return next((entry.reason for entry in self.server.index() if entry.name == "m"), "it is not there")


@asynccontextmanager
async def running(repository: Path, config: str | None, write: Write, **settings: Any) -> AsyncIterator[Running]:
    put(repository, "m", config, write)
    async with served(repository, **settings) as server:
        yield Running(server)


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
