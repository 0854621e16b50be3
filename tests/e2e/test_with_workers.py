"""A part of these suites once more, with two workers behind the ports: to clients they are one server.

``MODSERVE_TEST_WORKERS=2 pytest tests/e2e`` runs all of them so. What fails then counts on what is each worker's own
(docs/operations.md, "Workers"): one cache, one queue, one batch, one trace file, one line in the log.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent

SELECTED = (
    "test_client_flavours.py",
    "test_first_calls.py::test_the_metrics_page_has_every_version_once",
    "test_tls.py::test_clients_with_a_certificate",
    *("test_model_control.py", "test_sequences.py"),
    *("test_shared_memory_regions.py", "test_repository_and_logging.py"),
)
"""Suites with calls that workers answer together (`FleetServer`), and the options that they are handed."""

NOT_OF_SEVERAL = (
    "test_model_control.py::test_a_swap_under_traffic",  # counts lines in the log
    "test_sequences.py::test_the_controls_of_each_row_and_the_rows_of_absent_sequences",  # has both in one batch
    # A server each: the other two send each setting once, and one over each protocol.
    "test_repository_and_logging.py::test_settings_act_at_once[form-grpc]",
    "test_repository_and_logging.py::test_settings_act_at_once[information-http]",
)


def test_two_workers_pass_the_suites_of_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [f"--basetemp={tmp_path / 'temp'}", *(str(FOLDER / each) for each in SELECTED)]
    for each in NOT_OF_SEVERAL:
        command += ["--deselect", f"tests/e2e/{each}"]
    done = subprocess.run(
        command,
        cwd=FOLDER.parents[1],
        env={**os.environ, "MODSERVE_TEST_WORKERS": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
