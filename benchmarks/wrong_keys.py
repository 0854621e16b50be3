"""Sends wrong keys at a fixed rate, whatever the server answers: ``python benchmarks/wrong_keys.py PORT RATE SECONDS``.

A request goes out on a connection that is free, or on a new one, up to `MOST` of them: a server that lets failures wait
is asked all the same. Prints JSON: what was sent, what was answered, by status, and what no connection was free for.
"""

import json
import selectors
import socket
import sys
import time
from collections import Counter

MOST = 9_000
"""Below the connections that a server takes by default: healthy clients need one, too."""


class Attack:
    def __init__(self, port: int) -> None:
        self._place = ("127.0.0.1", port)
        self._selector = selectors.DefaultSelector()
        self._free: list[socket.socket] = []
        self._open = 0
        self._numbers = 0
        self.sent = 0
        self.without_connection = 0
        self.statuses: Counter[str] = Counter()

    def send(self, count: int) -> None:
        for _ in range(count):
            if not self._free and not self._connect():
                self.without_connection += 1
                continue
            self._numbers += 1
            connection = self._free.pop()
            head = b"GET /v2 HTTP/1.1\r\nHost: x\r\nx-api-key: msk_wrong_%d\r\n\r\n" % self._numbers
            try:
                connection.send(head)
                self.sent += 1
            except OSError:
                self._lose(connection)

    def read(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            try:
                data = connection.recv(65536)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                self._lose(connection)
                continue
            self.statuses[data[9:12].decode("latin-1")] += 1
            self._free.append(connection)

    def _connect(self) -> bool:
        if self._open >= MOST:
            return False
        try:
            connection = socket.create_connection(self._place, 5)
        except OSError:
            return False
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ)
        self._open += 1
        self._free.append(connection)
        return True

    def _lose(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
        self._open -= 1
        if connection in self._free:
            self._free.remove(connection)


def main() -> None:
    port, rate, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    attack = Attack(port)
    start, due = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < seconds:
        count = int(passed * rate) - due
        due += count
        attack.send(min(count, 200))  # what is left out when this process gets no core is not made up for
        attack.read(0.001)
    print(
        json.dumps(
            {
                "sent_a_second": round(attack.sent / seconds),
                "answered_a_second": {name: round(count / seconds) for name, count in sorted(attack.statuses.items())},
                "without_connection_a_second": round(attack.without_connection / seconds),
            }
        )
    )


if __name__ == "__main__":
    main()
