"""The call that shows the stacks of the server's threads: who may make it, and what it responds."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from puppet_server import PuppetLoader, server_over

from modserve.frontends.http.rest.app import create_app
from modserve.protocol.restricted import http_restrictions
from modserve.settings import HttpSettings


async def get(folder: Path, address: str, settings: HttpSettings, **headers: str) -> httpx.Response:
    app = create_app(server_over(folder, PuppetLoader()), settings)
    transport = httpx.ASGITransport(app, client=(address, 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.get("/v2/stacks", headers=headers)


async def test_it_shows_each_thread_by_name_and_where_it_is(tmp_path: Path) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="a-thread")
    thread.start()
    response = await get(tmp_path, "127.0.0.1", HttpSettings())
    end.set()
    thread.join()
    assert response.status_code == 200
    stacks = response.json()["stacks"]
    assert "threading.py" in stacks[f"a-thread ({thread.ident})"][-1]
    assert any(name.startswith("MainThread (") for name in stacks)


async def test_it_responds_while_all_threads_for_reads_hang(tmp_path: Path) -> None:
    end = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        asyncio.get_running_loop().set_default_executor(executor)
        executor.submit(end.wait)
        try:
            async with asyncio.timeout(20):
                assert (await get(tmp_path, "127.0.0.1", HttpSettings())).status_code == 200
        finally:
            end.set()


async def test_strangers_may_not(tmp_path: Path) -> None:
    response = await get(tmp_path, "10.0.0.7", HttpSettings())
    assert response.status_code == 403
    assert response.json()["error"] == (
        "without keys, only a client on the server's own machine may see its stacks: GET /v2/stacks there, or see "
        "--auth-file and --http-restricted-api"
    )


@pytest.mark.parametrize(("headers", "status"), [({}, 403), ({"secret": "s"}, 200)])
async def test_the_secret_of_the_group_opens_it(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    settings = HttpSettings(restrictions=http_restrictions({"logging": ("secret", "s")}))
    assert (await get(tmp_path, "10.0.0.7", settings, **headers)).status_code == status
