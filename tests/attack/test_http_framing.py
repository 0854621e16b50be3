"""Where one request ends and the next begins: whatever two readers could understand differently is refused."""

import re
import time
from dataclasses import dataclass
from typing import Final

import pytest
from server_process import ServerProcess

from attack.measuring import Limits, attacked
from attack.sending import GOOD, INFER, assert_answers, dialled, exchange, read_to_end, statuses

BAD: Final = frozenset({400})
UNIMPLEMENTED: Final = frozenset({400, 501})
VERSION: Final = frozenset({400, 505})
OK: Final = frozenset({200})

_NEXT = b"GET /v2/health/live HTTP/1.1\r\nHost: next\r\nConnection: close\r\n\r\n"
"""Behind each request: answered if that one was understood, and never seen if it was refused."""


@dataclass(frozen=True)
class Row:
    """A request: `head` are its lines, where ``<n>`` is the length of a good body, in ``payload`` as ``<body>``."""

    name: str
    head: str
    payload: str = "<body>"
    right: frozenset[int] = BAD
    line: str = "POST <path> HTTP/1.1"
    host: str = "Host: localhost\r\n"
    last: bool = False
    """Although it is answered, the connection ends with it."""


_CL = "Content-Length: <n>"
_TE = "Transfer-Encoding: chunked"
_CHUNKS = "<hex>\r\n<body>\r\n0\r\n\r\n"

