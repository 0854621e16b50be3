"""Loading and unloading by clients, and following the repository, on a real server with real models."""

import functools
import json
import os
import re
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from repositories import EXAMPLES, copy_example, write_identity
from server_process import ServerProcess, eventually, serving
from test_client_flavours import FLAVOURS, A, B, Client, opened
from tritonclient.grpc import service_pb2
from wire import SECONDS, Answer, Ask, channel, http, http_infer, stub

from modserve import cli

ERRORS = [r"failed to load model", r"cannot be loaded"]
ONNX = (EXAMPLES / "simple" / "1" / "model.onnx").read_bytes()
TENSORS = [{"name": name, "data_type": "TYPE_INT32", "dims": [16]} for name in ("INPUT0", "INPUT1")]
CONFIG = {
    "backend": "onnxruntime",
    "maxBatchSize": "4",
    "input": TENSORS,
    "output": [{**TENSORS[0], "name": "OUTPUT0"}, {**TENSORS[0], "name": "OUTPUT1"}],
}

LONG = {
    "backend": "identity",
    "max_batch_size": 1,
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
}
"""As in the file of the model of that name."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never loaded at the start, but for `simple`; `cut` can not be loaded, `mistaken` not even be read."""
    found = tmp_path_factory.mktemp("controlled")
    for name in ("simple", "other", "swapped", "cut"):
        copy_example(found, "simple", name)
    (found / "cut" / "1" / "model.onnx").write_bytes(ONNX[:100])
    copy_example(found, "simple", "mistaken", extra="max_batchsize: 1")
    copy_example(found, "simple", "renamed")
    config = found / "renamed" / "config.pbtxt"
    config.write_text(config.read_text().replace('"renamed"', '"else"'))
    write_identity(found, "long", "FP32")
    (found / "empty").mkdir()
    (found / "empty" / "config.pbtxt").write_text('backend: "identity"')
    return found


@pytest.fixture(scope="module")
def controlled(repository: Path) -> Iterator[ServerProcess]:
    options = ["--model-control-mode=explicit", "--load-model=simple"]
    with serving(repository, options=options, errors=ERRORS) as running:
        yield running


@pytest.fixture(params=FLAVOURS)
async def client(request: pytest.FixtureRequest, controlled: ServerProcess) -> AsyncIterator[Client]:
    async with opened(request.param, controlled) as found:
        yield found


async def index(client: Client) -> dict[str, dict[str, str]]:
    """By name, what there is to say besides."""
    if client.protocol == "http":
        entries = await client.call("get_model_repository_index")
    else:
        entries = (await client.call("get_model_repository_index", as_json=True)).get("models", [])
    return {entry.pop("name"): entry for entry in entries}


async def max_batch_size(client: Client, name: str) -> int:
    answer = await client.ask("get_model_config", name)
    return int(answer.get("config", answer)["max_batch_size"])


async def add(client: Client, name: str) -> list[int]:
    result = await client.call("infer", name, client.simple())
    return result.as_numpy("OUTPUT0").tolist()  # type: ignore[no-any-return]


SUM = (A + B).tolist()


async def test_load_infer_unload(client: Client, controlled: ServerProcess) -> None:
    await client.call("load_model", "other")
    assert await add(client, "other") == SUM
    assert await client.call("is_model_ready", "other")
    assert (await index(client))["other"] == {"version": "1", "state": "READY"}
    await client.call("load_model", "other")
    await client.call("unload_model", "other", unload_dependents=True)
    assert not await client.call("is_model_ready", "other")
    reasons = http(controlled.http_port, "GET", "/v2/health/ready").json.get("reasons", [])
    assert [entry for entry in reasons if entry["name"] == "other"] == []
    _, text = await client.refused("infer", "other", client.simple())
    assert text == "Request for unknown model: 'other' has no available versions"


async def test_never_loaded_models_have_a_name_only(client: Client) -> None:
    listed = await index(client)
    assert listed["simple"] == {"version": "1", "state": "READY"}
    assert listed["mistaken"] == listed["empty"] == {}


async def test_a_configuration_and_back(client: Client) -> None:
    await client.call("load_model", "other")
    before = await max_batch_size(client, "other")
    await client.call("load_model", "other", config=json.dumps({**CONFIG, "maxBatchSize": "3"}))
    assert await max_batch_size(client, "other") == 3 != before
    assert await add(client, "other") == SUM
    await client.call("load_model", "other")
    assert await max_batch_size(client, "other") == 3, "no file has changed"
    await client.call("unload_model", "other")
    await client.call("load_model", "other")
    assert await max_batch_size(client, "other") == before


async def test_files_and_back(client: Client) -> None:
    files = {"file:7/model.onnx": ONNX}
    await client.call("load_model", "other", config=json.dumps(CONFIG), files=files)
    metadata = await client.ask("get_model_metadata", "other")
    assert metadata["versions"] == ["7"]
    assert await add(client, "other") == SUM
    await client.call("load_model", "other")
    assert (await client.ask("get_model_metadata", "other"))["versions"] == ["1"]


