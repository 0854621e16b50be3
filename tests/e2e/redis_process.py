"""A real ``redis-server`` on a loopback port, which keeps nothing on disk."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from server_process import eventually, free_port


class RedisProcess:
    """It can be stopped and started again on the same port."""

    def __init__(self, directory: Path, options: Sequence[str] = (), *, tls: bool = False, password: str = "") -> None:
        self.port = free_port()
        self._command = ["redis-server", "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
        self._command += ["--port", "0", "--tls-port", str(self.port)] if tls else ["--port", str(self.port)]
        self._command += [*options, *(["--requirepass", password] if password else [])]
        self._process: subprocess.Popen[bytes] | None = None
        ca = str(options[options.index("--tls-ca-cert-file") + 1]) if tls else None
        self.client = Redis(port=self.port, host="localhost", password=password or None, ssl=tls, ssl_ca_certs=ca)
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        eventually(self._answers)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except OSError:
            return False
        except Exception as error:  # the library's errors are OSErrors only in part
            return "Connection" not in type(error).__name__

    def stop(self) -> None:
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self, still: bool) -> None:
        """Let it accept connections and say nothing, or go on."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP if still else signal.SIGCONT)

    @property
    def keys(self) -> list[str]:
        found: list[bytes] = list(self.client.scan_iter("modserve:*"))
        return sorted(key.decode() for key in found if not key.endswith(b":probe"))

    def option(self, *more: str) -> str:
        return ",".join((f"--cache-config=redis,host=localhost,port={self.port},socket_timeout=2000", *more))


@contextmanager
def redis_server(
    directory: Path, options: Sequence[str] = (), *, tls: bool = False, password: str = ""
) -> Iterator[RedisProcess]:
    running = RedisProcess(directory, options, tls=tls, password=password)
    try:
        yield running
    finally:
        running.client.close()
        running.stop()
