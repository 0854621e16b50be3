"""Real networks through the backend that chooses: it gives what ONNX Runtime gives, whichever form they come in."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from engine_rows import FORMS, REFERENCES, Row
from model_packages import place
from server_process import ServerProcess, serving
from test_real_models_agree import difference, is_installed, run
from wire import HOST

BUDGET = {"budget_seconds": "1"}
ROWS = [
    Row("basic_pitch", "pitch_onnx", "auto", tolerance=1e-3, parameters=BUDGET),
    Row("basic_pitch", "pitch_tflite", "auto", tolerance=1e-3, parameters=BUDGET),
    Row("basic_pitch", "pitch_savedmodel", "auto", tolerance=1e-3, parameters=BUDGET),
    Row("minilm", "minilm_onnx", "auto", tolerance=1e-3, parameters=BUDGET),
    Row("minilm", "minilm_torchscript", "auto", tolerance=1e-3, parameters=BUDGET),
    Row("magika", "magika", "auto", tolerance=2e-3, parameters=BUDGET),
]
NEEDS = {"pitch_tflite": "openvino", "pitch_savedmodel": "openvino", "minilm_torchscript": "pytorch"}


def can_load(row: Row) -> bool:
    return row.form not in NEEDS or is_installed(row._replace(engine=NEEDS[row.form]))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository, cache = tmp_path_factory.mktemp("auto"), tmp_path_factory.mktemp("cache")
    references = {row.network: REFERENCES[row.network] for row in ROWS}
    for row in (*filter(can_load, ROWS), *references.values()):
        place(FORMS[row.form].path(), repository / row.model, row.config(), FORMS[row.form].filename)
    with serving(repository, options=[f"--backend-config=auto,cache-dir={cache}"]) as running:
        yield running
    assert any(cache.iterdir())


def report(server: ServerProcess, model: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{HOST}:{server.http_port}/v2/models/{model}/engine") as response:
        said: dict[str, Any] = json.load(response)
    return said


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.model)
def test_the_engine_that_was_chosen_agrees_with_the_reference(server: ServerProcess, row: Row) -> None:
    if not can_load(row):
        pytest.skip(f"{NEEDS[row.form]} is not installed")
    actual, expected = run(server, row), run(server, REFERENCES[row.network])
    differences = {name: difference(actual[name], expected[name]) for name in expected}
    assert max(differences.values()) < row.tolerance, differences


@pytest.mark.parametrize("form", ["pitch_onnx", "minilm_onnx", "magika"])
def test_made_up_samples_suit_real_networks(server: ServerProcess, form: str) -> None:
    """They were run by all engines: none refused the data."""
    (row,) = (row for row in ROWS if row.form == form)
    candidates = [each for each in report(server, row.model)["candidates"] if each["precision"] == "fp32"]
    installed = [each for each in candidates if "not installed" not in each.get("why", "")]
    assert [each["backend"] for each in installed][:1] == ["onnxruntime"]
    if len(installed) > 1:
        assert all(each["seconds"] > 0 for each in installed)
        assert all(each["error"] < 0.01 for each in installed)