ROWS: Final = (
    # A length twice, or in two ways (RFC 9112, 6.1 and 6.3)
    Row("a length and chunks", f"{_CL}\r\n{_TE}", _CHUNKS),
    Row("chunks and a length", f"{_TE}\r\n{_CL}", _CHUNKS),
    Row("chunks and length 0", f"{_TE}\r\nContent-Length: 0", _CHUNKS),
    Row("a length twice, different", f"{_CL}\r\nContent-Length: 1"),
    Row("a length twice, 0 first", f"Content-Length: 0\r\n{_CL}"),
    Row("a length twice, alike", f"{_CL}\r\n{_CL}", right=BAD | OK),
    Row("a list of lengths", "Content-Length: <n>, 1"),
    Row("a list of lengths, alike", "Content-Length: <n>, <n>", right=BAD | OK),
    # Lengths that are no number
    Row("a length with plus", "Content-Length: +<n>"),
    Row("a length with minus", "Content-Length: -<n>"),
    Row("a length minus zero", "Content-Length: -0", ""),
    Row("a length in hex", "Content-Length: 0x10"),
    Row("a length with an exponent", "Content-Length: 1e2"),
    Row("a length with a point", "Content-Length: <n>.0"),
    Row("a length in quotes", 'Content-Length: "<n>"'),
    Row("an empty length", "Content-Length:"),
    Row("a length of spaces", "Content-Length:    "),
    Row("a length with a space in it", "Content-Length: 1 0"),
    Row("a length with a semicolon", "Content-Length: <n>;"),
    Row("a length with a letter", "Content-Length: <n>a"),
    Row("a length beyond 64 bits", "Content-Length: 18446744073709551617"),
    Row("a length of 400 digits", "Content-Length: " + "9" * 400),
    Row("a length with an underscore", "Content-Length: 1_0"),
    Row("a length in other digits", "Content-Length: \u00b2"),
    # Names of headers that are nearly right
    Row("a space before the colon of a length", "Content-Length : <n>"),
    Row("a space before the colon of an encoding", "Transfer-Encoding : chunked", _CHUNKS),
    Row("a space before the name", f" {_CL}"),
    Row("a tab before the name", f"\t{_CL}"),
    Row("a folded length", "Content-Length:\r\n <n>"),
    Row("a folded encoding", "Transfer-Encoding:\r\n chunked", _CHUNKS),
    Row("a NUL in a name", f"Content\0-Length: 1\r\n{_CL}"),
    Row("a NUL in a value", f"X: a\0b\r\n{_CL}"),
    Row("a NUL in a length", "Content-Length: <n>\0"),
    Row("a bare return in a value", f"X: a\rb\r\n{_CL}"),
    Row("a bare return before a length", f"X: a\r{_CL}"),
    Row("a bare line feed before an encoding", f"X: a\n{_TE}\r\n{_CL}", _CHUNKS),
    Row("a name without a colon", f"Nothing\r\n{_CL}"),
    Row("an empty name", f": x\r\n{_CL}"),
    Row("a name with a slash", f"a/b: x\r\n{_CL}"),
    # Encodings other than chunked (RFC 9112, 6.1)
    Row("another encoding", "Transfer-Encoding: xchunked", _CHUNKS, UNIMPLEMENTED),
    Row("identity", f"Transfer-Encoding: identity\r\n{_CL}", right=UNIMPLEMENTED),
    Row("gzip, chunked", "Transfer-Encoding: gzip, chunked", _CHUNKS, UNIMPLEMENTED),
    Row("identity, chunked", "Transfer-Encoding: identity, chunked", _CHUNKS, UNIMPLEMENTED),
    Row("chunked, gzip", "Transfer-Encoding: chunked, gzip", _CHUNKS, UNIMPLEMENTED),
    Row("chunked twice", "Transfer-Encoding: chunked, chunked", _CHUNKS, UNIMPLEMENTED),
    Row("chunked in two headers", f"{_TE}\r\n{_TE}", _CHUNKS, UNIMPLEMENTED),
    Row("gzip and chunked in two headers", f"Transfer-Encoding: gzip\r\n{_TE}", _CHUNKS, UNIMPLEMENTED),
    Row("chunked in quotes", 'Transfer-Encoding: "chunked"', _CHUNKS, UNIMPLEMENTED),
    Row("chunked with a comma", "Transfer-Encoding: chunked,", _CHUNKS, UNIMPLEMENTED | OK),
    Row("chunked behind a vertical tab", "Transfer-Encoding: \vchunked", _CHUNKS, UNIMPLEMENTED),
    Row("chunked before a NUL", "Transfer-Encoding: chunked\0", _CHUNKS, UNIMPLEMENTED),
    Row("chunked with a parameter", "Transfer-Encoding: chunked;a=b", _CHUNKS, UNIMPLEMENTED),
    Row("an empty encoding", f"Transfer-Encoding:\r\n{_CL}", right=UNIMPLEMENTED),
    Row("chunks with HTTP/1.0", _TE, _CHUNKS, UNIMPLEMENTED, "POST <path> HTTP/1.0"),
    Row("chunked in capitals", "TRANSFER-ENCODING: CHUNKED", _CHUNKS, OK),
    # Chunks (RFC 9112, 7.1)
    Row("a chunk size with plus", _TE, "+<hex>\r\n<body>\r\n0\r\n\r\n"),
    Row("a chunk size with minus", _TE, "-<hex>\r\n<body>\r\n0\r\n\r\n"),
    Row("a chunk size with 0x", _TE, "0x<hex>\r\n<body>\r\n0\r\n\r\n"),
    Row("a chunk size behind a space", _TE, " <hex>\r\n<body>\r\n0\r\n\r\n"),
    Row("a chunk size with an underscore", _TE, "0_<hex>\r\n<body>\r\n0\r\n\r\n"),
    Row("a chunk size beyond 64 bits", _TE, "10000000000000002\r\n<body>\r\n0\r\n\r\n"),
    Row("a chunk size of 32 digits", _TE, "f" * 32 + "\r\n<body>\r\n0\r\n\r\n"),
    Row("an empty chunk size", _TE, "\r\n<body>\r\n0\r\n\r\n"),
    Row("a chunk size that is none", _TE, "zz\r\n<body>\r\n0\r\n\r\n"),
    Row("a chunk that is too long", _TE, "1\r\n<body>\r\n0\r\n\r\n"),
    Row("a chunk without its end", _TE, "<hex>\r\n<body>0\r\n\r\n"),
    Row("a chunk size ended by a line feed", _TE, "<hex>\n<body>\r\n0\r\n\r\n"),
    Row("a line feed in an extension", _TE, "<hex>;a\nb\r\n<body>\r\n0\r\n\r\n"),
    Row("a return in an extension", _TE, "<hex>;a\rb\r\n<body>\r\n0\r\n\r\n"),
    Row("a chunk ended by a line feed", _TE, "<hex>\r\n<body>\n0\r\n\r\n"),
    Row("an extension", _TE, '<hex>;a="b"\r\n<body>\r\n0\r\n\r\n', OK),
    Row("a chunk size with zeros before it", _TE, "000<hex>\r\n<body>\r\n000\r\n\r\n", OK),
    Row("trailers", _TE, "<hex>\r\n<body>\r\n0\r\nX-Sum: 1\r\n\r\n", OK),
    Row("a trailer that is a length", _TE, "<hex>\r\n<body>\r\n0\r\nContent-Length: 5\r\n\r\n", OK | BAD),
    Row("a trailer that is an encoding", _TE, "<hex>\r\n<body>\r\n0\r\nTransfer-Encoding: x\r\n\r\n", OK | BAD),
    Row("a trailer without a colon", _TE, "<hex>\r\n<body>\r\n0\r\nnothing\r\n\r\n"),
    # Hosts (RFC 9112, 3.2)
    Row("no host", _CL, host=""),
    Row("two hosts", _CL, host="Host: a\r\nHost: b\r\n"),
    Row("two hosts, alike", _CL, host="Host: a\r\nHost: a\r\n"),
    Row("a host with a space", _CL, host="Host: a b\r\n"),
    Row("a host with a slash", _CL, host="Host: a/b\r\n"),
    Row("a host with a user", _CL, host="Host: a@b\r\n"),
    Row("a host with a port", _CL, host="Host: a:80\r\n", right=OK),
    Row("a host that is an address", _CL, host="Host: [::1]:80\r\n", right=OK),
    Row("no host in HTTP/1.0", _CL, host="", line="POST <path> HTTP/1.0", right=OK, last=True),
    # Request lines
    Row("HTTP/2.0", _CL, line="POST <path> HTTP/2.0", right=VERSION),
    Row("HTTP/0.9", _CL, line="POST <path> HTTP/0.9", right=VERSION),
    Row("HTTP/1.10", _CL, line="POST <path> HTTP/1.10", right=VERSION),
    Row("HTTP/11", _CL, line="POST <path> HTTP/11", right=VERSION),
    Row("no version", _CL, line="POST <path>", right=VERSION),
    Row("http in small letters", _CL, line="POST <path> http/1.1", right=VERSION),
    Row("two spaces", _CL, line="POST  <path> HTTP/1.1", right=BAD | OK),
    Row("a tab", _CL, line="POST\t<path> HTTP/1.1"),
    Row("a space in the path", _CL, line="POST <path> x HTTP/1.1"),
    Row("a NUL in the path", _CL, line="POST <path>\0 HTTP/1.1"),
    Row("a method that is none", _CL, line="P<OST <path> HTTP/1.1"),
    Row("no method", _CL, line=" <path> HTTP/1.1"),
    Row("CONNECT with a body", _CL, _NEXT.decode(), frozenset({400, 405, 501}), "CONNECT localhost:80 HTTP/1.1",
        last=True),
    Row("the preface of HTTP/2", "", "SM\r\n\r\n", VERSION | {405, 501}, "PRI * HTTP/2.0", host="", last=True),
    # Rightly framed
    Row("a length", _CL, right=OK),
    Row("a length with zeros before it", "Content-Length: 000<n>", right=OK),
    Row("chunks", _TE, _CHUNKS, OK),
    Row("an upgrade nobody speaks", f"{_CL}\r\nUpgrade: h2c\r\nConnection: Upgrade", right=OK),
)  # fmt: skip