async def test_a_model_that_is_in_no_repository(client: Client) -> None:
    name = f"sent_{client.protocol}"
    await client.call("load_model", name, config=json.dumps(CONFIG), files={"file:1/model.onnx": ONNX})
    assert await add(client, name) == SUM
    await client.call("unload_model", name)


POLL_FAILED = "failed to load '{}', failed to poll from model repository"


@pytest.mark.parametrize(
    ("name", "more", "http_status", "grpc_status", "text"),
    [
        ("nosuch", {}, "404", "NOT_FOUND", POLL_FAILED.format("nosuch")),
        ("mistaken", {}, "500", "INTERNAL", POLL_FAILED.format("mistaken") + ": 1 problem in the configuration"),
        (
            "renamed",
            {},
            "400",
            "INVALID_ARGUMENT",
            "unexpected directory name 'renamed' for model 'else', directory name",
        ),
        (
            "empty",
            {},
            "400",
            "INVALID_ARGUMENT",
            "load failed for model 'empty': at least one version must be available under the version policy of model "
            "'empty'\n",
        ),
        (
            "cut",
            {},
            "400",
            "INVALID_ARGUMENT",
            "load failed for model 'cut': version 1 is at UNAVAILABLE state: Invalid argument: failed to load model ",
        ),
        (
            "other",
            {"files": {"file:1/model.onnx": ONNX}},
            "400",
            "INVALID_ARGUMENT",
            "Load parameter 'config' must be specified for model file override",
        ),
        (
            "other",
            {"config": '{"foo": 1}'},
            "400",
            "INVALID_ARGUMENT",
            POLL_FAILED.format("other") + ": Invalid config override: Message type",
        ),
        (
            "other",
            {"config": json.dumps(CONFIG), "files": {"file:../../x": b"x"}},
            "400",
            "INVALID_ARGUMENT",
            "invalid path '../../x' of a file override",
        ),
    ],
)
async def test_a_refused_load(
    client: Client, name: str, more: dict[str, Any], http_status: str, grpc_status: str, text: str
) -> None:
    status, message = await client.refused("load_model", name, **more)
    assert status == (http_status if client.protocol == "http" else f"StatusCode.{grpc_status}")
    assert text in message


def test_names_that_are_paths(controlled: ServerProcess) -> None:
    text = "invalid model name '../x', model name must not contain path traversal characters"
    answer = http(controlled.http_port, "POST", "/v2/repository/models/..%2Fx/load")
    assert (answer.status, answer.json) == (400, {"error": text})
    with channel(controlled.grpc_port) as opened_channel, pytest.raises(grpc.RpcError) as raised:
        stub(opened_channel).RepositoryModelLoad(
            service_pb2.RepositoryModelLoadRequest(model_name="../x"), timeout=SECONDS
        )
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, text)


async def test_the_extensions_are_listed(client: Client) -> None:
    extensions = (await client.ask("get_server_metadata"))["extensions"]
    assert {"model_repository", "model_repository(unload_dependents)"} <= set(extensions)


def test_a_swap_under_traffic(controlled: ServerProcess, repository: Path) -> None:
    """Not one request fails while the model is loaded again and again."""
    port = controlled.http_port
    load = "/v2/repository/models/swapped/load"
    assert http(port, "POST", load).status == 200
    statuses: list[int] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            statuses.append(http_infer(port, Ask(model="swapped")).status)

    def more_than(count: int) -> bool:
        return len(statuses) > count

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    weights = repository / "swapped" / "1" / "model.onnx"
    loaded: list[int] = []
    for _ in range(8):
        weights.write_bytes(ONNX)
        answered = len(statuses)
        loaded.append(http(port, "POST", load).status)
        eventually(functools.partial(more_than, answered))
    ended.set()
    for asker in askers:
        asker.join()
    assert loaded == [200] * 8
    assert set(statuses) == {200}
    # All that was logged before is read when this is.
    read = len(controlled.log)
    assert http(port, "POST", "/v2/repository/models/swapped/unload").status == 200
    eventually(lambda: "model 'swapped', version 1: unloaded" in controlled.log[read:])
    assert controlled.log.count("model 'swapped', version 1: ready") == 9


def test_a_broken_reload_keeps_the_old(controlled: ServerProcess, repository: Path) -> None:
    port = controlled.http_port
    load = "/v2/repository/models/swapped/load"
    assert http(port, "POST", load).status == 200
    config = repository / "swapped" / "config.pbtxt"
    good = config.read_text()
    config.write_text(good + "\nnosuch: 1")
    assert http(port, "POST", load).status == 500
    assert http_infer(port, Ask(model="swapped")).status == 200
    entries = http(port, "POST", "/v2/repository/index", b"{}").json
    (swapped,) = [entry for entry in entries if entry["name"] == "swapped"]
    assert swapped["state"] == "READY"
    assert "nosuch" in swapped["reason"]
    config.write_text(good)
    assert http(port, "POST", load).status == 200


