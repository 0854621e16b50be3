"""Requests of OpenAI's API, what is read of their responses, and the figures that come of it."""

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from http2_client import Transport
from modserve.commands.bench import plan, text_measures, text_session
from modserve.commands.bench.http import Heads, HttpStreamSlot
from modserve.commands.bench.inputs import PreparedRequest
from modserve.commands.bench.measures import LoadLevel, MeasurementWindow, summary, to_json
from modserve.commands.bench.openai import EmbeddingReader, EventReader, OpenAiCalls
from modserve.commands.bench.show import text_rows
from modserve.commands.bench.slots import Endpoint, RequestSlot
from modserve.commands.bench.text_measures import TAG_WIDTH, TextCounter, TextResponse, TextWindow
from modserve.commands.destination import Destination, address
from modserve.commands.syntax import UsageError
from modserve.core.errors import ModserveError

MS = 1_000_000


class Outcomes:
    """How often a response came, and the error of each request."""

    def __init__(self) -> None:
        self.pieces = 0
        self.errors: list[str] = []

    def on_response(self, slot: RequestSlot) -> None:
        self.pieces += 1

    def on_done(self, slot: RequestSlot, error: str) -> None:
        self.errors.append(error)
        slot.start = 0


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def piece(text: str) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}}])


ROLE = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
END = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
USAGE = event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 5})
DONE = b"data: [DONE]\n\n"
WHOLE = ROLE + piece("a ") + piece("b") + END + USAGE + DONE
SIZED, CHUNKED, CLOSED = "Content-Length: {}", "Transfer-Encoding: chunked", "Connection: close"
BODIES: dict[str, tuple[bytes, str, int, tuple[int, int]]] = {
    "chat": (WHOLE, "", 2, (7, 5)),
    "windows lines": (WHOLE.replace(b"\n", b"\r\n"), "", 2, (7, 5)),
    "comments and names": (b": ping\n\nevent: x\n" + WHOLE, "", 2, (7, 5)),
    "completions": (event(choices=[{"text": "a"}]) + event(choices=[{"text": ""}]) + DONE, "", 1, (0, 1)),
    "nothing said": (ROLE + END + DONE, "", 0, (0, 0)),
    "reasoning": (event(choices=[{"delta": {"reasoning_content": "hm"}}]) + piece("a") + DONE, "", 2, (0, 2)),
    "null usage": (event(choices=[{"delta": {"content": "a"}}], usage=None) + DONE, "", 1, (0, 1)),
    "an error": (piece("a") + event(error={"message": "lost"}), "lost", 1, (0, 0)),
    "an error that is a text": (event(error="lost"), "lost", 0, (0, 0)),
    "aborted": (piece("a"), "the server aborted the stream", 1, (0, 0)),
    "no stream": (b'{"choices": []}', "the server's response is no stream of events", 0, (0, 0)),
    "no JSON": (b"data: {no\n\n", "the server's response cannot be read", 0, (0, 0)),
}


def counter(limits: dict[str, float] | None = None, *, streams: bool = True, numbered: bool = False) -> TextCounter:
    return TextCounter(limits or {}, streams=streams, numbered=numbered)


def receive(reader: Any, framing: str, body: bytes, size: int) -> Outcomes:
    """A response in pieces of `size`."""
    outcomes = Outcomes()
    slot = HttpStreamSlot(Endpoint(address("h:1")), [PreparedRequest(b"r")], outcomes, Heads(), reader)
    slot.connection_made(Transport(slot))
    slot.start = 1
    content = body if framing is not CHUNKED else f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    data = f"HTTP/1.1 200 OK\r\n{framing.format(len(body))}\r\n\r\n".encode() + content
    for begin in range(0, len(data), size):
        slot.data_received(data[begin : begin + size])
    slot.connection_lost(None)
    return outcomes


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("framing", [SIZED, CHUNKED, CLOSED])
@pytest.mark.parametrize("case", BODIES)
def test_a_stream_of_events(case: str, framing: str, size: int) -> None:
    body, error, pieces, tokens = BODIES[case]
    counts = counter()
    outcomes = receive(EventReader(counts), framing, body, size)
    assert (outcomes.errors, outcomes.pieces) == ([error], pieces)
    window = counts.take()
    assert (window.requests, window.input_tokens, window.output_tokens) == (not error, *tokens)


