"""A model that is replaced or unloaded while a request for it is being read takes the request all the same."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from puppet_server import JSON_BODY, Client, PuppetLoader, PuppetServable, request

from modserve.core.errors import unavailable
from modserve.core.version import ModelId
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.wire.context import HttpContext
from modserve.repository.manager import ModelManager
from modserve.repository.scanning import repositories_at
from modserve.repository.table import ModelTable
from modserve.server.local import LocalServer
from modserve.settings import HttpSettings, LoopLimits
from modserve.testing import write_model
from work_threads import HeldThreads

GENERATE = b'{"INPUT0": [1, 2], "INPUT1": [10, 10]}'
INSTANCES = b'{"instances": [' + b",".join([b'{"INPUT0": [1, 2], "INPUT1": [10, 10]}'] * 24) + b"]}"


class Bench:
    """A model that refuses requests once it is drained, as all do."""

    def __init__(self, manager: ModelManager, site: HttpContext, servable: PuppetServable) -> None:
        self.manager = manager
        self.client = Client(site)
        self.servable = servable
        self.drained = asyncio.Event()
        vars(servable).update(drain=self._drain)

    async def _drain(self) -> None:
        vars(self.servable).update(submit=self._refuse)
        self.drained.set()

    def _refuse(self, *_: object) -> None:
        raise unavailable("Server is stopping")

    async def taken(self) -> None:
        """Return when the model has a request."""
        for _ in range(100):
            if self.servable.submitted:
                return
            await asyncio.sleep(0)
        raise AssertionError("no request came to the model")

    async def unload(self) -> None:
        """Also give it all the turns that it needs to drain, if it would."""
        await self.manager.unload("simple", dependents=False)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not self.drained.is_set(), "a request is still being read"

    async def answered(self) -> int:
        """The status of the one answer. After it the model drains."""
        (answer,) = await self.client.receive()
        async with asyncio.timeout(30):
            await self.drained.wait()
        return answer.status


@asynccontextmanager
async def benched(repository: Path, **limits: int) -> AsyncIterator[Bench]:
    """Reads everything on a thread, unless `limits` differ."""
    options = HttpSettings(max_json=1 << 20, limits=LoopLimits(**(limits or {"json": 0})))
    loader = PuppetLoader()
    for name in loader.models:
        write_model(repository, name)
    manager = ModelManager(ModelTable(), loader, 8)
    server = LocalServer(manager, repositories_at([repository]), name="modserve")
    await server.load()
    async with asyncio.TaskGroup() as tasks:
        site = HttpContext(server, create_app(server, options), tasks, asyncio.get_running_loop(), options)
        yield Bench(manager, site, loader.loaded[ModelId("simple", 1)])
        for connection in list(site.connections):
            connection.abort()


CALLS = {
    "infer": ("/v2/models/simple/infer", JSON_BODY),
    "infer_stream": ("/v2/models/simple/infer_stream", JSON_BODY),
    "generate": ("/v2/models/simple/generate", GENERATE),
    "generate_stream": ("/v2/models/simple/versions/1/generate_stream", GENERATE),
    "predict": ("/v1/models/simple:predict", INSTANCES),
}


@pytest.mark.parametrize("call", CALLS)
async def test_unloaded_while_a_body_is_read(tmp_path: Path, call: str) -> None:
    target, body = CALLS[call]
    async with benched(tmp_path) as on:
        held = HeldThreads()
        on.client.send(request(target=target, body=body))
        await held.begun.wait()
        await on.unload()
        held.go.set()
        assert await on.answered() == 200


@pytest.mark.parametrize("call", CALLS)
async def test_a_body_that_is_wrong_keeps_nothing(tmp_path: Path, call: str) -> None:
    async with benched(tmp_path) as on:
        on.client.send(request(target=CALLS[call][0], body=b"{"))
        (answer,) = await on.client.receive()
        assert answer.status == 400
        await on.manager.unload("simple", dependents=False)
        async with asyncio.timeout(30):
            await on.drained.wait()


async def test_a_client_that_leaves_meanwhile_keeps_nothing(tmp_path: Path) -> None:
    async with benched(tmp_path) as on:
        held = HeldThreads()
        on.client.send(request(target="/v2/models/simple/infer", body=JSON_BODY))
        await held.begun.wait()
        on.client.transport.lose()
        await on.unload()
        held.go.set()
        async with asyncio.timeout(30):
            await on.drained.wait()
        assert not on.servable.submitted


async def test_unloaded_between_the_parts_of_a_prediction(tmp_path: Path) -> None:
    async with benched(tmp_path, parts=1) as on:
        on.servable.automatic = False
        on.client.send(request(target="/v1/models/simple:predict", body=INSTANCES))
        await on.taken()
        await on.unload()
        on.servable.automatic = True
        on.servable.answer_all()
        assert await on.answered() == 200
        assert len(on.servable.submitted) == 3
