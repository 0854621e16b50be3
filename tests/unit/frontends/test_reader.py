"""Requests out of bytes, without a connection; and the reader of heads beside httptools, which reads the same."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from puppet_server import JSON_BODY, infer, infer_binary, request

from modserve.core.requests.memory import MemoryBudget
from modserve.core.requests.trace_context import TraceHeaders
from modserve.frontends.http.wire.head import RefusedRequestError
from modserve.frontends.http.wire.head_reader import HeadFields, HeadReader
from modserve.frontends.http.wire.reader import BODY, HEAD, IDLE, Reader
from modserve.protocol.http.request_head import RequestHead
from modserve.protocol.restricted import Restriction
from modserve.settings import HttpSettings

OPTIONS = {
    "plain": HttpSettings(max_json=300),
    "forwarded": HttpSettings(max_json=300, header_pattern=re.compile("x-|trace|length", re.IGNORECASE)),
    "restricted": HttpSettings(max_json=300, restrictions={"inference": Restriction("X-Key", "open", "API")}),
    "cross-origin": HttpSettings(max_json=300, cors_allow_origin=frozenset({"http://a"})),
}


class Leaving(HeadReader):
    """Leaves each head to httptools."""

    def scan(self, data: bytes, start: int, whole: bool = False) -> HeadFields | None:
        return None


class Counting(HeadReader):
    """Counts the heads that it reads itself."""

    scanned = 0

    def scan(self, data: bytes, start: int, whole: bool = False) -> HeadFields | None:
        fields = super().scan(data, start, whole)
        self.scanned += fields is not None
        return fields


Event = tuple[RequestHead, bytes] | tuple[int, str, bytes]


def reader_with(heads: HeadReader, options: HttpSettings = OPTIONS["plain"], limit: int = 0) -> Reader:
    return Reader(heads, options, MemoryBudget(limit))


def heads_of(options: HttpSettings = OPTIONS["plain"]) -> Counting:
    return Counting(options)


def events(reader: Reader, *pieces: bytes) -> list[Event]:
    """What comes of the pieces: requests, until one that is the last by its head, or that is refused."""
    found: list[Event] = []
    for piece in pieces:
        reader.feed(piece)
        while reader.at < len(reader.rest):
            try:
                read = reader.read_piece()
            except RefusedRequestError as refused:
                return [*found, (refused.status, refused.message, reader.cors)]
            if read is not None:
                found.append((read[0], bytes(read[1])))
                if not read[0].keep_alive:
                    return found
    return found


def head_of(whole: bytes) -> bytes:
    return whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


# The states


def test_the_states_of_a_reader() -> None:
    reader = reader_with(heads_of())
    whole = infer()
    end = len(head_of(whole))
    for cut, state in ((0, IDLE), (5, HEAD), (end - 1, HEAD), (end, BODY), (len(whole) - 1, BODY)):
        reader = reader_with(heads_of())
        assert events(reader, whole[:cut]) == []
        assert (reader.state, reader.head is not None) == (state, state is BODY), cut
        ((head, body, *_),) = events(reader, whole[cut:])
        assert isinstance(head, RequestHead)
        assert (head.model, body, reader.state) == ("simple", JSON_BODY, IDLE)


def test_an_application_s_request() -> None:
    reader = reader_with(heads_of(), OPTIONS["forwarded"])
    ((head, body, *_),) = events(reader, request("PUT", "http://a/b?c", b"", X_Y="Z"))
    assert isinstance(head, RequestHead)
    assert (head.method, head.target, head.headers, head.as_sent, head.model, body) == (
        b"PUT",
        b"/b?c",
        [(b"host", b"localhost"), (b"x-y", b"Z")],
        [("Host", "localhost"), ("X-Y", "Z")],
        "",
        b"",
    )


@pytest.mark.parametrize("value", ["2 ", "02", "2\t ", "0002"])
def test_a_length_may_have_zeros_before_it_and_blanks_behind(value: str) -> None:
    for number in (value, value.replace("2", "0")):
        head = f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {number}\r\n\r\n".encode()
        (event, *more) = events(reader_with(heads_of()), head + b"ab"[: int(number)])
        assert (event[1], more) == (b"ab"[: int(number)], [])


# The reader of heads

VOLATILE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "x-envoy-attempt-count": "1",
    "User-Agent": "python-httpx/0.27.0",
    "Cookie": "a=b; c=\xe4",
    "X-Anything": "",
}


@pytest.mark.parametrize("cut", [False, True], ids=["in one read", "head and body apart"])
def test_a_head_is_known_by_the_lines_that_matter(cut: bool) -> None:
    """Proxies and clients add lines, write them in another order, and send other lengths."""
    heads = heads_of()
    reader = reader_with(heads)
    first, *lines = head_of(infer_binary()).decode().split("\r\n")[:-2]
    lines.remove(next(line for line in lines if line.startswith("Content-Length")))
    (expected,) = events(reader, infer_binary())
    for number, (name, value) in enumerate(VOLATILE.items()):
        body = b"x" * number * 7
        others = [*lines[::-1], f"content-length:  {len(body)}", f"{name}: {value}{number}"]
        others = others[number % 3 :] + others[: number % 3]
        whole = "\r\n".join([first, *others]).encode("latin-1") + b"\r\n\r\n"
        pieces = [whole, body] if cut else [whole + body]
        assert events(reader, *pieces) == [(expected[0], body)], name
        assert heads.scanned == number + 2


def test_what_a_client_accepts_matters() -> None:
    path, types = "/v2/models/many/infer_stream", ("text/event-stream", "application/x-ndjson")
    heads = Counting(OPTIONS["plain"], routes=(b"/v2/models/{model}/infer_stream",))
    reader = reader_with(heads)
    for number, each in enumerate((*types, *types)):
        ((head, *_),) = events(reader, request("POST", path, JSON_BODY, Accept=each, User_Agent=str(number)))
        assert isinstance(head, RequestHead)
        assert head.accept == each
    assert heads.scanned == 2 * len(types)


def test_each_head_has_its_own_id() -> None:
    heads = heads_of()
    reader = reader_with(heads)
    events(reader, infer())
    for number in "123":
        ((head, *_),) = events(reader, infer(X_Request_Id=number))
        assert isinstance(head, RequestHead)
        assert head.request_id == number
    assert heads.scanned == 4


def test_heads_that_say_more_of_the_client_keep_that() -> None:
    heads = HeadReader(OPTIONS["plain"], origins=frozenset((b"user-agent", b"x-forwarded-for")))
    reader = reader_with(heads)
    for client in ("192.0.2.1", "192.0.2.2", "192.0.2.1"):
        ((head, *_),) = events(reader, infer(X_Forwarded_For=client, User_Agent="a", Cookie=client))
        assert isinstance(head, RequestHead)
        assert dict(head.origin) == {b"x-forwarded-for": client.encode(), b"user-agent": b"a"}


@pytest.mark.parametrize("traced", [False, True])
def test_lines_that_are_passed_on_are_those_of_the_request(traced: bool) -> None:
    heads = HeadReader(OPTIONS["forwarded"], traced)
    reader = reader_with(heads, OPTIONS["forwarded"])
    for number in "1233":
        ((head, *_),) = events(reader, infer(X_Request_Id=number, TraceParent=f"00-{number}"))
        assert isinstance(head, RequestHead)
        assert dict(head.forwarded) == {
            "X-Request-Id": number,
            "TraceParent": f"00-{number}",
            "Content-Length": str(len(JSON_BODY)),
        }
        assert head.trace_headers == (TraceHeaders(f"00-{number}".encode()) if traced else None)


def test_a_port_without_inferences_has_only_requests() -> None:
    reader = reader_with(HeadReader(OPTIONS["plain"], inferences=False))
    for _ in range(2):
        ((head, *_),) = events(reader, infer())
        assert isinstance(head, RequestHead)
        assert (head.model, head.method) == ("", b"POST")
        assert head.target.endswith(b"/infer")


def test_a_trace_of_another_request_is_never_passed_on() -> None:
    reader = reader_with(heads_of())
    events(reader, infer(traceparent="00-1"))
    ((head, *_),) = events(reader, infer(traceparent="00-2"))
    assert isinstance(head, RequestHead)
    assert head.trace_headers is None


@pytest.mark.parametrize(
    "head",
    [
        head_of(infer(Connection="Upgrade", Upgrade="h2c")),
        head_of(infer(Upgrade="h2c")),
        head_of(infer(Proxy_Connection="close")),
        head_of(request(Transfer_Encoding="chunked")),
        head_of(infer()).replace(b"POST /", b"POST http://localhost/"),
        head_of(infer()).replace(b"POST /", b"\r\nPOST /"),
        head_of(infer(X="x" * 66_000)),
        head_of(infer(X="a\x01")),
    ],
)
def test_unusual_heads_are_left_to_httptools(head: bytes) -> None:
    heads = heads_of()
    found = events(reader_with(heads), head + JSON_BODY)
    assert heads.scanned == 0
    assert found == events(reader_with(Leaving(OPTIONS["plain"])), head + JSON_BODY)


def test_limits_hold_for_each_head() -> None:
    heads, parsed = heads_of(), Leaving(OPTIONS["plain"])
    events(reader_with(heads), infer())
    long = infer(bytes(301))
    refusal = events(reader_with(heads), long)
    assert refusal == events(reader_with(parsed), long)
    assert refusal[0][0] == 400
    heads = heads_of()
    events(reader_with(heads, limit=200), infer())
    ((status, text, *_),) = events(reader_with(heads, limit=200), infer(bytes(201)))
    assert (status, str(text)[:38]) == (413, "the request needs 201 bytes of memory,")


def test_parts_of_heads_that_are_remembered_are_bounded() -> None:
    heads = heads_of()
    reader = reader_with(heads)
    for number in range(2_100):
        target, host, coding = f"/v2/models/m{number}/infer", f"h{number}", f"gzip;q=0.{number}"
        ((head, *_),) = events(
            reader, request(target=target, Accept_Encoding=coding).replace(b"localhost", host.encode())
        )
        assert isinstance(head, RequestHead)
        assert head.model == f"m{number}"
    events(reader, infer(Accept_Encoding="gzip," * 1_000))
    for kept in (heads._lines, heads._hosts, heads._encodings):
        assert 0 < len(kept) <= 1_024
        assert max(map(len, kept)) <= 512


# The reader of heads and httptools understand the same

LINES = (
    b"Host: localhost:8000",
    b"host: a",
    b"Host: a b",
    b"Host : a",
    b"Inference-Header-Content-Length: 5",
    b"inference-header-content-length:5",
    b"Inference-Header-Content-Length: x",
    b"Accept-Encoding: gzip",
    b"accept-encoding: deflate, gzip;q=0",
    b"Content-Encoding: gzip",
    b"Connection: close",
    b"Connection: keep-alive",
    b"connection: Upgrade",
    b"Proxy-Connection: close",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"Transfer-Encoding: chunked",
    b"transfer-encoding : chunked",
    b"Content-Length: 0",
    b"Content-Length: 7, 7",
    b"Content-Length : 3",
    b"X-Request-Timeout-Ms: 60000",
    b"grpc-timeout: 1S",
    b"Origin: http://a",
    b"X-Key: open",
    b"x-key: shut",
)
LENGTHS = (
    b"Content-Length: %d",
    b"content-length:%d",
    b"CONTENT-LENGTH: \t%d",
    b"Content-Length: %d ",
    b"Content-Length: 0%d",
)
FIRST = (
    b"POST /v2/models/m/infer HTTP/1.1",
    b"POST /v2/models/m/versions/2/infer HTTP/1.1",
    b"POST /v2/models/m/infer HTTP/1.0",
    b"POST /v2/models/n/infer?a HTTP/1.1",
    b"POST /v2/models/m/infer  HTTP/1.1",
    b"POST /v2/models/m/generate HTTP/1.1",
    b"GET /v2/models/m/infer HTTP/1.1",
    b"POST http://a/v2/models/m/infer HTTP/1.1",
    b"POST /v2/models/m/infer HTTP/2.0",
)
names = st.sampled_from(
    [b"traceparent", b"X-Request-Id", b"x", b"Content-Type", b"hosts", b"Content-Length-", b"X-Key2"]
)
values = st.one_of(
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=8).map(str.encode),
    st.binary(max_size=5),
    st.sampled_from([b"", b" ", b"a\r\n b", b"a\rb", b"a\nb", b"a\r\nHost: b", b"\x80\xff", b"a\t "]),
)
noise = st.one_of(
    st.builds(lambda name, value: name + b": " + value, names, values),
    st.builds(lambda name, value: name + b":" + value, names, values),
    st.builds(lambda name: name + b": 1", st.binary(min_size=1, max_size=3)),
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    """Requests much like each other: lines in another order, noise, other lengths, now and then another line."""
    first, usual = (
        draw(st.sampled_from(FIRST[:3])),
        [b"Host: localhost", *draw(st.lists(st.sampled_from(LINES), max_size=3))],
    )
    stream = b""
    for _ in range(draw(st.integers(2, 5))):
        body = b"b" * draw(st.integers(0, 9))
        lines = [*usual, draw(st.sampled_from([LENGTHS[0], *LENGTHS])) % len(body), *draw(st.lists(noise, max_size=3))]
        if draw(st.integers(0, 3)) == 0:
            lines.append(draw(st.sampled_from(LINES)))
        if draw(st.integers(0, 5)) == 0:
            lines.pop(draw(st.integers(0, len(lines) - 1)))
        start = draw(st.sampled_from(FIRST)) if draw(st.integers(0, 5)) == 0 else first
        lines = draw(st.permutations(lines))
        if draw(st.integers(0, 9)) == 0:
            lines.insert(1, start)
            start = lines.pop(0)
        stream += b"\r\n".join([start, *lines]) + b"\r\n\r\n" + body
    return stream, draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))


def pieces(stream: bytes, cuts: Sequence[int]) -> list[bytes]:
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


TIMEOUTS = b"1\r\ngrpc-timeout: 1S\r\nX-Request-Timeout-Ms: 6", b"1\r\nX-Request-Timeout-Ms: 6\r\ngrpc-timeout: 1S"
SAME = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nx: %b\r\n\r\nb"


@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=100, deadline=None)
@given(parameters=streams(), cuts_of_second=st.lists(st.integers(0, 2_000), max_size=4).map(sorted))
@example(parameters=(SAME % b"1" + SAME % b"2", []), cuts_of_second=[])
@example(parameters=(SAME % b"1" + SAME % b"\r\n2", []), cuts_of_second=[])
@example(parameters=(SAME % b"1" + SAME.replace(b"x: %b", b"Host: a"), []), cuts_of_second=[])
@example(parameters=(SAME % TIMEOUTS[0] + SAME % TIMEOUTS[1], []), cuts_of_second=[])
def test_both_ways_give_the_same_events(
    name: str, parameters: tuple[bytes, list[int]], cuts_of_second: list[int]
) -> None:
    stream, cuts = parameters
    options = OPTIONS[name]
    for traced in (False, True):
        heads = HeadReader(options, traced)
        for many in (pieces(stream, cuts), pieces(stream, [min(cut, len(stream)) for cut in cuts_of_second]), [stream]):
            expected = events(reader_with(Leaving(options, traced), options), *many)
            assert events(reader_with(heads, options), *many) == expected