def spelled(row: Row, path: str, body: bytes) -> bytes:
    def filled(text: str) -> bytes:
        data = text.encode("latin-1")
        for mark, value in ((b"<n>", b"%d" % len(body)), (b"<hex>", b"%x" % len(body)), (b"<path>", path.encode())):
            data = data.replace(mark, value)
        return data.replace(b"<body>", body)

    return filled(f"{row.line}\r\n{row.host}{row.head}\r\n\r\n{row.payload}")


PATHS: Final = {"infer": (INFER, GOOD), "index": ("/v2/repository/index", b"{}")}


@pytest.mark.parametrize("where", PATHS)
def test_framing(server: ServerProcess, where: str) -> None:
    """An inference has a shorter way through the server than other requests; both must refuse the same."""
    path, body = PATHS[where]
    wrong = []
    with attacked(server, f"framing, {where}", Limits(peak_mb=64)):
        for row in ROWS:
            answer = exchange(server.http_port, spelled(row, path, body) + _NEXT)
            found = statuses(answer)
            understood = bool(found) and found[0] == 200
            more = [200] if understood and not row.last else []
            if not found or found[0] not in row.right or found[1:] != more:
                wrong.append(f"{row.name}: {found}, expected one of {sorted(row.right)}")
    assert not wrong, "\n".join(wrong)
    assert_answers(server)


