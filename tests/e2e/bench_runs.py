"""``modserve bench`` as a test runs it: short, in the test's own process, against a server of the test's."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from server_process import ServerProcess
from wire import HOST, statistics

from modserve.commands import terminal

QUICK = ["--window-secs=0.1", "--warm-up-secs=0.05", "--windows=3", "--window-requests=10", "--stability=10000"]


class Done(NamedTuple):
    stdout: str
    stderr: str


Bench = Callable[..., Done]
"""Takes the protocol, the command's words, which may say otherwise than `QUICK`, and the exit status as `code`."""


def bench_against(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> Bench:
    """The command in this process, which has its libraries already."""

    def run(protocol: str, *words: str, code: int = 0) -> Done:
        port = server.grpc_port if protocol == "grpc" else server.http_port
        ended = terminal.run("bench", [*QUICK, *words, "--url", f"{protocol}://{HOST}:{port}"])
        output = capsys.readouterr()
        assert ended == code, output
        return Done(output.out, output.err)

    return run


def results(bench: Bench, protocol: str, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(bench(protocol, *words, "--json=-").stdout)["results"]
    return rows


def successes(server: ServerProcess, model: str) -> int:
    number: int = statistics(server, model)["inference_stats"]["success"]["count"]
    return number
