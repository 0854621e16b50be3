"""A server of a command's own, on a free port, for as long as the command needs it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from modserve.core.errors import ModserveError, invalid

from .destination import Destination, address
from .remote_server import connect

_LISTENING = re.compile(r"^HTTP listening on \S+:(\d+)$", re.MULTILINE)
_STOP_SECONDS = 20.0
_QUIET_OPTIONS = (
    "--http-address=127.0.0.1",
    "--http-port=0",
    "--allow-grpc=false",
    "--allow-metrics=false",
    "--exit-timeout-secs=2",
)


@contextlib.contextmanager
def serving(words: Sequence[str], seconds: float, model: str = "") -> Iterator[Destination]:
    """Run ``modserve serve`` with these words, and stop it when the block ends.

    It begins when `model`, or without one any model, is ready. Raises INVALID_ARG with the server's reason if that does
    not happen within `seconds`.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MODSERVE_")}
    with subprocess.Popen(
        [sys.executable, "-m", "modserve", "serve", *_QUIET_OPTIONS, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the command, which then stops the server
    ) as process:
        log = _Log(process)
        try:
            port = log.port(time.monotonic() + seconds)
            server = Destination(address(f"http://127.0.0.1:{port}"))
            _wait_until_ready(server, model, process, log, time.monotonic() + seconds)
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_ready(
    place: Destination, model: str, process: "subprocess.Popen[str]", log: "_Log", deadline: float
) -> None:
    server = connect(place)

    def ready() -> bool:
        with contextlib.suppress(ModserveError):
            models = server.ready_models()
            return model in models if model else bool(models)
        return False

    try:
        while True:
            if ready():
                return
            if process.poll() is not None or log.loaded:
                if ready():
                    return
                raise invalid(f"the model does not load: {log.reason()}")
            if time.monotonic() > deadline:
                raise invalid("the model does not become ready in time")
            log.wait_for_change(0.05)
    finally:
        server.close()


_LOADED = "model "
"""The head of the table that a server prints when it has loaded its models begins so."""
_CONSEQUENCE = "no model has loaded"
"""The last error of a server that ends since its only model cannot be loaded begins so; the reason is in one before."""
_REASON = re.compile(r"(?:ERROR|WARNING) +\S+: (.*)")


class _Log:
    """Output of a server, read by a thread so that its pipe never fills."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._lines: list[str] = []
        self._condition = threading.Condition()
        self._ended = False
        self.loaded = False
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, stream: Iterator[str]) -> None:
        for line in stream:
            with self._condition:
                self._lines.append(line)
                self.loaded = self.loaded or (line.startswith(_LOADED) and "state" in line)
                self._condition.notify_all()
        with self._condition:
            self._ended = True
            self._condition.notify_all()

    def wait_for_change(self, seconds: float) -> None:
        """Wait for another line."""
        with self._condition:
            if not self._ended:
                self._condition.wait(seconds)

    def port(self, deadline: float) -> int:
        with self._condition:
            while not (match := _LISTENING.search("".join(self._lines))):
                if self._ended or time.monotonic() > deadline:
                    raise invalid(f"a server does not start: {self.reason()}")
                self._condition.wait(0.1)
        return int(match[1])

    def reason(self) -> str:
        """Return the last logged error, or the last line."""
        text = "".join(self._lines)
        reasons = [reason for reason in _REASON.findall(text) if not reason.startswith(_CONSEQUENCE)]
        return reasons[-1] if reasons else (text.strip().splitlines() or ["no output"])[-1]