def test_unloading_ends_what_a_broken_reload_began(controlled: ServerProcess) -> None:
    """The model does not keep the server from being ready; others of this one do."""
    port = controlled.http_port
    model = "/v2/repository/models/swapped"
    assert http(port, "POST", f"{model}/load").status == 200
    body = json.dumps({"parameters": {"config": "{"}}).encode()
    assert http(port, "POST", f"{model}/load", body).status == 400
    assert http_infer(port, Ask(model="swapped")).status == 200
    for _ in range(2):
        assert b"swapped" not in http(port, "GET", "/v2/health/ready").body
        assert http(port, "POST", f"{model}/unload").status == 200

    def reasons() -> set[str]:
        entries = http(port, "POST", "/v2/repository/index", b"{}").json
        return {entry.get("reason", "") for entry in entries if entry["name"] == "swapped"}

    eventually(lambda: reasons() == {"unloaded"})


@pytest.mark.parametrize("call", ["infer", "infer_stream", "generate"])
def test_a_long_request_is_read_while_its_model_is_replaced(controlled: ServerProcess, call: str) -> None:
    port = controlled.http_port
    load = "/v2/repository/models/long/load"
    assert http(port, "POST", load).status == 200
    count = 400_000
    data = ",".join(["0.123456789"] * count)
    if call == "generate":
        body = f'{{"INPUT0":[{data}]}}'
    else:
        body = f'{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[1,{count}],"data":[{data}]}}]}}'
    answers: list[Answer] = []

    loaded: list[int] = []
    ended = threading.Event()

    def ask() -> None:
        """Three times at least, and until the model has been replaced more often than that."""
        while not ended.is_set() or len(answers) < 3:
            answers.append(http(port, "POST", f"/v2/models/long/{call}", body.encode()))

    asker = threading.Thread(target=ask)
    asker.start()
    while asker.is_alive():
        config = LONG | {"parameters": {"turn": {"string_value": f"{call} {len(loaded)}"}}}
        given = {"parameters": {"config": json.dumps(config)}}
        loaded.append(http(port, "POST", load, json.dumps(given).encode()).status)
        if len(loaded) > 3:
            ended.set()
    asker.join()
    assert set(loaded) == {200}
    assert len(loaded) > 3
    assert len(answers) >= 3
    assert [(each.status, each.body[:100]) for each in answers if each.status != 200] == []


# Polling


def test_changes_in_the_repository_are_followed(tmp_path: Path) -> None:
    """Whatever is done to it is done at once: a look may come at any time."""
    outside, repository = tmp_path / "outside", tmp_path / "repository"
    for place in (outside, repository):
        place.mkdir()
    copy_example(repository, "simple", "simple")
    copy_example(repository, "simple", "gone")
    write_identity(outside, "added")
    shutil.copytree(repository / "simple" / "1", outside / "2")
    config = repository / "simple" / "config.pbtxt"
    (outside / "config.pbtxt").write_text(config.read_text() + "\nnosuch: 1")
    options = ["--model-control-mode=poll", "--repository-poll-secs=1"]
    with serving(repository, options=options, errors=[r"cannot be loaded"]) as server:
        port = server.http_port

        def versions() -> list[str]:
            return list(http(port, "GET", "/v2/models/simple").json["versions"])

        assert versions() == ["1"]
        refused = http(port, "POST", "/v2/repository/models/simple/load")
        assert (refused.status, refused.json["error"]) == (
            503,
            "explicit model load / unload is not allowed if polling is enabled: the model control mode of this server "
            "is 'poll', start it with --model-control-mode=explicit",
        )
        (repository / "gone").rename(outside / "gone")
        (outside / "added").rename(repository / "added")
        (outside / "2").rename(repository / "simple" / "2")
        eventually(lambda: versions() == ["2"])
        eventually(lambda: http(port, "GET", "/v2/models/added/ready").status == 200)
        eventually(lambda: http(port, "GET", "/v2/models/gone/ready").status == 400)
        os.replace(outside / "config.pbtxt", config)
        server.wait_for(r"model 'simple' cannot be loaded")
        assert http_infer(port, Ask()).status == 200
        assert http(port, "GET", "/v2/health/ready").status == 200
        assert np.array(versions()).tolist() == ["2"]


# Starting


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--load-model=simple"], "Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
        (
            ["--model-control-mode=explicit", "--load-model=*", "--load-model=simple"],
            r"Wildcard model name '\*' must be the ONLY startup model if specified at all.",
        ),
    ],
)
def test_contradicting_options(options: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", f"--model-repository={EXAMPLES}", *options]) == 2
    assert re.search(text, capsys.readouterr().err)
