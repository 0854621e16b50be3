"""What runs a model: from the engine's own words to the response, the metrics page, and what stands between."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest

from modserve import InferenceServer, Settings
from modserve.backends.api import InstanceSpec, ModelSource
from modserve.core.configuration.model_config import ModelDescription
from modserve.core.servable import Servable, engine_report
from modserve.core.tensors.tensor import Array
from modserve.core.version import ModelId
from modserve.frontends.http.rest.app import create_app
from modserve.observability import prometheus
from modserve.observability.families import render
from modserve.protocol.control import metadata
from modserve.repository.succession import Succession
from modserve.settings import HttpSettings
from modserve.testing import config, write_model

TENSORS = """
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
CONFIG = 'backend: "telling"\ninstance_group [ { count: 3 } ]' + TENSORS
REPORT: Mapping[str, object] = {
    "engine": "Abacus",
    "version": "1.2",
    "precision": "fp32",
    "device": "CPU",
    "threads": 2,
    "candidates": [
        {"engine": "Abacus", "version": "1.2", "precision": "fp32", "seconds": 0.25, "error": 0},
        {"engine": "Slide rule", "version": "9", "precision": "fp16", "why": "it has no cursor"},
    ],
}


class TellingBackend:
    """An engine, and its models and instances at once, that says of itself what a test lets it say."""

    default_model_filename = ""
    default_cpu_instances = 1
    any_thread = True

    def __init__(self, said: object) -> None:
        self.said = said

    def gpu_count(self) -> int:
        return 0

    def open(self, source: ModelSource) -> "TellingBackend":
        return self

    def describe(self) -> ModelDescription | None:
        return None

    def report(self) -> Any:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def instance(self, spec: InstanceSpec) -> "TellingBackend":
        return self

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        return {"OUT": inputs["IN"]}

    def close(self) -> None:
        pass


@asynccontextmanager
async def served(directory: Path, said: object, text: str = CONFIG, **settings: Any) -> AsyncIterator[InferenceServer]:
    write_model(directory, "model", text)
    engines: Any = {"telling": TellingBackend(said)}
    async with InferenceServer(Settings(model_repository=directory, **settings), backends=engines) as server:
        yield server


async def engine_of(directory: Path, said: object, text: str = CONFIG, **settings: Any) -> dict[str, object]:
    async with served(directory, said, text, **settings) as server:
        return metadata.engine_json(server.model("model"))


HEAD = {"model_name": "model", "model_version": "1", "backend": "telling"}
INSTANCES = {"instances": {"count": 3, "kinds": {"KIND_CPU": 3}}}


async def test_a_report_is_served_with_what_the_server_knows(tmp_path: Path) -> None:
    assert await engine_of(tmp_path, REPORT) == {**HEAD, **INSTANCES, **REPORT}


async def test_an_engine_cannot_say_what_the_server_knows(tmp_path: Path) -> None:
    said = {"engine": "Abacus", "backend": "another", "instances": 7}
    assert await engine_of(tmp_path, said) == {**HEAD, **INSTANCES, "engine": "Abacus"}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (["a list"], "a list in place of an object"),
        ({"threads": object()}, "not JSON serializable"),
        ({"seconds": float("nan")}, "not JSON compliant"),
        (RuntimeError("it is shy"), "it is shy"),
    ],
    ids=["no object", "no JSON", "no number", "raises"],
)
async def test_a_report_that_is_no_good_harms_nobody(
    tmp_path: Path, said: object, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert await engine_of(tmp_path, said) == {**HEAD, **INSTANCES, "engine": "telling"}
    assert message in caplog.text


async def test_an_engine_without_a_report_has_its_backends_name(tmp_path: Path) -> None:
    report = await engine_of(tmp_path, None, 'backend: "identity"' + TENSORS)
    assert (report["backend"], report["engine"]) == ("identity", "identity")


async def test_models_behind_a_cache_say_it_too(tmp_path: Path) -> None:
    cached = CONFIG + "response_cache { enable: true } dynamic_batching { preserve_ordering: true }"
    report = await engine_of(tmp_path, REPORT, cached, cache_config=1_000_000)
    assert report["engine"] == "Abacus"


def test_an_ensemble_names_its_steps() -> None:
    steps = tuple(SimpleNamespace(model=name) for name in ("first", "second", "first"))
    settings: Any = replace(config("chain"), ensemble=cast(Any, SimpleNamespace(steps=steps)))
    ensemble = cast(Servable, SimpleNamespace(id=ModelId("chain", 1), config=settings))
    assert engine_report(ensemble) == {}
    said = metadata.engine_json(ensemble)
    assert (said["backend"], said["engine"], said["steps"]) == ("", "ensemble", ["first", "second"])


async def test_over_http_and_on_the_metrics_page(tmp_path: Path) -> None:
    async with served(tmp_path, REPORT) as server:
        app = create_app(server, HttpSettings())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            for path in ("/v2/models/model/engine", "/v2/models/model/versions/1/engine"):
                response = await client.get(path)
                assert (response.status_code, response.json()) == (200, {**HEAD, **INSTANCES, **REPORT})
            assert (await client.get("/v2/models/nosuch/engine")).status_code == 404
            assert (await client.get("/v2/models/model/versions/7/engine")).status_code == 404
        assert (await server.infer("model", {"IN": np.zeros((1, 2), np.float32)})).outputs["OUT"].shape == (1, 2)
        page = render(prometheus.collectors(server.ready_models)).decode()
    lines = [line for line in page.splitlines() if line.startswith("modserve_engine")]
    engine = 'engine="Abacus",engine_version="1.2",model="model",precision="fp32",version="1"'
    assert lines == [
        'modserve_engine_info{backend="telling",device="CPU",' + engine + "} 1.0",
        "modserve_engine_candidate_seconds{" + engine + "} 0.25",
        "modserve_engine_candidate_error{" + engine + "} 0.0",
    ]


def test_a_version_that_has_taken_over_sequences_says_its_own() -> None:
    heir: Any = SimpleNamespace(
        id=ModelId("m", 2), config=config("m"), config_message=b"", statistics=None, labels={}, engine_report=REPORT
    )
    assert engine_report(Succession(heir, [])) == REPORT
