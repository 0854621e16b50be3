"""Log settings and the model repository calls, through both front ends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from fastapi import FastAPI
from puppet_server import MAX_JSON, PuppetLoader, server_over
from test_grpc_service import Stub

from modserve.core.configuration.log_settings import LogSettings
from modserve.core.errors import invalid
from modserve.core.version import ModelId
from modserve.frontends.http.rest.app import create_app
from modserve.observability.logging import Logs
from modserve.pb import inference as pb
from modserve.server.local import LocalServer
from modserve.settings import HttpSettings


@pytest.fixture(scope="module")
def kept_logs() -> Logs:
    """Not installed: only the settings change."""
    return Logs()


@pytest.fixture
def logs(kept_logs: Logs) -> Logs:
    """As they are at the start of a server."""
    kept_logs.change(LogSettings())
    return kept_logs


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kept_logs: Logs) -> LocalServer:
    """No test changes what it serves: making one takes a while."""
    loader = PuppetLoader(failures={ModelId("simple", 1): invalid("no good")})
    found = server_over(tmp_path_factory.mktemp("repository"), loader, kept_logs)
    asyncio.run(found.load())
    return found


@pytest.fixture(scope="module")
def app(server: LocalServer) -> FastAPI:
    return create_app(server, HttpSettings(max_json=MAX_JSON))


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as found:
        yield found


START = (
    b'{"log_file":"","log_info":true,"log_warning":true,"log_error":true,"log_verbose_level":0,"log_format":"ISO8601"}'
)


# Log settings


async def test_settings_over_http(client: httpx.AsyncClient, logs: Logs) -> None:
    answer = await client.get("/v2/logging")
    assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, "application/json", START)
    answer = await client.post("/v2/logging", content=b'{"log_info":false}')
    assert (answer.status_code, answer.content) == (200, START.replace(b'"log_info":true', b'"log_info":false'))
    assert logs.settings == LogSettings(info=False)


async def test_settings_over_grpc(server: LocalServer, logs: Logs) -> None:
    call = Stub(server)
    value = pb.LogSettingsRequest.SettingValue
    answer = await call("LogSettings", pb.LogSettingsRequest(settings={"log_info": value(bool_param=False)}))
    assert logs.settings == LogSettings(info=False)
    assert answer.settings["log_info"].WhichOneof("parameter_choice") == "bool_param"
    assert not answer.settings["log_info"].bool_param
    assert len(answer.settings) == 6
    assert await call("LogSettings", pb.LogSettingsRequest()) == answer


async def test_a_refused_change_changes_nothing(client: httpx.AsyncClient, server: LocalServer, logs: Logs) -> None:
    answer = await client.post("/v2/logging", content=b'{"log_info":false,"log_format":"x"}')
    assert (answer.status_code, answer.json()) == (400, {"error": "invalid argument for --log_format, got: x"})
    value = pb.LogSettingsRequest.SettingValue
    request = pb.LogSettingsRequest(settings={"log_info": value(bool_param=False), "log_file": value(string_param="x")})
    assert await Stub(server).failure("LogSettings", request) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "log file location can not be updated through network protocol",
    )
    assert logs.settings == LogSettings()


async def test_a_log_that_is_not_the_server_s(tmp_path: Path) -> None:
    server = server_over(tmp_path, PuppetLoader())
    text = "the server does not support dynamic logging"
    assert await Stub(server).failure("LogSettings", pb.LogSettingsRequest()) == (grpc.StatusCode.UNAVAILABLE, text)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(server, HttpSettings(max_json=MAX_JSON))), base_url="http://localhost"
    ) as client:
        for answer in (await client.get("/v2/logging"), await client.post("/v2/logging", content=b"{}")):
            assert (answer.status_code, answer.json()) == (503, {"error": text})
    assert "logging" not in server.extensions


def test_the_extension_is_listed(server: LocalServer) -> None:
    assert "logging" in server.extensions
    assert {"model_repository", "model_repository(unload_dependents)"} <= set(server.extensions)


# The repository index

READY = [{"name": "echo", "version": "1", "state": "READY"}, {"name": "simple", "version": "3", "state": "READY"}]
FAILED = {"name": "simple", "version": "1", "state": "UNAVAILABLE", "reason": "Invalid argument: no good"}


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/any/index"])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", [READY[0], FAILED, READY[1]]),
        (b'{"ready":false}', [READY[0], FAILED, READY[1]]),
        (b'{"ready":true}', READY),
    ],
    ids=["empty", "all", "ready"],
)
async def test_the_index_over_http(client: httpx.AsyncClient, path: str, body: bytes, expected: Any) -> None:
    answer = await client.post(path, content=body)
    assert (answer.status_code, answer.headers["content-type"], answer.json()) == (200, "application/json", expected)


@pytest.mark.parametrize(("ready", "versions"), [(False, ["1", "1", "3"]), (True, ["1", "3"])])
async def test_the_index_over_grpc(server: LocalServer, ready: bool, versions: list[str]) -> None:
    answer = await Stub(server)("RepositoryIndex", pb.RepositoryIndexRequest(ready=ready))
    assert [model.version for model in answer.models] == versions


# Load and unload

NO_CONTROL = (
    "explicit model load / unload is not allowed: the model control mode of this server is "
    "'none', start it with --model-control-mode=explicit"
)
TOO_LONG = b'{"parameters":{"config":"%b"}}' % (b"x" * MAX_JSON)


@pytest.mark.parametrize("call", ["load", "unload"])
async def test_no_control_over_http(client: httpx.AsyncClient, call: str) -> None:
    answer = await client.post(f"/v2/repository/models/simple/{call}")
    assert (answer.status_code, answer.json()) == (503, {"error": NO_CONTROL})


@pytest.mark.parametrize("call", ["load", "unload"])
@pytest.mark.parametrize("body", [b"", b"{"], ids=["empty", "malformed"])
async def test_no_control_by_a_repository_s_name(client: httpx.AsyncClient, call: str, body: bytes) -> None:
    answer = await client.post(f"/v2/repository/any/models/simple/{call}", content=body)
    assert (answer.status_code, answer.json()) == (501, {"error": NAMED})
    assert (await client.get("/v2/models/simple/ready")).status_code == 200


async def test_a_body_that_is_too_long(client: httpx.AsyncClient) -> None:
    for path in ("/v2/logging", "/v2/repository/index", "/v2/repository/models/simple/load"):
        answer = await client.post(path, content=TOO_LONG)
        assert answer.status_code == 400
        assert str(MAX_JSON) in answer.json()["error"]


NAMED = "'repository_name' specification is not supported"
TEXT = pb.ModelRepositoryParameter(string_param="x")


@pytest.mark.parametrize(
    ("rpc", "message", "code", "text"),
    [
        ("RepositoryIndex", pb.RepositoryIndexRequest(repository_name="a"), "UNIMPLEMENTED", NAMED),
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(repository_name="a"), "UNIMPLEMENTED", NAMED),
        ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(repository_name="a"), "UNIMPLEMENTED", NAMED),
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="simple"), "UNAVAILABLE", NO_CONTROL),
        ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="simple"), "UNAVAILABLE", NO_CONTROL),
        (
            "RepositoryModelLoad",
            pb.RepositoryModelLoadRequest(model_name="simple", parameters={"foo": TEXT}),
            "INVALID_ARGUMENT",
            "unrecognized load parameter 'foo'.",
        ),
        (
            "RepositoryModelUnload",
            pb.RepositoryModelUnloadRequest(model_name="simple", parameters={"unload_dependents": TEXT}),
            "INVALID_ARGUMENT",
            "invalid value type for 'unload_dependents' parameter, expected bool_param.",
        ),
    ],
)
async def test_what_is_refused_over_grpc(server: LocalServer, rpc: str, message: Any, code: str, text: str) -> None:
    assert await Stub(server).failure(rpc, message) == (grpc.StatusCode[code], text)


@pytest.mark.parametrize(
    ("path", "rpc", "message"),
    [
        ("index", "RepositoryIndex", pb.RepositoryIndexRequest()),
        ("models/simple/load", "RepositoryModelLoad", pb.RepositoryModelLoadRequest()),
        ("models/simple/unload", "RepositoryModelUnload", pb.RepositoryModelUnloadRequest()),
    ],
)
async def test_a_stopping_server(tmp_path: Path, path: str, rpc: str, message: Any) -> None:
    server = server_over(tmp_path, PuppetLoader())
    await server.load()
    server.stop_accepting()
    transport = httpx.ASGITransport(create_app(server, HttpSettings(max_json=MAX_JSON)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.post(f"/v2/repository/{path}")
    assert (answer.status_code, answer.json()) == (503, {"error": "Server not ready"})
    assert await Stub(server).failure(rpc, message) == (grpc.StatusCode.UNAVAILABLE, "Server not ready")
