"""Programs of other projects, which ``scripts/clients`` installs when the first test needs them."""

import functools
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / ".venv-clients"
PYTHON = CLIENTS / "bin" / "python"
PERF_ANALYZER = CLIENTS / "bin" / "perf_analyzer"


@functools.cache
def install() -> None:
    """A moment where they are there already."""
    subprocess.run(["bash", ROOT / "scripts" / "clients"], check=True, stdin=subprocess.DEVNULL)


def run_client(
    command: Sequence[str | Path], is_hung: Callable[[], bool] = lambda: False
) -> subprocess.CompletedProcess[str]:
    """Run one of these programs to its end, with nothing from this process's virtual environment in its way.

    Raises TimeoutExpired for one that has not ended after a minute, or of which `is_hung`, asked every second, says so.
    """
    install()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    libraries = CLIENTS.glob("lib/python3*/site-packages/nvidia/*/lib")
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, libraries))
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=pipe, text=True, stdin=subprocess.DEVNULL
    ) as process:
        for left in reversed(range(60)):
            try:
                output, errors = process.communicate(timeout=1)
                return subprocess.CompletedProcess(command, process.returncode, output, errors)
            except subprocess.TimeoutExpired:
                if not left or is_hung():
                    process.kill()
                    raise
    raise AssertionError("the last second ends in one way or the other: this is a bug")
