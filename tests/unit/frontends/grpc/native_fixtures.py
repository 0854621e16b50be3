"""Fixtures of calls on connections of our own. mypy knows one module `conftest`, and that is another."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from native_client import Client, Port
from puppet_server import MANY, SIMPLE, PuppetLoader, server_over

from modserve.core.memory import MemoryBudget
from modserve.core.model_config import ModelConfig


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Port]:
    models: dict[str, ModelConfig] = {"simple": SIMPLE, "many": MANY}
    loader = PuppetLoader(models=models)
    server = server_over(tmp_path, loader, memory=MemoryBudget(1_000_000))
    await server.load()
    made = Port(server, loader)
    yield made
    assert made.held == 0
    assert len(made.site.deadlines) == 0
    made.site.deadlines.close()


@pytest.fixture
def client(port: Port) -> Client:
    return port.client()
