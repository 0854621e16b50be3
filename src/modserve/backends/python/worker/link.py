"""The worker's end of the socket pair. Any thread may send; one thread at a time reads, for all of them.

There is no dedicated reading thread. A waiting thread reads until its frame arrives, and passes other frames to `take`.
If several threads wait, one of them reads for the others. Thus a batch costs one wake-up of the worker, and so does the
response to a call from ``execute``.
"""

import asyncio
import socket
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from . import wire
from .arena import Arena, Mirror
from .records import Descriptions, OutgoingRecord, Record, read_records, write_records
from .wire import Frame, Location, MessageKind, RecordReader


class ServerLostError(BaseException):
    """The server has closed the connection or died."""


class Link:
    """Connection to the server. ``take(frame)`` is called for every frame on the reading thread; it must not block."""

    def __init__(self, sock: socket.socket, servers_memory: int, workers_memory: int) -> None:
        self.take: Callable[[Frame], None] = lambda frame: None
        self.descriptions = Descriptions()
        self.forked = False
        """True in a child process forked by the model. The connection belongs to the parent."""
        self._socket = sock
        self._frames = RecordReader()
        self._arena = Arena(workers_memory, wire.WORKERS)
        self._mirror = Mirror(servers_memory)
        # Reentrant: destructors of the API's objects send frames, and may run during any allocation.
        self._sending = threading.RLock()
        self._reading = threading.Lock()
        self._news = threading.Condition()
        self._followers = 0
        self._loops: Dict[asyncio.AbstractEventLoop, int] = {}
        self._held: Optional[List[bytes]] = None
        """Frames held back to be sent together; None if frames are sent at once."""

    def leave_to_parent(self) -> None:
        """Close the socket in a forked child: else the server misses the parent's end and receives from both."""
        self.forked = True
        self._socket.close()

    # Reading

    def wait(self, ready: Callable[[], Any]) -> None:
        """Read, or let another thread read, until ``ready()`` is true. Raises `ServerLostError`."""
        while not ready():
            if self._held:
                self.hold(True)
            if self._reading.acquire(blocking=False):
                try:
                    while not ready():
                        self._read()
                finally:
                    self._reading.release()
                    self._tell_followers()
            else:
                with self._news:
                    self._followers += 1
                    # The reader may have finished before this thread was counted.
                    if not ready() and self._reading.locked():
                        self._news.wait()
                    self._followers -= 1

    def look(self) -> None:
        """Read all received frames unless another thread reads. Does nothing while frames are held."""
        if self._held is None and self._reading.acquire(blocking=False):
            try:
                while self._read(socket.MSG_DONTWAIT):
                    pass
            finally:
                self._reading.release()
                self._tell_followers()

    def _read(self, flags: int = 0) -> bool:
        """Read once; returns whether there was any data."""
        try:
            count = self._socket.recv_into(self._frames.room(), 0, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ServerLostError(error.strerror) from error
        if not count:
            raise ServerLostError("it was closed")
        for frame in self._frames.take_in(count):
            kind = frame[0]
            if kind == MessageKind.RELEASE:
                for offset in wire.read_offsets(frame[3]):
                    self._arena.release(offset)
            elif kind == MessageKind.FORGET:
                for offset in wire.read_offsets(frame[3]):
                    self._mirror.forget(offset)
            elif kind == MessageKind.TRIM:
                self.trim()
            else:
                self.take(frame)
        self._tell_followers()
        return True

    def _tell_followers(self) -> None:
        if self._followers:
            with self._news:
                self._news.notify_all()

    # Reading by an idle event loop

    def join(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let this thread's event loop read as well, until `leave` has been called as often as `join`."""
        count = self._loops.get(loop, 0)
        if not count:
            loop.add_reader(self._socket.fileno(), self.look)
        self._loops[loop] = count + 1

    def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loops[loop] -= 1
        if not self._loops[loop]:
            del self._loops[loop]
            loop.remove_reader(self._socket.fileno())

    # Records

    def records(self, frame: Frame) -> List[Record]:
        _, count, inline_at, body = frame
        return read_records(body, count, inline_at, self.descriptions, self._fetch)

    def _fetch(self, location: Location) -> memoryview:
        return memoryview(self._mirror.fetch(location))

    # Sending

    @property
    def holds(self) -> bool:
        return self._held is not None

    def hold(self, on: bool) -> None:
        """Send held frames in one system call, and start or stop holding. A thread that waits sends all first."""
        with self._sending:
            held, self._held = self._held, [] if on else None
            if held:
                self._write(b"".join(held))

    def send(self, frame: bytes) -> None:
        with self._sending:
            self._send(frame)

    def send_records(self, kind: int, entries: Sequence[OutgoingRecord]) -> None:
        """Send a frame of records. Large elements are copied into shared memory."""
        with self._sending:
            self._send(write_records(self.descriptions, self._place, kind, entries))

    def _send(self, frame: bytes) -> None:
        forgotten = self._arena.take_forgotten()
        if forgotten:
            frame = wire.offsets_frame(MessageKind.FORGET, forgotten) + frame
        released = self._mirror.take_released()
        if released:
            frame += wire.offsets_frame(MessageKind.RELEASE, released)
        if self._held is None:
            self._write(frame)
        else:
            self._held.append(frame)

    def _write(self, frames: bytes) -> None:
        try:
            self._socket.sendall(frames)
        except OSError as error:
            raise ServerLostError(error.strerror) from error

    def trim(self) -> None:
        with self._sending:
            self._arena.trim()
            self._send(b"")

    def _place(self, elements: wire.Buffer, size: int) -> Optional[Location]:
        """Return the elements' location. Elements in the server's memory, such as a returned input, are not copied."""
        address: int = np.frombuffer(elements, np.uint8, 1).__array_interface__["data"][0]
        place = self._mirror.find(address, size)
        if place is not None:
            offset, capacity, start = place
            return Location(wire.SERVERS, offset, capacity, start, size)
        return self._arena.place(elements, size)
