"""Models on demand in a whole server without sockets: what the calls about models say of them, and how they begin."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from modserve import InferenceServer, Settings
from modserve.backends.api import ModelSource
from modserve.backends.identity import IdentityBackend, IdentityModel
from modserve.core.configuration.model_config import DescribedTensor, ModelDescription
from modserve.core.errors import ModserveError, OverloadedError, invalid
from modserve.core.requests.request import InferenceRequest
from modserve.core.residency import MemoryReport, residency
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array, Tensor
from modserve.frontends.http.rest.app import create_app
from modserve.models.residency.on_demand import OnDemandModel
from modserve.observability import prometheus
from modserve.observability.families import render
from modserve.protocol.control import memory, statistics
from modserve.routing.router import Routed
from modserve.settings import HttpSettings
from modserve.testing import write_model

TENSORS = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
CONFIG = f'backend: "described"{TENSORS}'
ENSEMBLE = f"""
platform: "ensemble"
{TENSORS}
ensemble_scheduling {{ step {{
  model_name: "first" model_version: -1
  input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "OUT" }}
}} }}
"""
ONES: dict[str, Array] = {"IN": np.ones(2, np.float32)}


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "residency.{key}" value {{ string_value: "{value}" }} }}\n'


class DescribedBackend(IdentityBackend):
    """The identity backend, which knows the tensors of its models, and counts how often it opens one."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.failure: ModserveError | None = None

    def open(self, source: ModelSource) -> IdentityModel:
        if self.failure is not None:
            raise self.failure
        self.opened.append(source.config.name)
        return DescribedModel()


class DescribedModel(IdentityModel):
    def describe(self) -> ModelDescription:
        inputs, outputs = (DescribedTensor(name, dtypes.FP32, (2,)) for name in ("IN", "OUT"))
        return ModelDescription((inputs,), (outputs,))


@asynccontextmanager
async def served(
    directory: Path, backend: DescribedBackend, models: dict[str, str], **settings: Any
) -> AsyncIterator[InferenceServer]:
    for name, text in models.items():
        if not (directory / name).exists():
            write_model(directory, name, text)
    engines: Any = {"described": backend}
    async with InferenceServer(Settings(model_repository=directory, **settings), backends=engines) as server:
        yield server


async def test_models_are_looked_at_and_loaded_with_their_first_request(tmp_path: Path) -> None:
    backend = DescribedBackend()
    async with served(tmp_path, backend, {"first": CONFIG, "second": CONFIG}, load_lazily="true") as server:
        assert (backend.opened, server.ready, server.unready_reasons()) == ([], True, [])
        assert [entry.reason for entry in server.index()] == ["not resident", "not resident"]
        responses = await asyncio.gather(*(server.infer("first", ONES) for _ in range(5)))
        assert all(each.outputs["OUT"].array.tolist() == [1, 1] for each in responses)
        assert backend.opened == ["first"]
        first = server.index()[0].reason
        assert first.startswith("resident")
        assert server.model("first").statistics.success.count == 5


async def test_nothing_of_it_is_there_without_an_option(tmp_path: Path) -> None:
    backend = DescribedBackend()
    async with served(tmp_path, backend, {"first": CONFIG}) as server:
        assert not isinstance(server.model("first"), OnDemandModel)
        assert (server.index()[0].reason, residency(server.model("first"))) == ("", None)
        (usage,) = statistics.message(server.models()).model_stats[0].memory_usage
        assert usage.byte_size == server.model("first").statistics.memory >= 0  # which was measured once
        page = render(prometheus.collectors(server.ready_models)).decode()
        assert "modserve_model_resident{" not in page


async def test_parameters_of_models_win_over_options(tmp_path: Path) -> None:
    backend = DescribedBackend()
    models = {
        "eager": CONFIG + parameter("load", "eager"),
        "lazy": CONFIG + parameter("load", "lazy"),
        "pinned": CONFIG + parameter("pin", "true") + parameter("idle_unload_secs", "1"),
        "plain": CONFIG,
    }
    async with served(tmp_path, backend, models, load_lazily="false") as server:
        assert sorted(backend.opened) == ["eager", "pinned", "plain"]
        kinds = {name: isinstance(server.model(name), OnDemandModel) for name in models}
        assert kinds == {"eager": False, "lazy": True, "pinned": True, "plain": False}
        pinned = server.model("pinned")
        assert isinstance(pinned, OnDemandModel)
        assert (pinned.pinned, pinned.residency.text.endswith(", pinned")) == (True, True)
    async with served(tmp_path, (backend := DescribedBackend()), models, load_lazily="true") as server:
        assert backend.opened == ["eager"]


