"""HTTP/1.1 responses in bytes."""

from collections.abc import Iterable
from http import HTTPStatus

from modserve.core.errors import ModserveError
from modserve.core.tensors.tensor import Buffer
from modserve.protocol import failures
from modserve.protocol.http import infer_response
from modserve.protocol.http.infer_response import Body
from modserve.protocol.http.request_head import RequestHead

_REASONS = {status.value: status.phrase for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def binary_head(media_type: bytes) -> bytes:
    """Return a template; `media_type` goes on with the header line, or its beginning, for the length of the JSON."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: " + media_type + b"Content-Length: %d\r\n%b\r\n"


BINARY_HEAD = binary_head(b"application/octet-stream\r\nInference-Header-Content-Length: %d\r\n")
JSON_HEAD = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n"
CLOSE = b"Connection: close\r\n"
KEEP_ALIVE = b"Connection: keep-alive\r\n"


def add_date(template: bytes, date: bytes) -> bytes:
    """Return one of the templates above with a header line for the date."""
    status, _, rest = template.partition(b"\r\n")
    return status + b"\r\n" + date + rest


def reason(status: int) -> bytes:
    return _REASONS.get(status, "Unknown").encode()


def persistence(keep_alive: bool, old: bool) -> bytes:
    """Return the Connection header, where HTTP/1.1's default does not say it already."""
    if not keep_alive:
        return CLOSE
    return KEEP_ALIVE if old else b""


def header_lines(head: RequestHead, request_id: str, last: bool, reports: dict[str, bytes]) -> bytes:
    """Return header lines for an inference's response: request id, origin, and the end of the connection.

    `reports`: of the server's load, by format, for requests that ask for one.
    """
    lines = head.cors + b"X-Request-ID: %b\r\n" % request_id.encode() if request_id else head.cors
    if head.report_format:
        lines += reports.get(head.report_format, b"")
    keep_alive = head.keep_alive and not last
    return lines + persistence(keep_alive, head.old) if head.old or not keep_alive else lines


def response_head(status: int, headers: Iterable[tuple[bytes, bytes]], lines: bytes) -> bytes:
    """Return the head of a response. `lines` are whole header lines that follow `headers`."""
    first = [b"HTTP/1.1 %d %b" % (status, reason(status)), *(name + b": " + value for name, value in headers)]
    return b"\r\n".join(first) + b"\r\n" + lines + b"\r\n"


def json_response(status: int, body: bytes, lines: bytes) -> bytes:
    return JSON_HEAD % (status, reason(status), len(body), lines) + body


def inference_response(
    outcome: Body | ModserveError, lines: bytes, json_head: bytes, binary_head: bytes, statuses: list[int]
) -> tuple[int, list[Buffer]]:
    """Return the length of the body; and the response in parts, of which the first is its head.

    `lines` are whole header lines. The heads are the templates above, with a date. Its status is counted in `statuses`.
    """
    if isinstance(outcome, ModserveError):
        body = infer_response.encode_error(outcome)
        for name, value in failures.headers(outcome).items():
            lines += b"%b: %b\r\n" % (name.encode(), value.encode())
        status = failures.spelling(outcome).http
        statuses[status] += 1
        return len(body), [json_head % (status, reason(status), len(body), lines), body]
    statuses[200] += 1
    size = sum(map(len, outcome.parts))
    if outcome.server_timing:
        lines += b"Server-Timing: %b\r\n" % outcome.server_timing.encode()
    if outcome.encoding is not None:
        lines += b"Content-Encoding: %b\r\n" % outcome.encoding.encode()
    if outcome.header_length is None:
        return size, [json_head % (200, b"OK", size, lines), *outcome.parts]
    return size, [binary_head % (outcome.header_length, size, lines), *outcome.parts]