@pytest.mark.parametrize("framing", [SIZED, CHUNKED, CLOSED])
def test_embeddings(framing: str) -> None:
    counts = counter(streams=False)
    body = b'{"object": "list", "data": [{"embedding": "AAAA"}],\n "usage": {"prompt_tokens": 12, "total_tokens": 12}}'
    outcomes = receive(EmbeddingReader(counts), framing, body, 1000)
    assert (outcomes.errors, outcomes.pieces) == ([""], 0)
    assert counts.take() == TextWindow(1, 12, good=1)


def test_a_connection_lost_in_the_middle_of_a_sized_body() -> None:
    outcomes = receive(EventReader(counter()), "Content-Length: 5000", WHOLE, 1000)
    assert outcomes.errors == ["connection closed by the server"]


def test_figures_and_goodput() -> None:
    counts = counter({"ttft": 15, "itl": 10, "e2el": 100, "tpot": 5})
    good = TextResponse(first=11 * MS, last=31 * MS, pieces=3, input_tokens=4, output_tokens=5)
    for response, end in (
        (good, 41 * MS),
        (good, 120 * MS),  # misses e2el
        (TextResponse(17 * MS, 18 * MS, 2, 4, 2), 20 * MS),  # ttft
        (TextResponse(2 * MS, 32 * MS, 2, 4, 20), 35 * MS),  # itl
        (TextResponse(2 * MS, 10 * MS, 2, 4, 2), 35 * MS),  # tpot
        (TextResponse(2 * MS, 2 * MS, 1, 4, 1), 35 * MS),  # a single token has no time between
    ):
        counts.add(response, 1 * MS, end)
    first = counts.take()
    assert (first.requests, first.good, first.output_tokens, first.input_tokens) == (6, 2, 35, 24)
    assert list(first.per_token) == [5 * MS, 5 * MS, 1 * MS, 30 * MS // 19, 8 * MS]
    counts.add(TextResponse(2 * MS, 4 * MS, 3), 1 * MS, 5 * MS)
    windows = []
    for texts in (first, counts.take()):
        window = MeasurementWindow(2.0, array("q", [10 * MS] * texts.requests))
        window.firsts, window.gaps, window.texts = (
            array("q", [10 * MS, 20 * MS]),
            array("q", [MS, 2 * MS, 6 * MS]),
            texts,
        )
        windows.append(window)
    result = summary(LoadLevel(False, 1), windows, 1, 10, 99)
    document = to_json(result)["texts"]
    assert document["request_goodput"] == 3 / 4.0
    assert document["output_tokens_per_second"] == 38 / 4.0
    assert document["input_tokens_per_request"] == 24 / 7
    assert document["ttft_ms"] == {"mean": 15.0, "p50": 10.0, "p99": 20.0}
    assert document["itl_ms"] == {"mean": 3.0, "p50": 2.0, "p99": 6.0}
    assert not document["tokens_counted_by_server"]
    names, [row] = text_rows([result])
    assert dict(zip(names, row, strict=True)) == {
        "load": "concurrency 1",
        "output/s": "9.5",
        "output": "5.4",
        "input/s": "6.0",
        "input": "3.4",
        "ttft mean": "15.00",
        "ttft p50": "10.00",
        "ttft p99": "20.00",
        "itl mean": "3.00",
        "itl p50": "2.00",
        "itl p99": "6.00",
        "goodput/s": "0.8",
    }


def test_tags_are_never_the_same() -> None:
    tags = [counter_.tag() for counter_ in [counter(numbered=True)] for _ in range(1000)]
    assert len(set(tags)) == 1000
    assert {len(tag) for tag in tags} == {TAG_WIDTH}
    assert counter().tag() == b""


CALLS = OpenAiCalls("chat", "m", 8, {"temperature": 0, "stream_options": None})


@pytest.mark.parametrize(
    ("calls", "texts"),
    [
        (CALLS, lambda body: [message["content"] for message in body["messages"]]),
        (OpenAiCalls("completions", "m", 8, {}), lambda body: [body["prompt"]]),
        (OpenAiCalls("embeddings", "m", 8, {}, 3), lambda body: body["input"]),
    ],
)
def test_bodies(calls: OpenAiCalls, texts: Callable[[Any], list[str]]) -> None:
    server = Destination(address("http://host:7/prefix"))
    said = [f'text {number} "\ud800 é' for number in range(4)]
    for numbered in (True, False):
        made = calls.requests(Endpoint(address("host:7")), server, said, numbered=numbered)
        assert len(made) == (2 if calls.batch_size == 3 else 4)
        tag = b"01234567 " if numbered else b""
        seen = []
        for before, after in made:
            head, _, body = (before + tag + after).partition(b"\r\n\r\n")
            assert head.startswith(
                f"POST /prefix/v1/{ {'chat': 'chat/completions'}.get(calls.kind, calls.kind) } ".encode()
            )
            assert f"Content-Length: {len(body)}".encode() in head
            document = json.loads(body)
            first, *rest = texts(document)
            seen += [first.removeprefix(tag.decode()), *rest]
            assert numbered == first.startswith("01234567 ")
            assert document["model"] == "m"
        assert seen == [*said, *said[: len(seen) - 4]]


def test_extra_fields_replace_and_omit() -> None:
    assert CALLS.body(["x"]) == {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 8,
        "stream": True,
        "temperature": 0,
    }


@pytest.mark.parametrize(("each", "around"), [(1, 0), (1.5, 12), (2, 5)])
def test_made_up_prompts_have_the_length_by_the_server(each: float, around: int) -> None:
    def counted(text: str) -> int:
        return round(len(text.split()) * each) + around

    made, remark = text_session.make_prompts(200, counted)
    assert remark == ""
    assert len(made) == text_session.COUNT == len(set(made))
    assert all(abs(counted(text) - 200) <= each for text in made)


def test_made_up_prompts_that_cannot_be_so_short_or_are_not_counted() -> None:
    made, remark = text_session.make_prompts(5, lambda text: len(text.split()) + 30)
    assert {len(text.split()) for text in made} == {1}
    assert remark == "the shortest prompt has about 31 tokens, with what the server puts around it"
    made, remark = text_session.make_prompts(5, lambda text: 0)
    assert {len(text.split()) for text in made} == {5}
    assert "does not count" in remark


def test_prompts_of_files(tmp_path: Path) -> None:
    lines, rows = tmp_path / "lines.txt", tmp_path / "rows.jsonl"
    lines.write_text("one\n\ntwo {}\n")
    rows.write_text('{"prompt": "one", "output_tokens": 3}\n{"text": "two"}\n"three"\n')
    assert text_session.read(lines) == ["one", "two {}"]
    assert text_session.read(rows) == ["one", "two", "three"]
    for content, message in (
        ("", "is empty"),
        ("{no}", "rows.jsonl:1 is not JSON"),
        ('"x"\n{"messages": 1}', 'rows.jsonl:2: expected a string or an object with "prompt"'),
    ):
        rows.write_text(content)
        with pytest.raises(ModserveError, match=message):
            text_session.read(rows)
    with pytest.raises(ModserveError, match=r"cannot read '.*absent.*': No such file"):
        text_session.read(tmp_path / "absent")


def test_limits() -> None:
    assert text_measures.read_limits("ttft:200, itl:50.5") == {"ttft": 200, "itl": 50.5}
    for text in ("", "ttft", "ttft:", "ttft:0", "ttft:nan", "latency:5", "ttft=5"):
        with pytest.raises(ValueError, match="NAME:MS"):
            text_measures.read_limits(text)


def read(*words: str) -> plan.LoadPlan:
    return plan.read(plan.bench_parser().read(["m", *words]))


def test_the_command_line() -> None:
    made = read(
        "--openai=chat", "--url=http://h/base/v1", "--output-tokens=3", "--goodput=ttft:5", '--extra-body={"a": 1}'
    )
    assert made.servers[0].address.prefix == "/base"
    assert made.texts is not None
    assert (made.texts.kind, made.texts.output_tokens, made.texts.limits, made.texts.extra) == (
        "chat",
        3,
        {"ttft": 5},
        {"a": 1},
    )
    assert read().texts is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--openai=chat", "--shape=x:3"], "option '--shape' is for tensors, not for --openai"),
        (["--openai=chat", "--string-length=5"], "option '--string-length' is for tensors"),
        (["--input-tokens=5"], "option '--input-tokens' is for --openai"),
        (["--openai=chat", "--batch-size=2"], "a chat or completion has one text"),
        (["--openai=embeddings", "--goodput=itl:5"], "embeddings have no itl"),
        (["--openai=chat", "--goodput=x"], "'--goodput': expected NAME:MS, with a name of ttft, tpot, itl, e2el"),
        (["--openai=chat", "--extra-body=[]"], "'--extra-body': expected a JSON object, got: \\[\\]"),
        (["--openai=chat", "--url=grpc://h:1"], "expected http://HOST:PORT"),
        (["--openai=images"], "invalid choice"),
    ],
)
def test_mistakes_of_the_command_line(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(*words)
