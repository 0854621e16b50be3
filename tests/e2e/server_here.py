"""A server in the test's own process, for options that no process has to be started for."""

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from server_process import NO_VARIABLES

from modserve.settings.sources import from_command_line
from modserve.testing.serving import Serving, serve


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.trouble: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.levelname} {record.name}: {record.getMessage()}"
        self.lines.append(line)
        if record.levelno >= logging.ERROR:
            self.trouble.append(line)


@dataclass(frozen=True)
class ServerHere:
    """What tests use of a `server_process.ServerProcess` that is only asked."""

    served: Serving
    _log: _Lines = field(repr=False)

    @property
    def http_port(self) -> int:
        return _known(self.served.ports.http)

    @property
    def grpc_port(self) -> int:
        return _known(self.served.ports.grpc)

    @property
    def metrics_port(self) -> int:
        return _known(self.served.ports.metrics)

    @property
    def admin_port(self) -> int:
        return _known(self.served.ports.admin)

    @property
    def log(self) -> str:
        return "\n".join(self._log.lines)


def _known(port: int | None) -> int:
    assert port is not None, "this port is not served"
    return port


@contextmanager
def serving_here(
    *repositories: Path,
    options: Sequence[str] = (),
    errors: Sequence[str] = (),
    environment: Mapping[str, str] = NO_VARIABLES,
) -> Iterator[ServerHere]:
    """As `server_process.serving`, but all models must load; for options of the ports and of what is behind them.

    It has neither workers nor the options of a process, such as those of its log. `environment` has options only.
    """
    places = [f"--model-repository={repository}" for repository in repositories]
    log, root = _Lines(), logging.getLogger()
    level = root.level
    root.addHandler(log)
    root.setLevel(logging.INFO)
    try:
        with patch.dict(os.environ, environment):  # a platform's variables are read from there
            settings = from_command_line([*places, *options], environment).settings
            with serve(settings) as served:
                yield ServerHere(served, log)
    finally:
        root.removeHandler(log)
        root.setLevel(level)
    unexpected = [line for line in log.trouble if not any(re.search(pattern, line) for pattern in errors)]
    assert not unexpected, f"unexpected in the log: {unexpected}"
    missing = [pattern for pattern in errors if not any(re.search(pattern, line) for line in log.trouble)]
    assert not missing, f"expected among the errors: {missing}\n{log.trouble}"
