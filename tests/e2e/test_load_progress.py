"""Loads after the start that take long say how far they are, whoever began them."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from python_models import tensors, write_python
from server_process import LOADED, serving
from wire import http

SLOW = """
import pathlib

class TritonPythonModel:
    def initialize(self, args):
        pathlib.Path({gate!r}).read_text()  # until somebody has written to it

    def execute(self, requests):
        return []
"""
CONFIG = "\n".join([tensors("input", IN="INT32 1"), tensors("output", OUT="INT32 1")])


@contextmanager
def slow_model(repository: Path) -> Iterator[None]:
    """A model whose load ends with the block."""
    gate = repository.with_name("gate")
    os.mkfifo(gate)
    write_python(repository, "slow", SLOW.format(gate=str(gate)), CONFIG, modes=["process"])
    try:
        yield
    finally:
        gate.write_text("go")


@pytest.mark.parametrize("mode", ["explicit", "poll"])
def test_a_long_load_after_the_start(tmp_path: Path, mode: str) -> None:
    repository = tmp_path / "models"
    repository.mkdir()
    options = [f"--model-control-mode={mode}", *(["--repository-poll-secs=1"] if mode == "poll" else [])]
    with serving(repository, options=options) as server:
        server.wait_for(LOADED)
        with slow_model(repository):
            path = "/v2/repository/models/slow_process/load"
            load = threading.Thread(target=http, args=(server.http_port, "POST", path))
            if mode == "explicit":
                load.start()
            server.wait_for(r" INFO    modserve\.progress: loading model 'slow_process', version 1: 2 s$")
            assert http(server.http_port, "GET", "/v2/health/live").status == 200
        server.wait_for(r"model 'slow_process', version 1: ready after")
        if mode == "explicit":
            load.join()
