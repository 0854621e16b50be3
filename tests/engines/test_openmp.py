"""Engines bring OpenMP runtimes of their own. All of them in one process, in several orders, give right results."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("openmp_program.py")
ENGINES = ("torch", "onnxruntime", "openvino", "sklearn", "xgboost", "lightgbm", "treelite")
INSTALLED = [name for name in ENGINES if find_spec(name) is not None and find_spec("sklearn") is not None]
ORDERS = {
    "torch first": INSTALLED,
    "torch last": INSTALLED[::-1],
}
IRRECONCILABLE = ("libiomp", "libomp")
"""Runtimes of LLVM and Intel: two of them in a process, or one beside GNU's, is what stops processes or hangs them."""


@pytest.mark.skipif(len(INSTALLED) < 3, reason="needs at least three engines")
@pytest.mark.parametrize("order", ORDERS)
def test_all_engines_in_one_process(order: str) -> None:
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "2"}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), *ORDERS[order]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["wrong"] == []
    names = [Path(path).name for path in result["runtimes"]]
    assert not [name for name in names if name.startswith(IRRECONCILABLE)], names
    assert names, "docs/decisions/014-one-openmp-vendor.md says that there are some"
