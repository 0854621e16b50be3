"""Repository index, model control and log settings as `tritonclient` calls them; the settings act on the real log."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from repositories import EXAMPLES
from server_here import serving_here
from server_process import Server
from test_client_flavours import FLAVOURS, Client, opened

START = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "ISO8601",
}
NO_CONTROL = (
    "explicit model load / unload is not allowed: the model control mode of this server is "
    "'none', start it with --model-control-mode=explicit"
)


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Not shared with other modules: log settings are the server's. One of its models is broken."""
    repository = tmp_path_factory.mktemp("repository")
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "config.pbtxt").write_text('backend: "nosuch"\n', encoding="utf-8")
    with serving_here(EXAMPLES, repository, errors=["broken"]) as running:
        yield running


@pytest.fixture(params=FLAVOURS)
async def client(request: pytest.FixtureRequest, own_server: Server) -> AsyncIterator[Client]:
    async with opened(request.param, own_server) as found:
        yield found


def plain(answer: Any) -> dict[str, Any]:
    """Settings by name, whichever the protocol."""
    if "settings" not in answer:
        return dict(answer)
    return {name: next(iter(value.values())) for name, value in answer["settings"].items()}


async def ask(client: Client, method: str, *arguments: Any, **named: Any) -> Any:
    return await client.call(method, *arguments, **named, **({} if client.protocol == "http" else {"as_json": True}))


async def test_repository_index(client: Client) -> None:
    answer = await ask(client, "get_model_repository_index")
    entries = answer if client.protocol == "http" else answer["models"]
    ready = [(entry["name"], entry["version"]) for entry in entries if entry.get("state") == "READY"]
    assert {("digits", "1"), ("digits", "2"), ("simple", "1")} <= set(ready)
    (broken,) = [entry for entry in entries if entry["name"] == "broken"]
    assert broken["state"] == "UNAVAILABLE"
    assert "nosuch" in broken["reason"]


@pytest.mark.parametrize("method", ["load_model", "unload_model"])
async def test_models_are_not_to_be_controlled(client: Client, method: str) -> None:
    code = "503" if client.protocol == "http" else "StatusCode.UNAVAILABLE"
    assert await client.refused(method, "simple") == (code, NO_CONTROL)


async def test_load_with_overrides_is_understood(client: Client) -> None:
    code = "503" if client.protocol == "http" else "StatusCode.UNAVAILABLE"
    given = {"config": "{}", "files": {"file:1/model.onnx": b"\0\1"}}
    assert await client.refused("load_model", "simple", **given) == (code, NO_CONTROL)


async def test_log_settings_change_and_come_back(client: Client) -> None:
    assert plain(await ask(client, "get_log_settings")) == START
    changed = {**START, "log_info": False, "log_verbose_level": 2, "log_format": "default"}
    given = {name: value for name, value in changed.items() if START[name] != value}
    assert plain(await ask(client, "update_log_settings", given)) == changed
    assert plain(await ask(client, "get_log_settings")) == changed
    back = {name: START[name] for name in given}
    assert plain(await ask(client, "update_log_settings", back)) == START


async def test_refused_log_settings(client: Client) -> None:
    http = client.protocol == "http"
    assert await client.refused("update_log_settings", {"log_file": "x"}) == (
        "501" if http else "StatusCode.UNIMPLEMENTED",
        "log file location can not be updated through network protocol",
    )
    assert await client.refused("update_log_settings", {"log_format": "x"}) == (
        ("400", "invalid argument for --log_format, got: x")
        if http
        else ("StatusCode.INVALID_ARGUMENT", "invalid argument for log_format, got: x")
    )


async def test_the_extension_is_listed(client: Client) -> None:
    metadata = await client.ask("get_server_metadata")
    assert "logging" in metadata["extensions"]


@pytest.mark.parametrize("flavour", ["http", "grpc"])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"log_format": "default"}, r'^I\d{4} [\d:.]+ \d+ drain\.py:\d+\] "stopping: no new requests'),
        ({"log_info": False}, None),
    ],
    ids=["form", "information"],
)
async def test_settings_act_at_once(flavour: str, settings: dict[str, object], said: str | None) -> None:
    """What a stopping server says is seen in the form that was set; with the information off it is not said."""
    with serving_here(EXAMPLES) as running:
        async with opened(flavour, running) as client:
            await client.call("update_log_settings", settings)
    if said is None:
        assert "stopping:" not in running.log
    else:
        running.wait_for(said)


async def test_the_format_at_the_start() -> None:
    with serving_here(EXAMPLES, options=["--log-format=default"]) as running:
        running.wait_for(r'^I\d{4} [\d:.]+ \d+ manager\.py:\d+\] "model \'simple\', version 1: ')
        async with opened("http", running) as client:
            assert (await client.call("get_log_settings"))["log_format"] == "default"
