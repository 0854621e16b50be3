"""HTTP/1.1 response heads."""

from collections.abc import Iterable
from http import HTTPStatus

_REASONS = {status.value: status.phrase for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

BINARY_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
    b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n%b\r\n"
)
JSON_HEAD = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n"
CLOSE = b"Connection: close\r\n"
KEEP_ALIVE = b"Connection: keep-alive\r\n"


def dated(template: bytes, date: bytes) -> bytes:
    """One of the templates above with a header line for the date."""
    status, _, rest = template.partition(b"\r\n")
    return status + b"\r\n" + date + rest


def reason(status: int) -> bytes:
    return _REASONS.get(status, "Unknown").encode()


def persistence(keep_alive: bool, old: bool) -> bytes:
    """The Connection header, where HTTP/1.1's default does not say it already."""
    if not keep_alive:
        return CLOSE
    return KEEP_ALIVE if old else b""


def head(status: int, headers: Iterable[tuple[bytes, bytes]], connection: bytes) -> bytes:
    """`connection` and whatever else are whole lines."""
    lines = [b"HTTP/1.1 %d %b" % (status, reason(status))]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n" + connection + b"\r\n"


def json_response(status: int, body: bytes, connection: bytes) -> bytes:
    return JSON_HEAD % (status, reason(status), len(body), connection) + body
