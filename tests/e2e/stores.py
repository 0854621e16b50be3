"""In front of stores on loopback, for the tests of remote repositories: a relay with faults, and a web server."""

import base64
import contextlib
import http.client
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class Relay:
    """Hands requests on to another server, and does to them what the test says.

    `faults` are by regular expression, searched in the path of a request: ``down`` ends the connection, ``403``
    refuses, ``cut`` sends half of the body, ``stall`` does so and then waits, ``more`` lies about sizes in a listing,
    ``wrong`` changes a byte, another one each time.
    """

    def __init__(self, target: str) -> None:
        self.faults: dict[str, str] = {}
        self.requests: list[tuple[str, Mapping[str, str]]] = []
        """Path and headers of each request."""
        self.as_google = False
        """Whether keys arrive with their slashes encoded, which moto would not take."""
        self._target = target.removeprefix("http://")
        self._released = threading.Event()
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with contextlib.suppress(OSError):
                    relay._handle(self)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def paths(self) -> list[str]:
        return [path.partition("?")[0] for path, _ in self.requests]

    def close(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append((request.path, dict(request.headers)))
        fault = next((fault for pattern, fault in self.faults.items() if re.search(pattern, request.path)), "")
        if fault == "down":
            request.close_connection = True
            return
        if fault == "403":
            body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            self._send(request, 403, {"Content-Type": "application/xml"}, body, len(body))
            return
        connection = http.client.HTTPConnection(self._target)
        try:
            path, mark, query = request.path.partition("?")
            path = (unquote(path) if self.as_google else path) + mark + query
            connection.request(request.command, path, headers=dict(request.headers))
            response = connection.getresponse()
            body, headers = response.read(), dict(response.headers)
        finally:
            connection.close()
        if fault == "more":
            body = re.sub(rb"<Size>(\d+)</Size>", lambda size: b"<Size>%d</Size>" % (int(size[1]) + 5), body)
        if fault == "wrong":
            place = len(self.requests)
            body = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        length = int(headers["Content-Length"]) if request.command == "HEAD" else len(body)
        if fault in ("cut", "stall"):
            body = body[: len(body) // 2]
            request.close_connection = True
        self._send(request, response.status, headers, b"" if request.command == "HEAD" else body, length)
        if fault == "stall":
            request.wfile.flush()
            self._released.wait()

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, headers: Mapping[str, str], body: bytes, length: int
    ) -> None:
        request.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                request.send_header(name, value)
        request.send_header("Content-Length", str(length))
        request.end_headers()
        request.wfile.write(body)


@contextmanager
def relay_to(target: str) -> Iterator[Relay]:
    made = Relay(target)
    try:
        yield made
    finally:
        made.close()


class Web:
    """Serves some files by their names, to whoever has the password, if there is one."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.password = ""
        self.statuses: list[int] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web._handle(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.partition("?")[0].removeprefix("/")
        content = self.files.get(name)
        tag = f'"{hash(content)}"'
        token = base64.b64encode(f"me:{self.password}".encode()).decode()
        if self.password and request.headers["Authorization"] != f"Basic {token}":
            status = 401
        elif content is None:
            status = 404
        else:
            status = 304 if request.headers["If-None-Match"] == tag else 200
        body = content if status == 200 and content is not None else b""
        self.statuses.append(status)
        request.send_response_only(status)
        request.send_header("ETag", tag)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)


@contextmanager
def web() -> Iterator[Web]:
    made = Web()
    try:
        yield made
    finally:
        made.close()
