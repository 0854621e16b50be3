"""OpenVINO is told not to report to its maker. Only a process of its own shows it: it does so at the import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openvino")

PROGRAM = """
import socket
import sys

def refuse(*args, **kwargs):
    print("connects to", *args)

socket.getaddrinfo = socket.socket.connect = refuse
import modserve.backends.openvino.backend
assert "openvino" in sys.modules
import openvino_telemetry  # who wants it gets it
"""


def test_openvino_reports_to_nobody(tmp_path: Path) -> None:
    # What keeps it from reporting by itself is taken out of the environment.
    silencing = ("CI", "TF_BUILD", "JENKINS_URL")
    environment = {name: value for name, value in os.environ.items() if name not in silencing}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, "HOME": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == ""
    assert list(tmp_path.rglob("*")) == []
