"""The Python shown in the documentation does what is said of it."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from modserve import InferenceServer, Settings
from modserve.testing import write_model

ROOT = Path(__file__).parents[2]

DOUBLE = """
backend: "double"
max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


def python_blocks(path: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / path).read_text(), re.MULTILINE | re.DOTALL)


async def test_the_backend_of_the_page_on_backends(tmp_path: Path) -> None:
    (shown,) = python_blocks("docs/backends.md")
    names: dict[str, Any] = {}
    exec(shown, names)
    write_model(tmp_path, "double", DOUBLE)
    settings = Settings(model_repository=(tmp_path,))
    async with InferenceServer(settings, backends={"double": names["DoubleBackend"]()}) as server:
        response = await server.infer("double", {"INPUT": np.array([[1, 2]], np.float32)})
    assert response.outputs["OUTPUT"].array.tolist() == [[2.0, 4.0]]
