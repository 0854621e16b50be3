"""Calls of text whose clients leave at any moment, and what is nowhere to be read afterwards."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from minilm_folder import minilm, ranker
from server_here import serving_here
from server_process import Server, eventually
from text_models import FUNCTIONS, Pace, write_speaker
from wire import HOST, SECONDS, http, metric

MARK = "xylophone"
MARKED = [{"role": "user", "content": f"{MARK} words"}]
CALLING = f'SAY:{MARK} <tool_call>{{"name": "weather", "arguments": {{}}}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b"}]}),
    "choices": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b"}], "n": 2}),
    "completions": ("/v1/completions", {"prompt": "a b"}),
    "responses": ("/v1/responses", {"input": "a b"}),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def pace(repository: Path) -> Iterator[Pace]:
    pace = Pace(repository / "models")
    yield pace
    pace.close()


@pytest.fixture(scope="module")
def server(repository: Path, pace: Pace) -> Iterator[Server]:
    write_speaker(repository / "models")
    functions = repository / "functions.py"
    functions.write_text(FUNCTIONS)
    with serving_here(repository / "models", options=[f"{functions}:endless", "--access-log=all"]) as process:
        yield process


def request(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(content), content)


def read(port: int, data: bytes, size: int) -> bytes:
    """The first `size` bytes of the answer on a connection that is closed then; fewer where it ends."""
    with socket.create_connection((HOST, port), timeout=SECONDS) as connection:
        connection.sendall(data)
        answer = b""
        while len(answer) < size and not answer.endswith(b"\r\n0\r\n\r\n"):
            part = connection.recv(size - len(answer))
            if not part:
                break
            answer += part
        return answer


def held(server: Server) -> float:
    page = http(server.metrics_port, "GET", "/metrics").body.decode()
    return next(
        float(line.split()[1]) for line in page.splitlines() if line.startswith("modserve_request_memory_bytes ")
    )


@pytest.mark.parametrize(
    ("stream", "model", "step"),
    [
        *(
            ("chat", "speaker", 1),
            ("choices", "speaker", 7),
            ("completions", "speaker", 7),
            ("responses", "speaker", 7),
        ),
        *(("chat", "endless", 40), ("completions", "endless", 40), ("responses", "endless", 40)),
    ],
)
def test_clients_leave_after_every_byte(server: Server, stream: str, model: str, step: int) -> None:
    """The endless model has one instance: each generation ends before the next one begins, which takes a while."""
    path, fields = STREAMS[stream]
    body = request(path, {"model": model, **fields, "stream": True})
    whole = read(server.http_port, body, 1200)
    assert whole.startswith(b"HTTP/1.1 200 "), whole
    for size in range(0, len(whole) + 1, step):
        assert len(read(server.http_port, body, size)) == size
    eventually(lambda: metric(server, "nv_inference_pending_request_count", model=model) == 0)
    eventually(lambda: held(server) == 0)
    last = {"model": model, "messages": [{"role": "user", "content": "a"}], "stop": "a a"}
    answer = http(server.http_port, "POST", "/v1/chat/completions", json.dumps(last).encode())
    assert answer.status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(
            (path, {"model": "paced", **fields, "stream": True})
            for path, fields in STREAMS.values()
            if "n" not in fields
        ),
        ("/v2/models/paced/generate_stream", {"text_input": "a b", "stream": True}),
    ],
)
def test_a_generation_takes_no_second_step_for_a_client_that_has_gone(
    server: Server, pace: Pace, path: str, body: dict[str, Any]
) -> None:
    """The model is within a step when the server sees that the client has gone: that step is the last one."""
    gone = f'POST {path}" model=paced version=1 status=499'
    assert gone not in server.log
    with socket.create_connection((HOST, server.http_port), timeout=SECONDS) as connection:
        connection.sendall(request(path, body))
        pace.permit(3)
        assert [pace.next() for _ in range(3)] == ["step"] * 3
        answer = b""
        while answer.count(b"word ") < 3:
            answer += connection.recv(65536)
    eventually(lambda: gone in server.log)
    assert http(server.http_port, "GET", "/v2/health/live").status == 200  # what the server did then is done
    pace.permit(2)
    assert [pace.next(), pace.next()] == ["step", "end"]
    pace.withdraw(1)


CALLS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("/v1/chat/completions", {"model": "speaker", "messages": MARKED}, 200),
    ("/v1/chat/completions", {"model": "speaker", "messages": MARKED, "stream": True}, 200),
    ("/v1/chat/completions", {"model": "speaker", "messages": MARKED, "stop": MARK, "user": MARK}, 200),
    ("/v1/chat/completions", {"model": "speaker", "messages": MARKED, "temperature": MARK}, 400),
    ("/v1/chat/completions", {"model": "speaker", "messages": [{"role": MARK, "content": MARK}]}, 400),
    (
        "/v1/chat/completions",
        {"model": "speaker", "messages": [{"role": "user", "content": CALLING}], "tools": TOOLS},
        200,
    ),
    ("/v1/chat/completions", {"model": "speaker", "messages": [{"role": "user", "content": f"{MARK} FAIL:0"}]}, 500),
    ("/v1/chat/completions", {"model": "speaker", "messages": [{"role": "user", "content": f"{MARK}\ud800"}]}, 400),
    ("/v1/completions", {"model": "speaker", "prompt": [MARK, MARK], "echo": True}, 200),
    ("/v1/completions", {"model": "speaker", "prompt": [MARK, 3]}, 400),
    ("/v1/responses", {"model": "speaker", "input": MARK, "instructions": MARK, "metadata": {"a": MARK}}, 200),
    ("/v1/responses", {"model": "speaker", "input": f"{MARK} FAIL:1", "stream": True}, 200),
    ("/v1/responses", {"model": "speaker", "input": [{"type": MARK}]}, 400),
    ("/v1/embeddings", {"model": "minilm", "input": MARK}, 200),
    ("/v1/embeddings", {"model": "minilm", "input": [MARK, ""]}, 400),
    ("/v1/embeddings", {"model": "ranker", "input": MARK}, 400),
    ("/v1/embeddings", {"model": "minilm", "input": f"{MARK}\ud800"}, 400),
    ("/v1/rerank", {"model": "ranker", "query": MARK, "documents": [MARK]}, 200),
    ("/embed", {"model": "minilm", "inputs": {"text": MARK}}, 422),
    ("/embed", {"model": "minilm", "inputs": f"{MARK} " * 1000, "truncate": False}, 413),
    ("/similarity", {"model": "minilm", "inputs": {"source_sentence": MARK, "sentences": [MARK]}}, 200),
    ("/tokenize", {"model": "minilm", "inputs": MARK}, 200),
)


def test_no_text_is_in_logs_traces_and_the_console(tmp_path: Path) -> None:
    """At the most talkative level, with every request traced by its times."""
    write_speaker(tmp_path / "models")
    traces = tmp_path / "traces.json"
    options = [
        *("--log-verbose=9", "--access-log=all", f"--trace-config=triton,file={traces}"),
        *("--trace-config=level=TIMESTAMPS", "--trace-config=rate=1", f"minilm={minilm()}", f"ranker={ranker()}"),
    ]
    with serving_here(tmp_path / "models", options=options) as server:
        for path, body, status in CALLS:
            answer = http(server.http_port, "POST", path, json.dumps(body).encode())
            assert answer.status == status, (path, body, answer.body)
        pages = [http(server.http_port, "GET", path).body for path in ("/console/failures", "/v2/models/speaker/stats")]
        pages.append(http(server.metrics_port, "GET", "/metrics").body)
        with socket.create_connection((HOST, server.http_port), timeout=SECONDS) as connection:
            connection.sendall(b"GET /console/events HTTP/1.1\r\nHost: x\r\n\r\n")
            page = b""
            while b"\n\n" not in page:
                page += connection.recv(65536)
        pages.append(page)
    written = traces.read_text()
    assert "speaker" in written
    assert "POST /v1/responses" in server.log
    for place in (server.log, written, *(page.decode() for page in pages)):
        assert MARK not in place, next(line for line in place.splitlines() if MARK in line)