def test_a_head_that_is_remembered_is_framed_as_one_that_is_not(server: ServerProcess) -> None:
    """The same head a second time, with what comes behind it cut in other places."""
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (INFER.encode(), len(GOOD))
    with attacked(server, "remembered heads"), dialled(server.http_port) as connection:
        for data in (head + GOOD, head + GOOD + head, GOOD, head + GOOD[:5], GOOD[5:], (head + GOOD) * 3):
            connection.sendall(data)
            time.sleep(0.01)  # so that they arrive apart; both ways are right
        connection.sendall(_NEXT)
        answer = read_to_end(connection)
        assert statuses(answer) == [200] * 8
        assert len(re.findall(rb'"OUTPUT0"', answer)) == 7


CHUNKED: Final = b"POST /v2/repository/index HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
TOO_LARGE: Final = frozenset({400, 413, 431})


@pytest.mark.parametrize("line", [b"x: y\r\n", b"x: " + b"y" * 4000 + b"\r\n"], ids=["short", "long"])
def test_trailers_without_end(server: ServerProcess, line: bytes) -> None:
    with attacked(server, f"200 MB of trailers of {len(line)} B", Limits(peak_mb=48, cpu_seconds=2)):
        found = flooded(server, CHUNKED, line * (65536 // len(line)), 200 << 20)
    assert found[0] in TOO_LARGE
    assert len(found) == 1


def test_one_trailer_without_end(server: ServerProcess) -> None:
    with attacked(server, "one trailer line of 100 MB", Limits(peak_mb=48, cpu_seconds=2)):
        found = flooded(server, CHUNKED + b"x: ", b"y" * 65536, 100 << 20)
    assert found[0] in TOO_LARGE


@pytest.mark.parametrize(
    ("start", "block"),
    [(b"GET /", b"y"), (b"GET / HTTP/1.1\r\nHost: a\r\n", b"x: y\r\n"), (b"GET / HTTP/1.1\r\nHost: a\r\nx: ", b"y"),
     (b"", b"y"), (b"", b"\r\n"),
     (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"y"),
     (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
     (b"POST /v2/repository/index HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n")],
    ids=["a path", "headers", "a header", "a method", "empty lines", "an extension", "zeros", "chunks of one byte"],
)  # fmt: skip
def test_heads_without_end(server: ServerProcess, start: bytes, block: bytes) -> None:
    with attacked(server, f"50 MB of {block!r} behind {start[-20:]!r}", Limits(peak_mb=128, cpu_seconds=4)):
        found = flooded(server, start, block * (65536 // len(block)), 50 << 20)
    assert all(status in TOO_LARGE for status in found)


def flooded(server: ServerProcess, start: bytes, block: bytes, size: int) -> list[int]:
    """Of a request that goes on until the server has had enough."""
    with dialled(server.http_port) as connection:
        try:
            connection.sendall(start)
            for _ in range(size // len(block)):
                connection.sendall(block)
            connection.shutdown(1)
        except ConnectionError:
            pass
        return statuses(read_to_end(connection))


def test_extensions_of_many_chunks(server: ServerProcess) -> None:
    """A byte of body each, behind kilobytes that count for nothing."""
    start = b"POST /v2/repository/index HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    block = (b"1;" + b"e" * 4000 + b"\r\n \r\n") * 16
    with attacked(server, "50 MB of chunk extensions", Limits(peak_mb=64, cpu_seconds=3)):
        found = flooded(server, start, block, 50 << 20)
    assert all(status in TOO_LARGE for status in found)
