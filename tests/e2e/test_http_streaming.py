"""generate, generate_stream, infer_stream, and infer on a decoupled model: real clients, the example `repeat`."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPResponse
from typing import Any

import httpx
import numpy as np
import pytest
from open_server import OpenServer
from repositories import EXAMPLES, copy_example, write_identity
from server_process import LOADED, ServerProcess, eventually, started
from tritonclient.utils.shared_memory import (
    create_shared_memory_region,
    destroy_shared_memory_region,
    get_contents_as_numpy,
    set_shared_memory_region,
)
from wire import HOST, SECONDS, metric, statistics

KEY = f"/modserve_streaming_{os.getpid()}"
LONG = 600_000
"""Milliseconds: no test waits for them."""
NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory, open_server: OpenServer) -> Iterator[ServerProcess]:
    """The examples, `words`, an identity of BYTES, and `counted`, a `repeat` for those who count its failures."""
    repository = tmp_path_factory.mktemp("streaming")
    write_identity(repository, "words", "BYTES")
    copy_example(repository, "repeat", "counted")
    with open_server.host(EXAMPLES, repository) as running:
        yield running


def url(server: ServerProcess, call: str, model: str = "repeat") -> str:
    return f"http://{HOST}:{server.http_port}/v2/models/{model}/{call}"


def repeat(*values: int, delays: list[int] | None = None, **more: Any) -> dict[str, Any]:
    return {"IN": list(values), "DELAY": delays or [0] * len(values), "WAIT": 0, **more}


def repeat_v2(*values: int, delays: list[int] | None = None, **more: Any) -> dict[str, Any]:
    tensors = {"IN": ("INT32", list(values)), "DELAY": ("UINT32", delays or [0] * len(values)), "WAIT": ("UINT32", [0])}
    inputs = [
        {"name": name, "datatype": datatype, "shape": [len(data)], "data": data}
        for name, (datatype, data) in tensors.items()
    ]
    return {"inputs": inputs, **more}


def generated(value: int, index: int) -> dict[str, Any]:
    return {"IDX": index, "OUT": value, "model_name": "repeat", "model_version": "1"}


def events(lines: Iterator[str]) -> Iterator[Any]:
    """The data of server-sent events, read as the standard says, as soon as each is complete."""
    data: list[str] = []
    for line in lines:
        if line:
            assert line.startswith("data: "), line
            data.append(line.removeprefix("data: "))
        else:
            yield json.loads("\n".join(data))
            data = []
    assert not data, "the stream ends inside an event"


def post(server: ServerProcess, call: str, document: Any, model: str = "repeat", **headers: str) -> httpx.Response:
    return httpx.post(url(server, call, model), json=document, headers=headers, timeout=SECONDS)


def curl(*arguments: str) -> str:
    done = subprocess.run(["curl", "-sS", "-m", "20", *arguments], capture_output=True, text=True, check=True)
    return done.stdout


# generate


def test_generate(streaming: ServerProcess) -> None:
    answer = post(streaming, "generate", repeat(7, id="q"))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {"id": "q", **generated(7, 0)}


@pytest.mark.parametrize("values", [(), (1, 2)], ids=["none", "two"])
def test_generate_needs_exactly_one_response(streaming: ServerProcess, values: tuple[int, ...]) -> None:
    answer = post(streaming, "versions/1/generate", repeat(*values))
    assert (answer.status_code, answer.json()) == (400, {"error": NOT_ONE})


def test_generate_on_models_that_are_not_decoupled(streaming: ServerProcess) -> None:
    document = {"INPUT0": list(range(16)), "INPUT1": [1] * 16}
    expected = {"OUTPUT0": list(range(1, 17)), "OUTPUT1": list(range(-1, 15))}
    single = post(streaming, "generate", document, "simple")
    assert single.json() == {**expected, "model_name": "simple", "model_version": "1"}
    (only,) = events(iter(post(streaming, "generate_stream", document, "simple").text.splitlines()))
    assert only == {**expected, "model_name": "simple", "model_version": "1"}


def test_text(streaming: ServerProcess) -> None:
    answer = post(streaming, "generate", {"INPUT0": "grüß\n\ndata: dich"}, "words")
    assert answer.json()["OUTPUT0"] == "grüß\n\ndata: dich"
    (only,) = events(
        iter(post(streaming, "generate_stream", {"INPUT0": "a\n\ndata: b"}, "words").text.split("\n")[:-1])
    )
    assert only["OUTPUT0"] == "a\n\ndata: b"


# Streams


@pytest.mark.parametrize("call", ["generate_stream", "infer_stream"])
def test_curl_shows_each_response_as_an_event(streaming: ServerProcess, call: str) -> None:
    document = repeat_v2(4, 5, 6) if call == "infer_stream" else repeat(4, 5, 6)
    found = list(events(iter(curl("-N", url(streaming, call), "-d", json.dumps(document)).splitlines())))
    if call == "generate_stream":
        assert found == [generated(4, 0), generated(5, 1), generated(6, 2)]
    else:
        assert [each["parameters"]["triton_final_response"] for each in found] == [False, False, False, True]
        assert [[output["data"] for output in each["outputs"]] for each in found] == [
            [[4], [0]],
            [[5], [1]],
            [[6], [2]],
            [],
        ]


def test_lines(streaming: ServerProcess) -> None:
    answer = post(streaming, "infer_stream", repeat_v2(4, id="q"), accept="application/x-ndjson")
    assert answer.headers["content-type"] == "application/x-ndjson"
    first, end = (json.loads(line) for line in answer.text.splitlines())
    assert first == {
        "id": "q",
        "model_name": "repeat",
        "model_version": "1",
        "parameters": {"triton_final_response": False},
        "outputs": [
            {"name": "OUT", "datatype": "INT32", "shape": [1], "data": [4]},
            {"name": "IDX", "datatype": "UINT32", "shape": [1], "data": [0]},
        ],
    }
    assert (end["parameters"], end["outputs"]) == ({"triton_final_response": True}, [])


def canceled(server: ServerProcess) -> float:
    return metric(server, "nv_inference_request_failure", model="counted", reason="CANCELED")


@pytest.mark.parametrize("call", ["generate_stream", "infer_stream"])
def test_responses_come_one_by_one_and_a_client_that_leaves_cancels(streaming: ServerProcess, call: str) -> None:
    before, failed = canceled(streaming), statistics(streaming, "counted")["inference_stats"]["fail"]["count"]
    document = (repeat_v2 if call == "infer_stream" else repeat)(4, 5, delays=[0, LONG])
    with httpx.stream("POST", url(streaming, call, "counted"), json=document, timeout=SECONDS) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        first = next(events(answer.iter_lines()))
        assert first.get("OUT") == 4 or first["outputs"][0]["data"] == [4]
    eventually(lambda: canceled(streaming) == before + 1)
    assert statistics(streaming, "counted")["inference_stats"]["fail"]["count"] == failed + 1


@pytest.mark.parametrize("call", ["generate", "generate_stream", "infer_stream"])
def test_a_client_that_leaves_before_the_first_response(streaming: ServerProcess, call: str) -> None:
    before = canceled(streaming)
    executed = statistics(streaming, "counted")["execution_count"]
    body = json.dumps((repeat_v2 if call == "infer_stream" else repeat)(4, delays=[LONG])).encode()
    head = f"POST /v2/models/counted/{call} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with closing(socket.create_connection((HOST, streaming.http_port), SECONDS)) as connection:
        connection.sendall(head.encode() + body)
        eventually(lambda: statistics(streaming, "counted")["execution_count"] == executed + 1)
    eventually(lambda: canceled(streaming) == before + 1)


@pytest.mark.parametrize("call", ["generate", "generate_stream", "infer_stream"])
def test_a_client_that_only_sends_no_more_gets_all_its_responses(streaming: ServerProcess, call: str) -> None:
    values = (4,) if call == "generate" else (4, 5, 6)
    body = json.dumps((repeat_v2 if call == "infer_stream" else repeat)(*values, delays=[300] * len(values))).encode()
    head = f"POST /v2/models/repeat/{call} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with closing(socket.create_connection((HOST, streaming.http_port), SECONDS)) as connection:
        connection.sendall(head.encode() + body)
        connection.shutdown(socket.SHUT_WR)
        reader = HTTPResponse(connection)
        reader.begin()
        assert reader.status == 200
        answer = reader.read().decode()
        assert connection.recv(1) == b"", "the server closes when all is said"
    found = [json.loads(line.removeprefix("data: ")) for line in answer.splitlines() if line]
    if call == "infer_stream":
        outputs = [output for each in found for output in each["outputs"]]
        assert [output["data"][0] for output in outputs if output["name"] == "OUT"] == list(values)
    else:
        assert [each["OUT"] for each in found] == list(values)


def test_a_client_that_sends_no_more_in_the_middle_of_a_stream(streaming: ServerProcess) -> None:
    body = json.dumps(repeat(4, 5, delays=[0, 300])).encode()
    head = f"POST /v2/models/repeat/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with closing(socket.create_connection((HOST, streaming.http_port), SECONDS)) as connection:
        connection.sendall(head.encode() + body)
        reader = HTTPResponse(connection)
        reader.begin()
        first = reader.readline()
        connection.shutdown(socket.SHUT_WR)
        rest = reader.read()
    assert [json.loads(line[6:])["OUT"] for line in (first + rest).splitlines() if line] == [4, 5]


def test_failures_later_are_in_the_stream(streaming: ServerProcess) -> None:
    """`repeat` finds out only when it runs that the lengths differ."""
    document = {**repeat(1), "DELAY": [0, 0]}
    message = "expected IN and DELAY shape to match, got [1] and [2]"
    first = post(streaming, "generate_stream", document)
    assert (first.status_code, first.text) == (400, f'data: {{"error":"{message}"}}\n\n')
    wrong = repeat_v2(1)
    wrong["inputs"][1].update(shape=[2], data=[0, 0])
    answer = post(streaming, "infer_stream", wrong)
    assert (answer.status_code, answer.json()) == (400, {"error": message})


def test_shared_memory(streaming: ServerProcess) -> None:
    """A response is in its place before its message comes."""
    region = {"shared_memory_region": "ours"}
    document = repeat_v2(4, 5, delays=[0, LONG])
    document["inputs"][0] = {
        "name": "IN",
        "datatype": "INT32",
        "shape": [2],
        "parameters": {**region, "shared_memory_byte_size": 8},
    }
    place = {**region, "shared_memory_byte_size": 4, "shared_memory_offset": 8}
    document["outputs"] = [{"name": "OUT", "parameters": place}]
    memory = create_shared_memory_region("ours", KEY, 12)
    try:
        set_shared_memory_region(memory, [np.array([4, 5, 0], np.int32)])
        path = "../../systemsharedmemory/region/ours/register"
        assert post(streaming, path, {"key": KEY, "byte_size": 12}).status_code == 200
        with httpx.stream("POST", url(streaming, "infer_stream"), json=document, timeout=SECONDS) as answer:
            first = next(events(answer.iter_lines()))
            assert first["outputs"] == [{"name": "OUT", "datatype": "INT32", "shape": [1]}]
            assert get_contents_as_numpy(memory, np.int32, [3]).tolist() == [4, 5, 4]
        assert post(streaming, "../../systemsharedmemory/unregister", {}).status_code == 200
    finally:
        destroy_shared_memory_region(memory)


# infer on a decoupled model


def test_infer_on_a_decoupled_model_that_answers_once(streaming: ServerProcess) -> None:
    answer = post(streaming, "infer", repeat_v2(9))
    assert answer.status_code == 200
    assert [output["data"] for output in answer.json()["outputs"]] == [[9], [0]]


def test_infer_on_a_decoupled_model_that_answers_twice(streaming: ServerProcess) -> None:
    answer = post(streaming, "infer", repeat_v2(1, 2))
    assert answer.status_code == 501
    assert re.search("respond more than once.*infer_stream or generate_stream over HTTP", answer.json()["error"])


# Shutdown


def test_shutdown_waits_for_a_stream_and_ends_it() -> None:
    with started(EXAMPLES) as server:
        server.wait_for(LOADED)
        document = repeat_v2(4, 5, delays=[0, 700])
        with httpx.stream("POST", url(server, "infer_stream"), json=document, timeout=SECONDS) as answer:
            found = events(answer.iter_lines())
            assert next(found)["outputs"][0]["data"] == [4]
            server.signal(signal.SIGTERM)
            rest = list(found)
        assert [output["data"] for output in rest[0]["outputs"]] == [[5], [1]]
        assert rest[-1]["parameters"] == {"triton_final_response": True}
        server.wait(0)


def test_shutdown_ends_a_stream_whose_time_is_up() -> None:
    with started(EXAMPLES, options=["--exit-timeout-secs=1"]) as server:
        server.wait_for(LOADED)
        document = repeat_v2(4, 5, delays=[0, LONG])
        with httpx.stream("POST", url(server, "infer_stream"), json=document, timeout=SECONDS) as answer:
            found = events(answer.iter_lines())
            assert next(found)["outputs"][0]["data"] == [4]
            server.signal(signal.SIGTERM)
            (last,) = found
        assert last == {
            "error": "the server stopped before the request was answered to its end",
            "parameters": {"triton_final_response": True},
        }
        server.wait(1, errors=["Exit timeout expired"])


# The documentation


def test_the_recipes_of_the_documentation(streaming: ServerProcess) -> None:
    """Each prints what stands below it."""
    page = (EXAMPLES.parent / "docs" / "protocol.md").read_text()
    section = page.partition("\n## Streams over HTTP\n")[2].partition("\n## ")[0]
    recipes = re.findall(r"^```sh\n(.*?)^```\n\n^```\w*\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert len(recipes) == 2
    for command, expected in recipes:
        told = command.replace("localhost:8000", f"{HOST}:{streaming.http_port}").replace("curl", "curl -sS", 1)
        done = subprocess.run(["bash", "-c", told], capture_output=True, text=True, check=True, timeout=SECONDS)
        assert done.stdout.strip() == expected.strip()
