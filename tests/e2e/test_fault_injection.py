"""The fault injection of benchmarks/, with few deaths: no request is lost or answered wrong, and nothing is left."""

from pathlib import Path

import pytest

import faults

pytestmark = pytest.mark.slow


def test_every_request_is_answered_right_or_fails_once(tmp_path: Path) -> None:
    stage, before, after, log = faults.run(tmp_path, kills=20, seed=1, pause_s=0.05)
    tally = stage.tally
    assert tally.wrong == []
    assert tally.missing == []
    assert tally.adds_up
    assert stage.deaths.total() >= 20
    assert tally.right > 20
    assert tally.failed
    assert "runs again" in log
    assert "this is a bug" not in log
    assert "Traceback" not in log
    assert faults.leaks(before, after) == []
