"""TorchScript through the backend that chooses: PyTorch at several precisions, by whatever name the file has."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve import InferenceServer, Settings
from modserve.core.lifecycle import LifecycleState
from modserve.protocol.control import metadata

torch = pytest.importorskip("torch")
pytest.importorskip("modserve.backends.pytorch.backend")

CONFIG = """
backend: "modular"
default_model_filename: "network.torchscript"
max_batch_size: 8
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 16 ] } ]
parameters { key: "tolerance" value { string_value: "0.1" } }
parameters { key: "budget_seconds" value { string_value: "0.5" } }
"""


async def test_pytorch_at_every_precision_that_this_cpu_has(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 16)).eval()
    place = tmp_path / "models" / "net" / "1"
    place.mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.save(torch.jit.trace(network, torch.zeros(1, 64)), str(place / "network.torchscript"))
    (place.parent / "config.pbtxt").write_text(CONFIG)
    settings = Settings(
        model_repository=tmp_path / "models", backend_config={"modular": {"cache-dir": str(tmp_path / "cache")}}
    )
    inputs = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    async with InferenceServer(settings) as server:
        (entry,) = server.index()
        assert entry.state is LifecycleState.READY, entry.reason
        output = (await server.infer("net", {"INPUT__0": inputs})).outputs["OUTPUT__0"].array
        report: Any = metadata.engine_json(server.model("net"))
    with torch.inference_mode():
        expected = network(torch.from_numpy(inputs)).numpy()
    assert np.abs(output - expected).max() < 0.1 * np.abs(expected).max()
    assert (report["engine"], report["chosen_backend"]) == ("PyTorch", "pytorch")
    measured = {(row["precision"], row.get("variant", "")): row for row in report["candidates"]}
    assert measured["fp32", ""]["error"] == 0
    assert measured["fp32", "optimized"]["error"] < 1e-4
    for name in (("bf16", ""), ("bf16", "autocast")):
        row = measured[name]
        assert row.get("error", 0) < 0.1
        assert "why" not in row or "this CPU cannot compute bf16" in row["why"] or "ended before" in row["why"], row
