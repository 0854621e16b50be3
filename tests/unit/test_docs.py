"""The Python shown in the documentation does what is said of it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import option_tables

from modserve import InferenceServer, Settings
from modserve.settings import from_command_line
from modserve.testing import write_model

ROOT = Path(__file__).parents[2]

DOUBLE = """
backend: "double"
max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


def python_blocks(path: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / path).read_text("utf-8"), re.MULTILINE | re.DOTALL)


async def test_the_backend_of_the_page_on_backends(tmp_path: Path) -> None:
    shown, _ = python_blocks("docs/backends.md")
    names: dict[str, Any] = {}
    exec(shown, names)
    write_model(tmp_path, "double", DOUBLE)
    settings = Settings(model_repository=(tmp_path,))
    async with InferenceServer(settings, backends={"double": names["DoubleBackend"]()}) as server:
        response = await server.infer("double", {"INPUT": np.array([[1, 2]], np.float32)})
    assert response.outputs["OUTPUT"].array.tolist() == [[2.0, 4.0]]


COUNTING = """
backend: "counting"
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""


async def test_the_engine_that_answers_by_request_of_the_page_on_backends(tmp_path: Path) -> None:
    backend, instance = python_blocks("docs/backends.md")
    names: dict[str, Any] = {}
    exec(backend, names)
    exec(instance, names)
    names["DoubleModel"].instance = lambda model, config, placement: names["CountingInstance"]()
    write_model(tmp_path, "counting", COUNTING)
    settings = Settings(model_repository=(tmp_path,))
    async with InferenceServer(settings, backends={"counting": names["DoubleBackend"]()}) as server:
        asked = {"INPUT": np.zeros(2, np.float32)}
        responses = [each async for each in server.infer_stream("counting", asked, parameters={"count": 2})]
    assert [each.outputs["OUTPUT"].array.tolist() for each in responses] == [[0], [1]]
    assert [each.parameters for each in responses] == [{"of": "three"}] * 2


def test_the_tables_of_options_say_what_the_settings_say() -> None:
    page = option_tables.PAGE.read_text("utf-8")
    assert option_tables.renewed(page) == page, "python scripts/option_tables.py writes the tables anew"


def test_the_option_file_of_the_page_on_operations(tmp_path: Path) -> None:
    (shown,) = re.findall(
        r"^```yaml\n(model-repository.*?)^```", option_tables.PAGE.read_text("utf-8"), re.M | re.DOTALL
    )
    file = tmp_path / "modserve.yaml"
    file.write_text(shown, "utf-8")
    settings = from_command_line(["--config", str(file)], {}).settings
    assert settings.repositories == (Path("/models"), Path("/more-models"))
    assert settings.backend_config == {"onnxruntime": {"default-max-batch-size": "4"}}
    assert (settings.http.port, *settings.trace_level, settings.trace_file) == (8000, "TIMESTAMPS", "trace.json")
