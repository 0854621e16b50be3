"""Loads after the start that take long say how far they are, whoever began them."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from open_server import OpenServer
from python_models import tensors, write_python
from server_here import serving_here
from server_process import Server
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


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def progress_is_told(server: Server) -> None:
    server.wait_for(r" INFO    modserve\.progress: loading model 'slow_process', version 1: 2 s$")
    assert http(server.http_port, "GET", "/v2/health/live").status == 200


def test_a_long_load_by_a_client(repository: Path, open_server: OpenServer) -> None:
    with open_server.host(repository, load=()) as server:
        with slow_model(repository):
            path = "/v2/repository/models/slow_process/load"
            load = threading.Thread(target=http, args=(server.http_port, "POST", path))
            load.start()
            progress_is_told(server)
        server.wait_for(r"model 'slow_process', version 1: ready after")
        load.join()


def test_a_long_load_of_a_model_that_was_found(repository: Path) -> None:
    options = ["--model-control-mode=poll", "--repository-poll-secs=1"]
    with serving_here(repository, options=options) as server:
        with slow_model(repository):
            progress_is_told(server)
        server.wait_for(r"model 'slow_process', version 1: ready after")
