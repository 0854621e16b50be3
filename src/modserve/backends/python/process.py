"""A worker process: its start, connection and end.

All communication is on the event loop's thread. Only the start (`spawn`) and the end (`stop`) may block; they run on
loading threads. A dying worker closes its socket, which the event loop notices at once. A dying server closes its end
of the worker's lifeline pipe, and the kernel kills the worker with all its children.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

from modserve.backends.api import InstanceLostError
from modserve.core.errors import unavailable
from modserve.core.runtime.failures import guard
from modserve.core.tensors import dtypes

from . import exits
from .output import WorkerOutput
from .worker import arena, wire
from .worker.records import Descriptions, Record, read_records
from .worker.wire import Frame, Location, MessageKind, RecordReader

_log = logging.getLogger(__name__)

_MAIN = Path(__file__).parent / "worker" / "__main__.py"
_EXIT_S = 2.0
"""Maximum time between the end of the socket and the end of the process."""
_LAST_READS = 64
"""Limit of output reads after the end of the process: more than the socket's buffer holds."""
_TRIM_S = arena.IDLE_SECONDS + 1


class WorkerProcess:
    """A worker process. Calls `takers` for its frames, by kind, and `on_end`, both on the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, label: str) -> None:
        self.takers: dict[int, Callable[[Frame], None]] = {
            MessageKind.RELEASE: self._release,
            MessageKind.FORGET: self._forget,
            MessageKind.RESULT: lambda frame: self._questions.popleft().set_result(wire.read_json(frame[3])),
        }
        self.on_end: Callable[[InstanceLostError], None] = lambda error: None
        self.loop = loop
        self.label = label
        self.descriptions = Descriptions(dtypes.BY_NAME.__getitem__)
        self.arena: arena.Arena
        self.process: subprocess.Popen[bytes]
        self._mirror: arena.Mirror
        self._frames = RecordReader()
        self._soon: list[bytes] = []
        self._unsent = bytearray()
        self._fds: list[int] = []
        self._socket: socket.socket
        self._questions: deque[Future[Any]] = deque()
        self._last_words: deque[bytes] = deque(maxlen=0)  # discards everything until the process is ending
        self._output: WorkerOutput
        self._pidfd = -1
        self._listening = False
        self._ended = False
        self._ending = threading.Lock()
        """Lock for taking the exit status, reading the rest of the output and closing files."""
        self._reason = ""
        self._trimming: asyncio.TimerHandle | None = None
        self._ready: socket.socket | None = None
        self._replies_due = 0
        """Outstanding replies of the model's ``is_ready``."""

    def __repr__(self) -> str:
        return f"WorkerProcess({self.label}, process {self.process.pid})"

    def rename(self, label: str) -> None:
        self.label = self._output.label = label

    # Start. On a loading thread

    def spawn(self, python: str, variables: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
        """Start the process and listen to it. Raises OSError if the interpreter cannot be run."""
        name = self.label.encode("ascii", "replace").decode()
        servers, workers = arena.new_file(f"{name} in"), arena.new_file(f"{name} out")
        self.arena, self._mirror = arena.Arena(servers, wire.SERVERS), arena.Mirror(workers)
        ours, theirs = socket.socketpair()
        self._ready, ready = socket.socketpair()
        lifeline, held = os.pipe()
        output, written = os.pipe()
        passed = (theirs.fileno(), servers, workers, lifeline, ready.fileno())
        self._socket, self._output = ours, WorkerOutput(output, self.label)
        self._fds = [held]
        ours.setblocking(False)
        self._ready.setblocking(False)
        try:
            self.process = subprocess.Popen(
                [python, *arguments, str(_MAIN), *map(str, passed)],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                pass_fds=passed,
                env=dict(variables),
                process_group=0,  # not a session, to which Linux would give its own CPU share (autogroup)
            )
        except BaseException:
            self._close_all()
            raise
        finally:
            theirs.close()
            ready.close()
            os.close(lifeline)
            os.close(written)
        self._pidfd = exits.file_of(self.process.pid)
        self.loop.call_soon_threadsafe(self._listen)

    def ask(self, kind: int, value: Any, timeout_s: float | None = None) -> Any:
        """Send a question and wait for the result. Not on the event loop's thread.

        Raises `InstanceLostError` if the process ends, TimeoutError, and `WorkerFailedError`.
        """
        future: Future[Any] = Future()
        self.loop.call_soon_threadsafe(self._put, future, kind, value)
        end = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while True:
                left = 1.0 if end is None else min(1.0, end - time.monotonic())
                try:
                    return future.result(max(0.0, left))
                except (FutureTimeoutError, TimeoutError):
                    if future.done():
                        raise
                    if self.loop.is_closed():
                        raise unavailable("the server has ended") from None
                    if end is not None and time.monotonic() >= end:
                        raise TimeoutError(f"{self.label} did not respond within {timeout_s:g} s") from None
        finally:
            del future  # breaks the cycle with its exception's traceback, which has this frame

    # Communication, on the event loop's thread

    def _put(self, future: "Future[Any]", kind: int, value: Any) -> None:
        if self._ended:
            future.set_exception(InstanceLostError(f"{self.label} has ended"))
            return
        self._questions.append(future)
        self.send(wire.json_frame(kind, value))

    def _listen(self) -> None:
        if self._ended:
            return
        self._listening = True
        self.loop.add_reader(self._socket.fileno(), self._read)
        self.loop.add_reader(self._output.fd, self._read_output)
        if self._pidfd >= 0:
            self.loop.add_reader(self._pidfd, self._on_exit)

    def send_soon(self, frame: bytes) -> None:
        """Send with other frames before the event loop's next poll, for a busy process."""
        if not self._soon:
            self.loop.call_soon(self.send, b"")
        self._soon.append(frame)

    def send(self, frame: bytes) -> None:
        """Send without blocking. Frames for an ended process are dropped; `stop` sends to one that is ending."""
        if self._soon:
            frame = b"".join([*self._soon, frame])
            self._soon.clear()
        if self._ended or not frame:
            self._last_words.append(frame)
            return
        forgotten = self.arena.take_forgotten()
        if forgotten:
            frame = wire.offsets_frame(MessageKind.FORGET, forgotten) + frame
        released = self._mirror.take_released()
        if released:
            frame += wire.offsets_frame(MessageKind.RELEASE, released)
        if self._unsent:
            self._unsent += frame
            return
        try:
            sent = self._socket.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # `_read` handles the end of the connection
        if sent < len(frame):
            self._unsent += memoryview(frame)[sent:]
            self.loop.add_writer(self._socket.fileno(), self._write)

    def _write(self) -> None:
        try:
            with memoryview(self._unsent) as unsent:
                sent = self._socket.send(unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self.loop.remove_writer(self._socket.fileno())

    def _read(self) -> bool:
        """Read once; returns whether there may be more to read."""
        try:
            more = self._take_some()
        except BlockingIOError:
            return False
        except OSError:
            more = False
        if not more:
            self._on_socket_end()
        return more

    def _take_some(self) -> bool:
        """Read once. Returns False at the end of all valid data. Raises OSError like a socket."""
        count = self._socket.recv_into(self._frames.room())
        return count > 0 and self._receive(count)

    def _receive(self, count: int) -> bool:
        """Process received frames. Returns False after an invalid one, as later frames cannot be trusted."""
        try:
            for frame in self._frames.take_in(count):
                self.takers[frame[0]](frame)
        except Exception as error:
            _log.exception("%s sent data that the server does not understand, and is killed", self.label)
            self.kill_because(f"it sent data that the server does not understand: {type(error).__name__}: {error}")
            return False
        return True

    def _release(self, frame: Frame) -> None:
        for offset in wire.read_offsets(frame[3]):
            self.arena.release(offset)

    def _forget(self, frame: Frame) -> None:
        for offset in wire.read_offsets(frame[3]):
            self._mirror.forget(offset)

    def records(self, frame: Frame) -> list[Record]:
        _, count, inline_at, body = frame
        return read_records(body, count, inline_at, self.descriptions, self._fetch)

    def _fetch(self, location: Location) -> memoryview:
        self.trim_later()
        if location.memory == wire.SERVERS:
            return memoryview(self.arena.hold(location))
        return memoryview(self._mirror.fetch(location))

    def trim_later(self) -> None:
        """Return free shared memory to the system some time after its use."""
        if self._trimming is None and not self._ended:
            self._trimming = self.loop.call_later(_TRIM_S, guard("shared_memory", self._trim))

    def _trim(self) -> None:
        self._trimming = None
        self.arena.trim()
        self.send(wire.HEADER.pack(0, MessageKind.TRIM, 0, 0))
        if self.arena.mapped:
            self.trim_later()

    def _read_output(self) -> None:
        if not self._output.read() and self._listening:
            self.loop.remove_reader(self._output.fd)

    async def check_ready(self, timeout_s: float) -> bool:
        """Return the result of the model's ``is_ready``. Raises TimeoutError."""
        assert self._ready is not None
        self._replies_due += 1
        await self.loop.sock_sendall(self._ready, b"?")
        async with asyncio.timeout(timeout_s):
            while True:
                said = await self.loop.sock_recv(self._ready, 1)
                # A late reply belongs to an earlier question.
                self._replies_due -= 1
                if not self._replies_due or not said:
                    return said == b"1"

    # The end

    def _on_exit(self) -> None:
        """Read the remaining data after the process's end. Its socket may still be open in an orphaned child."""
        for _ in range(_LAST_READS):
            if not self._read():
                break
        if self._listening:
            self._on_socket_end()

    def _on_socket_end(self) -> None:
        """Handle the end of the socket: the process has ended, or is about to."""
        questions, self._questions = self._questions, deque()
        self.end()
        # Not on the event loop's own threads, which copy large tensors.
        threading.Thread(target=self._wait, args=(questions,), name=f"end-{self.process.pid}", daemon=True).start()

    def _wait(self, questions: "deque[Future[Any]]") -> None:
        how = self._describe_end()
        with contextlib.suppress(RuntimeError):  # the event loop has closed
            self.loop.call_soon_threadsafe(self._tell, questions, how)

    def _tell(self, questions: "deque[Future[Any]]", how: str) -> None:
        error = InstanceLostError(how)
        for question in questions:
            question.set_exception(error)
        self.on_end(error)

    def _describe_end(self) -> str:
        """Wait for the end of the process and describe its cause. Any thread."""
        by_itself = exits.wait(self.process, time.monotonic() + _EXIT_S)
        with self._ending:
            self._reap()
            self._output.read_rest()
        how = exits.describe(self.process.returncode) if by_itself else "closed its connection and was killed"
        how = self._reason or how
        return f"its process {self.process.pid} {how}{self._output.last()}"

    def _reap(self) -> None:
        """Kill the process group, including the model's children, and take the exit status."""
        self.kill()
        self.process.wait()

    def kill_because(self, reason: str) -> None:
        """Kill the process; the event loop notices the end of the socket."""
        self._reason = f"was killed: {reason}"
        self.kill()

    def kill(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Detach from the event loop. May be called again."""
        self._ended = True
        if self._listening:
            self._listening = False
            self.loop.remove_reader(self._socket.fileno())
            self.loop.remove_writer(self._socket.fileno())
            self.loop.remove_reader(self._output.fd)
            if self._pidfd >= 0:
                self.loop.remove_reader(self._pidfd)
        if self._trimming is not None:
            self._trimming.cancel()
        while self._questions:
            self._questions.popleft().set_exception(InstanceLostError(f"{self.label} was closed"))

    def stop(self, timeout_s: float) -> None:
        """Finalize the model and end the process, by force after `timeout_s`. Not on the event loop's thread."""
        self._end_on_loop()
        if self.process.returncode is None:
            stop = wire.HEADER.pack(0, MessageKind.STOP, 0, 0)
            words = self._last_words = deque([bytes(self._unsent), stop])
            end = time.monotonic() + timeout_s
            exits.converse(self._socket, self._output, words, self._take_some, end)
            if not exits.wait(self.process, min(end, time.monotonic() + _EXIT_S)):
                _log.warning("%s did not end within %g s and is killed", self.label, timeout_s)
            with self._ending:
                self._reap()
                self._output.read_rest()
        with self._ending:
            self._close_all()

    def _end_on_loop(self) -> None:
        ended = threading.Event()
        try:
            self.loop.call_soon_threadsafe(self.end)
            self.loop.call_soon_threadsafe(ended.set)
        except RuntimeError:
            return  # the event loop has closed
        while not ended.wait(1.0) and not self.loop.is_closed():
            pass

    def _close_all(self) -> None:
        for fd in self._fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds = []
        self.arena.close()
        self._mirror.close()
        self._output.close()
        # Break reference cycles: the cyclic garbage collector may run late.
        self.takers.clear()
        self.on_end = lambda error: None
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self._socket.close()
        if self._ready is not None:
            self._ready.close()