async def test_what_only_the_engine_knows_is_asked_of_it_once(tmp_path: Path) -> None:
    backend = DescribedBackend()
    async with served(tmp_path, backend, {"first": 'backend: "described"'}, load_lazily="true") as server:
        app = create_app(server, HttpSettings())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            assert (await client.get("/v2/models/first/ready")).status_code == 200
            assert backend.opened == []
            metadata = (await client.get("/v2/models/first")).json()
            assert metadata["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [2]}]
            config = (await client.get("/v2/models/first/config")).json()
            assert config["input"][0]["dims"] == [2]
            assert (await client.get("/v2/models/first/engine")).json()["backend"] == "described"
            assert (await client.get("/v2/memory")).json()["models"][0]["state"] == "resident"
            model = server.model("first")
            assert isinstance(model, OnDemandModel)
            await asyncio.wait((model.leave("a test"),))
            assert (await client.get("/v2/models/first")).json() == metadata
            assert (await client.get("/v2/models/first/engine")).json()["instances"]["count"] == 1
            assert backend.opened == ["first"]
            answer = await client.post("/v1/models/first:predict", json={"inputs": [1, 2]})
            assert (answer.status_code, answer.json()) == (200, {"outputs": [1, 2]})
            assert backend.opened == ["first", "first"]


async def test_ensembles_are_checked_against_models_that_are_not_in_memory(tmp_path: Path) -> None:
    backend = DescribedBackend()
    models = {"first": CONFIG, "chain": ENSEMBLE}
    async with served(tmp_path, backend, models, load_lazily="true") as server:
        assert backend.opened == []
        assert (await server.infer("chain", ONES)).outputs["OUT"].array.tolist() == [1, 1]
        assert backend.opened == ["first"]
        assert residency(server.model("chain")) is None
    models = {"first": 'backend: "described"', "chain": ENSEMBLE}
    async with served(tmp_path / "partly", (backend := DescribedBackend()), models, load_lazily="true") as server:
        assert (backend.opened, server.ready) == (["first"], True)


async def test_the_figures_of_models_are_shown(tmp_path: Path) -> None:
    backend = DescribedBackend()
    async with served(tmp_path, backend, {"first": CONFIG}, model_memory_limit="1GB") as server:
        report = server.model_memory()
        assert (report.limit, report.held) == (10**9, 0)
        await server.infer("first", ONES)
        model = server.model("first")
        assert isinstance(model, OnDemandModel)
        model.size = model.held = 12_345
        message = statistics.message(server.models()).model_stats[0]
        assert [(each.type, each.id, each.byte_size) for each in message.memory_usage] == [("CPU", 0, 12_345)]
        page = render(prometheus.collectors(server.ready_models)).decode()
        labels = 'model="first",version="1"'
        assert f"modserve_model_resident_bytes{{{labels}}} 12345.0" in page
        assert f"modserve_model_loads_total{{{labels}}} 1.0" in page
        assert f"modserve_model_evictions_total{{{labels}}} 0.0" in page
        said: Any = memory.json(server.model_memory(), server.models())
        assert (said["limit"], said["held"], said["models"][0]["size"]) == (10**9, 12_345, 12_345)
        await asyncio.wait((model.leave("a test"),))
        assert statistics.message(server.models()).model_stats[0].memory_usage[0].byte_size == 0
        assert server.model_memory() == MemoryReport(10**9, 0)
        assert server.index()[0].reason == "not resident, 0.0 MB"


async def test_an_eager_load_that_fails_is_a_failed_load(tmp_path: Path) -> None:
    backend = DescribedBackend()
    backend.failure = invalid("no licence")
    models = {"first": CONFIG + parameter("load", "eager"), "second": CONFIG}
    async with served(tmp_path, backend, models, model_memory_limit="1GB") as server:
        states = {entry.name: (entry.state.value, "no licence" in entry.reason) for entry in server.index()}
        assert states == {"first": ("UNAVAILABLE", True), "second": ("READY", False)}
        with pytest.raises(OverloadedError, match="no licence"):
            await server.infer("second", ONES)
        assert [(entry.name, "no licence" in entry.reason) for entry in server.unready_reasons()][1:] == [
            ("second", True)
        ]
        assert not server.model_ready("second", None)


async def test_files_that_are_larger_than_the_limit_are_not_even_tried(tmp_path: Path) -> None:
    backend = DescribedBackend()
    weights = write_model(tmp_path, "first", CONFIG) / "1" / "weights"
    weights.write_bytes(bytes(2000))
    async with served(tmp_path, backend, {"first": CONFIG}, model_memory_limit=1000) as server:
        assert "(its files alone), more than --model-memory-limit allows" in server.index()[0].reason
        assert backend.opened == []


async def test_a_new_load_is_tried_before_it_takes_the_place_of_one_in_memory(tmp_path: Path) -> None:
    backend = DescribedBackend()
    models = {"first": CONFIG}
    options: Any = {"model_control_mode": "explicit", "load_model": ("first",), "load_lazily": "true"}
    async with served(tmp_path, backend, models, **options) as server:
        await server.infer("first", ONES)
        backend.failure = invalid("no licence")
        with pytest.raises(ModserveError, match="no licence"):
            await server.load_model(
                "first", '{"backend": "described", "max_batch_size": 0, "version_policy": {"all": {}}}'
            )
        assert (await server.infer("first", ONES)).outputs["OUT"].array.tolist() == [1, 1]
        backend.failure = None
        await server.load_model("first", '{"backend": "described", "parameters": {"a": {"string_value": "b"}}}')
        assert backend.opened == ["first", "first"]
        report = residency(server.model("first"))
        assert report is not None
        assert report.resident


async def test_files_that_have_changed_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = DescribedBackend()
    weights = write_model(tmp_path, "first", CONFIG) / "1" / "weights"
    weights.write_bytes(b"old")
    async with served(tmp_path, backend, {"first": CONFIG}, load_lazily="true") as server:
        weights.write_bytes(b"newer")
        await server.infer("first", ONES)
    assert "have changed since the version was loaded" in caplog.text


async def test_a_model_with_routes_says_what_its_latest_version_says(tmp_path: Path) -> None:
    backend = DescribedBackend()
    split = '{"labels": {"a": 1, "b": 2}, "split": {"a": 50, "b": 50}}'
    weights = f"parameters {{ key: \"routing\" value {{ string_value: '{split}' }} }}"
    write_model(tmp_path, "first", f'backend: "described" version_policy: {{ all: {{}} }} {weights}', ("1", "2"))
    async with served(tmp_path, backend, {"first": ""}, load_lazily="true") as server:
        assert isinstance(server.model("first"), Routed)
        app = create_app(server, HttpSettings())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            config = (await client.get("/v2/models/first/config")).json()
            assert [each["name"] for each in config["input"]] == ["IN"]
            answer = await client.post("/v1/models/first:predict", json={"inputs": [1, 2]})
            assert (answer.status_code, answer.json()) == (200, {"outputs": [1, 2]})
        assert sorted(backend.opened) in (["first"], ["first", "first"])


class CallingBackend(DescribedBackend):
    """A model of it with the parameter `needs` calls that one as it is opened, or has it loaded."""

    def open(self, source: ModelSource) -> IdentityModel:
        if needed := source.config.parameters.get("needs"):
            if source.config.parameters["by"] == "call":
                source.models.infer(InferenceRequest(needed, {"IN": Tensor.from_array(ONES["IN"])})).result(30)
            else:
                source.models.load(needed).result(30)
        return super().open(source)


@pytest.mark.parametrize("by", ["call", "load"])
async def test_a_model_that_needs_another_while_it_is_loaded(by: str, tmp_path: Path) -> None:
    """Loads run one after the other, but for these: the two would wait for each other."""
    needs = 'parameters { key: "needs" value { string_value: "second" } }'
    how = f'parameters {{ key: "by" value {{ string_value: "{by}" }} }}'
    backend = CallingBackend()
    models = {"first": f"{CONFIG}{needs}{how}", "second": CONFIG}
    settings: dict[str, Any] = {"model_memory_limit": "1GB", "model_control_mode": "explicit"}
    settings |= (
        {"load_lazily": "true", "load_model": ["*"]}
        if by == "call"
        else {"load_lazily": "false", "load_model": ["first"]}
    )
    async with served(tmp_path, backend, models, **settings) as server:
        response = await server.infer("first", ONES)
        assert response.outputs["OUT"].array.tolist() == [1, 1]
        assert backend.opened == ["second", "first"]
        report = server.model_memory()
        assert 0 <= report.held <= report.limit
