"""Every call about the readiness of a model asks its engine, if that has something to say."""

import asyncio
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from puppet_server import PuppetLoader, server_over

from modserve.core.version import ModelId
from modserve.frontends.grpc.health import HealthService
from modserve.frontends.grpc.service import InferenceService
from modserve.frontends.http.rest.app import create_app
from modserve.pb import health, inference
from modserve.server.local import LocalServer
from modserve.settings import GrpcSettings, HttpSettings

SERVING, NOT_SERVING = 1, 2
NO_CALL: Any = None


class Stage:
    """A server whose model `simple`, version 3, says `ready`."""

    ready = False

    def __init__(self, server: LocalServer, loader: PuppetLoader) -> None:
        self.server = server
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(create_app(server, HttpSettings())), base_url="http://localhost"
        )
        cast(Any, loader.loaded[ModelId("simple", 3)]).check_ready = self.check_ready

    async def check_ready(self) -> bool:
        return self.ready


@pytest.fixture
async def stage(tmp_path: Path) -> Stage:
    loader = PuppetLoader()
    server = server_over(tmp_path, loader)
    await server.load()
    return Stage(server, loader)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/simple/ready", 400),
        ("/v2/models/simple/versions/3/ready", 400),
        ("/v2/models/simple/versions/1/ready", 200),
        ("/v1/models/simple", 503),
        ("/v2/models/echo/ready", 200),
        ("/v2/health/ready", 200),
    ],
)
async def test_http(stage: Stage, path: str, status: int) -> None:
    async with stage.http as client:
        assert (await client.get(path)).status_code == status
        stage.ready = True
        assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("version", ["", "3"])
async def test_grpc(stage: Stage, version: str) -> None:
    service = InferenceService(stage.server, GrpcSettings())
    message = inference.ModelReadyRequest(name="simple", version=version)
    for ready in (False, True):
        stage.ready = ready
        assert cast(Any, await service.ModelReady(message, NO_CALL)).ready is ready


async def test_the_health_service(stage: Stage) -> None:
    service = HealthService(stage.server)
    for ready, status in ((False, NOT_SERVING), (True, SERVING)):
        stage.ready = ready
        answer: Any = await service.Check(health.HealthCheckRequest(service="simple"), NO_CALL)
        assert answer.status == status
        listed: Any = await service.List(health.HealthListRequest(), NO_CALL)
        statuses = {name: each.status for name, each in listed.statuses.items()}
        assert statuses == {"": SERVING, inference.SERVICE: SERVING, "simple": status, "echo": SERVING}


async def test_a_watch_says_the_end_also_when_the_engine_is_slow(stage: Stage) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow() -> bool:
        asked.set()
        await go.wait()
        return True

    written: list[int] = []

    class Call:
        async def write(self, data: bytes) -> None:
            written.append(health.HealthCheckResponse.FromString(data).status)

    cast(Any, stage.server.model("simple", 3)).check_ready = slow
    watch = asyncio.create_task(
        HealthService(stage.server).Watch(health.HealthCheckRequest(service="simple"), cast(Any, Call()))
    )
    await asked.wait()
    stage.server.stop_accepting()
    go.set()
    async with asyncio.timeout(30):
        await watch
    assert written == [NOT_SERVING]
