"""Real networks through the backend that chooses: it gives what ONNX Runtime gives, whichever form they come in."""

from pathlib import Path
from typing import Any

import numpy as np
from engine_rows import FORMS, NETWORKS, REFERENCES, Row
from model_packages import place
from numpy.typing import NDArray

from modserve import InferenceServer, Settings
from modserve.backends.catalogue import BY_BACKEND
from modserve.core.lifecycle import LifecycleState
from modserve.protocol.control import metadata

SHORT = {"budget_seconds": "0.5"}
ROWS = [
    Row("basic_pitch", "pitch_onnx", "auto", tolerance=1e-3, parameters=SHORT),
    Row("basic_pitch", "pitch_tflite", "auto", tolerance=1e-3, parameters=SHORT),
    Row("basic_pitch", "pitch_savedmodel", "auto", tolerance=1e-3, parameters=SHORT),
    Row("minilm", "minilm_onnx", "auto", tolerance=1e-3, parameters=SHORT),
    Row("magika", "magika", "auto", tolerance=2e-3, parameters=SHORT),
]
NEEDS = {"pitch_tflite": "openvino", "pitch_savedmodel": "openvino"}


def can_load(row: Row) -> bool:
    return row.form not in NEEDS or row._replace(engine=NEEDS[row.form]).can_run


async def outputs(server: InferenceServer, row: Row) -> dict[str, Any]:
    """By the names that ONNX has."""
    network, names = NETWORKS[row.network], FORMS[row.form].names
    inputs = {names.get(name, name): array for name, array in network.arrays().items()}
    response = await server.infer(row.model, inputs)
    return {name: response.outputs[names.get(name, name)].array for name in network.outputs}


def difference(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest one, of the largest value."""
    assert actual.shape == expected.shape
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


async def test_the_engines_that_were_chosen_agree_with_the_reference(tmp_path: Path) -> None:
    rows = [row for row in ROWS if can_load(row)]
    for row in (*rows, *(REFERENCES[network] for network in {row.network for row in rows})):
        place(FORMS[row.form].path(), tmp_path / "models" / row.model, row.config(), FORMS[row.form].filename)
    settings = Settings(
        model_repository=tmp_path / "models", backend_config={"auto": {"cache-dir": str(tmp_path / "cache")}}
    )
    async with InferenceServer(settings) as server:
        assert [entry.reason for entry in server.index() if entry.state is not LifecycleState.READY] == []
        for row in rows:
            actual, expected = await outputs(server, row), await outputs(server, REFERENCES[row.network])
            assert all(difference(actual[name], expected[name]) < row.tolerance for name in expected), row.model
            report: Any = metadata.engine_json(server.model(row.model))
            for candidate in report["candidates"]:
                if candidate["precision"] == "fp32" and BY_BACKEND[candidate["backend"]].installed:
                    # Made-up data suits the network, and all engines agree about it.
                    assert candidate.get("error", 0) < 1e-3, (row.model, candidate)
                    assert "why" not in candidate or "ended before" in candidate["why"], (row.model, candidate)
    assert len(list((tmp_path / "cache").iterdir())) >= 3
