"""ONNX Runtime is told not to report to its maker. Only a process of its own shows it: it decides at the import."""

import os
import subprocess
import sys
from pathlib import Path


def test_onnxruntime_reports_to_nobody(tmp_path: Path) -> None:
    # What keeps it from reporting by itself is taken out of the environment.
    silencing = ("CI", "GITHUB_ACTIONS", "TF_BUILD", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS")
    environment = {name: value for name, value in os.environ.items() if name not in silencing}
    subprocess.run(
        [sys.executable, "-c", "import modserve.backends.onnxruntime.backend"],
        env={**environment, "HOME": str(tmp_path)},
        check=True,
    )
    assert list(tmp_path.rglob("*")) == []
