"""Asks a server for its health all the time, beside a control that is no more than an echo.

``python probe.py`` reads a line ``PID PORT`` from its standard input, prints a line when it has begun to ask, goes on
until another line comes, and then prints its findings as a line of JSON; and so on, until its standard input ends. It
is a process of its own, so that what the test itself does cannot make it late.

On a busy machine an answer may be late although the server did nothing wrong. Three measurements tell the two apart:
the CPU time that the server used while the answer was due (a server that holds its event loop computes meanwhile), the
time in which its event loop's thread was ready to run and got no core, and an echo server, which waited as long as the
machine made everybody wait.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

HOST = "127.0.0.1"
_PERIOD = 0.005
"""Seconds between an answer and the next question."""
_REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: probe\r\n\r\n"
_PATIENCE = 60.0


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have computed so far: Linux numbers the CPU clocks of other processes so."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:  # it is gone
        return 0.0


def queue_seconds(pid: int) -> float:
    """How long a process's first thread, which runs its event loop, has been ready to run while no core was free."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):  # the process is gone, or the system does not count it
        return 0.0


@dataclass
class Lane:
    """One connection, on which one question is open at a time."""

    connection: socket.socket
    question: bytes
    expected: bytes
    asked: float = 0.0
    """When the open question was sent; 0: none is open."""
    cpu: float = 0.0
    queued: float = 0.0
    next: float = 0.0
    samples: list[tuple[float, float, float, float]] = field(default_factory=list)
    """When it was asked and answered; in between, the server's CPU time, and its loop's time of waiting for a core."""
    failure: str = ""


def watch(pid: int, port: int, control_port: int) -> dict[str, object]:
    """What became of all questions until a line came from standard input."""
    ending = 0.0
    with (
        socket.create_connection((HOST, port), _PATIENCE) as to_server,
        socket.create_connection((HOST, control_port), _PATIENCE) as to_control,
        selectors.DefaultSelector() as selector,
    ):
        lanes = [Lane(to_server, _REQUEST, b"HTTP/1.1 200 "), Lane(to_control, b"?", b"?")]
        server, control = lanes
        for lane in lanes:
            lane.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(lane.connection, selectors.EVENT_READ, lane)
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        announced = False
        while not (ending and not server.asked) and not server.failure:
            now = time.monotonic()
            if ending and now > ending + _PATIENCE:
                server.failure = f"no answer for {_PATIENCE:.0f} s"
                server.samples.append((server.asked, now, cpu_seconds(pid) - server.cpu, 0.0))
                break
            for lane in lanes:
                if not lane.asked and now >= lane.next and not ending:
                    lane.cpu, lane.queued = cpu_seconds(pid), queue_seconds(pid)
                    lane.asked = time.monotonic()
                    try:
                        lane.connection.sendall(lane.question)
                    except OSError as error:
                        lane.failure = f"the kept connection broke: {error}"
            for key, _ in selector.select(_PERIOD):
                if key.data is None:
                    _line()
                    ending = time.monotonic()
                    selector.unregister(sys.stdin)
                    continue
                _take(key.data, pid)
            if not announced and server.samples:
                print("watching", flush=True)
                announced = True
    if control.asked:
        control.samples.append((control.asked, time.monotonic(), 0.0, 0.0))
    return {"failure": server.failure, "server": server.samples, "control": control.samples}


def _take(lane: Lane, pid: int) -> None:
    try:
        answer = lane.connection.recv(65536)
    except OSError as error:
        answer, lane.failure = b"", f"the kept connection broke: {error}"
    now = time.monotonic()
    if lane.asked:
        lane.samples.append((lane.asked, now, cpu_seconds(pid) - lane.cpu, queue_seconds(pid) - lane.queued))
    if not answer.startswith(lane.expected):
        lane.failure = lane.failure or f"health answered {answer[:80]!r}"
    lane.asked, lane.next = 0.0, now + _PERIOD


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        while data := await reader.read(64):
            writer.write(data)


def echo(parent: Connection, parents_end: Connection) -> None:
    """The control: an event loop that has nothing else to do, as long as its parent lives."""
    parents_end.close()
    os.dup2(os.open(os.devnull, os.O_RDWR), sys.stdout.fileno())

    async def run() -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(parent.fileno(), ended.set)
        async with await asyncio.start_server(_echo, HOST, 0) as listening:
            parent.send(listening.sockets[0].getsockname()[1])
            await ended.wait()
            os._exit(0)

    asyncio.run(run())


def _line() -> str:
    """The next line of standard input, of which nothing beyond is read; empty at its end."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(sys.stdin.fileno(), 1)):
        line += byte
    return line.decode()


def main() -> None:
    here, there = multiprocessing.Pipe()
    control = multiprocessing.get_context("fork").Process(target=echo, args=(there, here), daemon=True)
    control.start()
    there.close()
    try:
        control_port = here.recv()
        while line := _line():
            pid, port = map(int, line.split())
            print(json.dumps(watch(pid, port, control_port)), flush=True)
    finally:
        control.kill()
        control.join()


if __name__ == "__main__":
    main()
