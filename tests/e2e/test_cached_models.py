"""Answers that are kept: models and ensembles with `response_cache`, on a server with room for it."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from open_server import OpenServer
from repositories import copy_example, write_identity
from server_here import serving_here
from server_process import Server, ServerProcess
from wire import Ask, Input, binary_outputs, grpc_infer, http, http_infer, metric, raw_outputs, statistics

ENABLED = "\nresponse_cache { enable: true }\n"
PHOTO = Ask((Input("photo", "UINT8", (1, 12, 9), bytes(range(108))),), model="digits_pipeline")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, open_server: OpenServer) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("cached")
    write_identity(repository, "plain")
    write_identity(repository, "kept", extra=ENABLED)
    for example in ("digits", "digits_resize"):
        copy_example(repository, example, example)
    copy_example(repository, "digits_pipeline", "digits_pipeline", ENABLED)
    with open_server.host(repository) as running:
        yield running


def counts(server: Server, model: str) -> tuple[int, int, int, int]:
    found = statistics(server, model)
    succeeded, hits, misses = (
        found["inference_stats"][name]["count"] for name in ("success", "cache_hit", "cache_miss")
    )
    return succeeded, hits, misses, found["execution_count"]


def numbers(model: str, first: int, id: str = "") -> Ask:
    data = np.arange(first, first + 4, dtype=np.int32).tobytes()
    return Ask((Input("INPUT0", "INT32", (1, 4), data),), model=model, id=id)


def test_both_protocols_share_the_answers(server: ServerProcess) -> None:
    for id in ("a", "b"):
        asked = numbers("kept", 1, id)
        answer = http_infer(server.http_port, asked)
        assert (answer.status, binary_outputs(answer)) == (200, {"OUTPUT0": asked.inputs[0].raw})
        assert f'"id":"{id}"'.encode() in answer.body
        found = grpc_infer(server.grpc_port, asked)
        assert (found.id, raw_outputs(found)) == (id, {"OUTPUT0": asked.inputs[0].raw})
    assert counts(server, "kept") == (4, 3, 1, 1)
    assert statistics(server, "kept")["inference_count"] == 1
    assert metric(server, "nv_cache_num_hits_per_model", model="kept") == 3
    assert metric(server, "nv_cache_num_misses_per_model", model="kept") == 1
    assert metric(server, "nv_cache_hit_duration_per_model", model="kept") > 0
    assert 'nv_cache_num_hits_per_model{model="plain"' not in http(server.metrics_port, "GET", "/metrics").body.decode()


def test_a_model_that_does_not_ask_for_it(server: ServerProcess) -> None:
    for _ in range(2):
        http_infer(server.http_port, numbers("plain", 1))
    assert counts(server, "plain") == (2, 0, 0, 2)


def test_a_model_that_is_loaded_again_starts_anew(server: ServerProcess) -> None:
    http_infer(server.http_port, numbers("kept", 100))
    config = http(server.http_port, "GET", "/v2/models/kept/config").json
    config["parameters"] = {"note": {"string_value": "changed"}}
    body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
    assert http(server.http_port, "POST", "/v2/repository/models/kept/load", body).status == 200
    http_infer(server.http_port, numbers("kept", 100))
    assert counts(server, "kept") == (1, 0, 1, 1)


def test_an_ensemble_is_kept_as_a_whole(server: ServerProcess) -> None:
    answers = [binary_outputs(http_infer(server.http_port, PHOTO)) for _ in range(3)]
    assert answers[0].keys() == {"label", "probabilities"}
    assert answers[1:] == answers[:1] * 2
    assert counts(server, "digits_pipeline") == (3, 2, 1, 1)
    assert (counts(server, "digits")[0], counts(server, "digits_resize")[0]) == (1, 1)
    text = json.dumps(
        {
            "inputs": [{"name": "photo", "datatype": "UINT8", "shape": [1, 12, 9], "data": list(range(108))}],
            "outputs": [{"name": "label"}, {"name": "probabilities", "parameters": {"classification": 2}}],
        }
    )
    path = "/v2/models/digits_pipeline/infer"
    first, second = (http(server.http_port, "POST", path, text.encode()).json["outputs"] for _ in range(2))
    assert first == second
    assert len(first[1]["data"]) == 2
    assert counts(server, "digits_pipeline")[1] == 3


def test_a_server_without_a_cache(tmp_path: Path) -> None:
    write_identity(tmp_path, "kept", extra=ENABLED)
    with serving_here(tmp_path) as server:
        assert "the server has no cache: every request is run" in server.log
        for _ in range(2):
            http_infer(server.http_port, numbers("kept", 1))
        assert counts(server, "kept") == (2, 0, 0, 2)
