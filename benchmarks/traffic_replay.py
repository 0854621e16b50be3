"""A gRPC client that sends header blocks and messages as they were prepared, one call at a time on each connection.

    python benchmarks/traffic_replay.py PORT FILE CONNECTIONS SECONDS

`traffic.py` starts it. It makes each connection's first calls, prints a line, and waits for a line; then it goes on for
so many seconds, and prints the number of responses, the seconds, and the percentiles 50, 99 and 99.9 in microseconds. A
call that fails ends it with an error.
"""

import gc
import itertools
import pickle
import select
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modserve.commands.bench.http2 import frame

Call = tuple[bytearray, tuple[int, ...]]
"""Its frames, and where the number of its stream belongs."""


@dataclass
class Script:
    """What a connection sends: when it opens, calls at first, and others again and again."""

    opening: bytes
    first: Sequence[Call]
    again: Sequence[Call]


_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _ACK = 1, 1
_TABLE_SIZE, _TABLE_BYTES = 1, 4096
_PATIENCE_S = 60


class FailedError(Exception):
    """A response that is no success."""


class Connection:
    """A client's connection, with at most one call under way."""

    def __init__(self, port: int, script: Script) -> None:
        self.script = script
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = 0
        self._calls: Iterator[Call] = iter(())
        self._left = b""
        self._stream = -1
        self._message = False
        self.socket.sendall(script.opening)

    def take(self, calls: Iterable[Call]) -> bool:
        self._calls = iter(calls)
        return self.next()

    def stop(self) -> None:
        """Begin no other call; the present one still has its response."""
        self._calls = iter(())

    def next(self) -> bool:
        """Begin the next call; False if there is none."""
        call = next(self._calls, None)
        if call is None:
            return False
        data, places = call
        self._stream += 2
        number = self._stream.to_bytes(4, "big")
        for place in places:
            data[place : place + 4] = number
        self.sent = time.perf_counter_ns()
        self.socket.sendall(data)
        return True

    def answered(self) -> bool:
        """Read what is there, and say if the response is complete."""
        data = self.socket.recv(1 << 17)
        if not data:
            raise FailedError("the connection was closed")
        if self._left:
            data = self._left + data
        return self._read(data)

    def _read(self, data: bytes) -> bool:
        position, size, complete = 0, len(data), False
        while size - position >= 9:
            end = position + 9 + int.from_bytes(data[position : position + 3], "big")
            if end > size:
                break
            kind, flags = data[position + 3], data[position + 4]
            if kind == _DATA:
                self._message = True
            elif kind == _HEADERS:
                if flags & _END_STREAM:
                    if not self._message:  # an error has none
                        raise FailedError(f"a call has failed: {data[position:end]!r}")
                    self._message, complete = False, True
            elif kind in (_SETTINGS, _PING):
                self._reply(kind, flags, data[position + 9 : end])
            elif kind in (_RESET, _GOAWAY):
                raise FailedError(f"the server has ended it: {data[position:end]!r}")
            position = end
        self._left = data[position:]
        return complete

    def _reply(self, kind: int, flags: int, payload: bytes) -> None:
        if flags & _ACK:
            return
        if kind == _SETTINGS:
            settings = {
                payload[at + 1]: int.from_bytes(payload[at + 2 : at + 6], "big") for at in range(0, len(payload), 6)
            }
            if settings.get(_TABLE_SIZE, _TABLE_BYTES) < _TABLE_BYTES:
                raise FailedError("the server's table is smaller than the one that the blocks were written for")
        self.socket.sendall(frame(kind, _ACK, 0, payload if kind == _PING else b""))


def drive(connections: dict[int, Connection], end_ns: int = 1 << 63) -> list[int]:
    """Nanoseconds that each response took, until `end_ns`, or until no connection has another call."""
    times: list[int] = []
    busy, clock = len(connections), time.perf_counter_ns
    with select.epoll() as poll:
        for number in connections:
            poll.register(number, select.EPOLLIN)
        while busy and clock() < end_ns:
            ready = poll.poll(_PATIENCE_S)
            if not ready:
                raise FailedError("no response")
            for number, _ in ready:
                each = connections[number]
                if each.answered():
                    times.append(clock() - each.sent)
                    busy -= not each.next()
    return times


def main() -> None:
    port, count, seconds = int(sys.argv[1]), int(sys.argv[3]), float(sys.argv[4])
    scripts: list[Script] = pickle.loads(Path(sys.argv[2]).read_bytes())
    gc.disable()
    opened = [Connection(port, scripts[number % len(scripts)]) for number in range(count)]
    connections = {each.socket.fileno(): each for each in opened}
    for each in opened:
        each.take(each.script.first)
    drive(connections)
    print("warm", flush=True)
    sys.stdin.readline()
    began = time.perf_counter_ns()
    for each in opened:
        each.take(itertools.cycle(each.script.again))
    times = drive(connections, began + int(seconds * 1e9))
    taken = (time.perf_counter_ns() - began) / 1e9
    for each in opened:  # a connection that closes in the middle of a call has ended Triton
        each.stop()
    drive(connections)
    times.sort()
    percentiles = [times[min(len(times) - 1, int(len(times) * share))] / 1e3 for share in (0.5, 0.99, 0.999)]
    print(len(times), taken, *percentiles)


if __name__ == "__main__":
    main()
