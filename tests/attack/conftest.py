"""The server under attack: one for all tests, and another when one was hurt."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from repositories import EXAMPLES, write_identity
from server_process import ServerProcess, serving

from attack.measuring import COSTS
from attack.sending import OPTIONS, healthy


class Targets:
    """Makes a server when there is none that is well."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._stack = ExitStack()
        self._server: ServerProcess | None = None

    def get(self) -> ServerProcess:
        if self._server is None or not healthy(self._server):
            self.drop()
            self._server = self._stack.enter_context(serving(EXAMPLES, self._repository, options=OPTIONS))
        return self._server

    def drop(self) -> None:
        """Without asking how it is: the test that has hurt it has said so."""
        if self._server is not None:
            self._server.dispose()
            self._server = None
            self._stack.pop_all()

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of models that give back what they get."""
    repository = tmp_path_factory.mktemp("identities")
    for name, datatype in (("numbers", "FP32"), ("texts", "BYTES")):
        write_identity(repository, name, datatype)
    return repository


@pytest.fixture(scope="session")
def targets(identities: Path) -> Iterator[Targets]:
    made = Targets(identities)
    yield made
    made.close()


@pytest.fixture
def server(targets: Targets, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """Attacked by one test after the other."""
    failed = request.session.testsfailed
    yield targets.get()
    if request.session.testsfailed > failed:
        targets.drop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if COSTS:
        terminalreporter.section("attacks")
        for cost in COSTS:
            terminalreporter.write_line(str(cost))
