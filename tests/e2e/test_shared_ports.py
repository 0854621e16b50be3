"""Servers that share their ports: one takes over from another, and no request meets one that has not loaded yet."""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from repositories import HELD, Gate, write_held, write_identity
from server_process import LOADED, ServerProcess, eventually, started
from wire import Ask, Input, binary_outputs, grpc_infer, http, http_infer, ints, raw_outputs

SHARED = ("--reuse-http-port=true", "--reuse-grpc-port=true")
WAITING = "the ports that other servers may share take connections when the models have loaded"
ASK = Ask((Input("INPUT0", "INT32", (1, 2), ints(3, 4)),), model="model")
RIGHT = {"OUTPUT0": ints(3, 4)}
CLIENTS = 2
"""For each protocol."""


class Clients:
    """Clients that call one port after the other, without pauses, each time on a new connection."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self._over = threading.Event()

    def calls(self, protocol: str, call: Callable[[], object]) -> None:
        while not self._over.is_set():
            try:
                outcome = "right" if call() == RIGHT else "wrong"
            except Exception as error:
                outcome = f"{error!r:.300}"
            self.outcomes[f"{protocol}: {outcome}"] += 1

    def go_on(self, count: int = 50) -> None:
        """Wait for so many more answers over each protocol, or for the first that is not right."""
        ends = {name: self.outcomes[name] + count for name in ("HTTP: right", "gRPC: right")}
        eventually(lambda: self.failures or all(self.outcomes[name] >= end for name, end in ends.items()))

    @property
    def failures(self) -> dict[str, int]:
        return {name: count for name, count in self.outcomes.items() if not name.endswith(": right")}

    def end(self) -> None:
        self._over.set()


@contextmanager
def clients(server: ServerProcess) -> Iterator[Clients]:
    http_port, grpc_port = server.http_port, server.grpc_port
    calling = Clients()
    with ThreadPoolExecutor(2 * CLIENTS) as threads:
        for _ in range(CLIENTS):
            threads.submit(calling.calls, "HTTP", lambda: binary_outputs(http_infer(http_port, ASK)))
            threads.submit(calling.calls, "gRPC", lambda: raw_outputs(grpc_infer(grpc_port, ASK)))
        try:
            yield calling
        finally:
            calling.end()


def write_slow(repository: Path) -> Gate:
    """`model`, which loads when it is let."""
    repository.mkdir()
    gate = write_held(repository, "model", loads=False)
    gate.open()
    return gate


def responses(server: ServerProcess) -> float:
    """All at its HTTP and gRPC ports."""
    names = ("modserve_http_responses_total", "modserve_grpc_responses_total")
    lines = http(server.metrics_port, "GET", "/metrics").body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(names))


@pytest.mark.parametrize("form", [(), ("--workers=2",)], ids=["alone", "workers"])
def test_a_server_takes_over_when_it_has_loaded(tmp_path: Path, form: tuple[str, ...]) -> None:
    write_identity(tmp_path / "old", "model")
    gate = write_slow(tmp_path / "new")
    with started(tmp_path / "old", options=[*SHARED, *form]) as old:
        old.wait_for(LOADED)
        ports = [f"--http-port={old.http_port}", f"--grpc-port={old.grpc_port}"]
        with (
            clients(old) as calling,
            started(tmp_path / "new", options=[*SHARED, *form, *ports], environment=HELD) as new,
        ):
            new.wait_for(WAITING)
            assert (new.http_port, new.grpc_port) == (old.http_port, old.grpc_port)
            calling.go_on()
            ready = [http(old.http_port, "GET", "/v2/health/ready").status for _ in range(20)]
            assert (ready, http(new.metrics_port, "GET", "/v2/health/ready").status) == ([200] * 20, 400)
            assert responses(new) == 0

            gate.let_load()
            new.wait_for(LOADED)
            eventually(lambda: responses(new))
            calling.go_on()
            old.signal(signal.SIGTERM)
            old.wait(0)
            calling.go_on()
            calling.end()
            assert calling.failures == {}
            new.stop()


def test_a_server_whose_models_fail_takes_no_connection(tmp_path: Path) -> None:
    write_identity(tmp_path / "old", "model")
    (tmp_path / "new" / "model" / "1").mkdir(parents=True)
    (tmp_path / "new" / "model" / "config.pbtxt").write_text('backend: "nosuch"')
    with started(tmp_path / "old", options=SHARED) as old:
        old.wait_for(LOADED)
        ports = [f"--http-port={old.http_port}", f"--grpc-port={old.grpc_port}"]
        with (
            clients(old) as calling,
            started(tmp_path / "new", options=[*SHARED, *ports, "--exit-on-error=true"]) as new,
        ):
            new.wait(1, errors=["model 'model'", "a model failed to load and --exit-on-error is set"])
            calling.go_on()
            calling.end()
            assert calling.failures == {}
        old.stop()
