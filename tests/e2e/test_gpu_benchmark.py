"""benchmarks/gpu.py as a whole, on the CPU: servers, clients, shared memory, and the files that it writes."""

import json
from pathlib import Path

import pytest

import gpu

pytestmark = pytest.mark.slow


def test_a_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "results" / "cpu"
    command = ["--device", "cpu", "--small", "--seconds", "0.2", "--clients", "2", "--output", str(output)]
    assert gpu.main(command) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.split() == [f"{output}.json", f"{output}.md"]
    document = json.loads(Path(f"{output}.json").read_text())
    rows = {(row["model"], row["stage"], row["way"], row["clients"]) for row in document["rows"]}
    names = ["mlp", "conv", *(["mlp_torch"] if gpu.torch_serves("cpu") else [])]
    ways = [("CPU × 1", gpu.WIRE), ("CPU × 1", gpu.SYSTEM), ("CPU × 2", gpu.WIRE), ("CPU × 2", gpu.SYSTEM)]
    assert rows == {(name, *way, 2) for name in names for way in ways}
    assert all(row["requests_per_second"] > 0 and 0 < row["p50_ms"] <= row["p99_ms"] for row in document["rows"])
    assert max(document["differences"].values()) < 1e-5
    assert all(said["device"].lower().startswith("cpu") for said in document["engines"].values())
    assert Path(f"{output}.md").read_text().count("\n| ") == 1 + len(document["rows"])
