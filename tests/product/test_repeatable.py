"""One seed has one course of events, in every process: else Hypothesis cannot repeat, nor shrink, what it finds."""

import os
import subprocess
import sys
from pathlib import Path


def trace(hash_seed: int) -> list[str]:
    """All that happens in some runs, in a process whose sets of texts have an order of their own."""
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-m", "product.trace", "26", "12"]
    return subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[1], check=True, capture_output=True, text=True
    ).stdout.splitlines()


def test_two_processes_do_the_same() -> None:
    first, second = trace(1), trace(2)
    differing = [index for index, (one, other) in enumerate(zip(first, second, strict=False)) if one != other]
    shown = first[differing[0] - 5 : differing[0] + 1] + second[differing[0] : differing[0] + 1] if differing else ()
    assert not differing, "\n".join(shown)
    assert len(first) == len(second) > 1000
    assert sum(line.startswith("settled") for line in first) > 20
