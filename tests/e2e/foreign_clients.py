"""Where ``scripts/clients`` puts programs of other projects."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

CLIENTS = Path(__file__).parents[2] / ".venv-clients"
PYTHON = CLIENTS / "bin" / "python"
PERF_ANALYZER = CLIENTS / "bin" / "perf_analyzer"


def run_client(command: Sequence[str | Path], seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run one of these programs to its end, with nothing from this process's virtual environment in its way."""
    assert Path(command[0]).exists(), f"{command[0]} is not there: run scripts/clients"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    libraries = CLIENTS.glob("lib/python3*/site-packages/nvidia/*/lib")
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, libraries))
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL, check=False
    )
