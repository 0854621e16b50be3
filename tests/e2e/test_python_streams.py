"""Models written in Python that send their responses one by one: by senders, from threads, from coroutines."""

import json
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from python_models import (
    EVERY_MODE,
    PROTOCOLS,
    TRITON,
    Response,
    at_once,
    events,
    every_mode,
    infer,
    infer_inputs,
    serving_python,
    stream,
    tensors,
    write_python,
)
from server_process import eventually
from wire import channel, http, metric, stub

SCRIPTED = """
import threading
import time

class TritonPythonModel:
    def execute(self, requests):
        returned = [self.begin(request) for request in requests]
        return None if all([each is None for each in returned]) else returned

    def begin(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "SCRIPT").as_numpy().ravel()[0]
        values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
        steps = json.loads(text)
        if not steps:
            return None
        return self.steps(request.get_response_sender(), values, steps)

    def steps(self, sender, values, steps):
        caught = ""
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for index, (what, value) in enumerate(steps):
            if what.startswith("try "):
                try:
                    self.steps(sender, values, [[what[4:], value]])
                except Exception as error:
                    caught = str(error)
            elif what == "send":
                sender.send(self.response(value))
            elif what == "last":
                sender.send(self.response(value), flags=final)
            elif what == "caught":
                sender.send(self.response(caught))
            elif what == "sum":
                sender.send(self.response(str(values.sum())))
            elif what == "error":
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(value)))
            elif what == "last error":
                error = pb_utils.TritonError(value, pb_utils.TritonError.NOT_FOUND)
                sender.send(pb_utils.InferenceResponse(error=error), flags=final)
            elif what == "end":
                sender.send(flags=final)
            elif what == "nothing":
                sender.send(None)
            elif what == "flags":
                sender.send(self.response("with flags"), flags=value)
            elif what == "sleep":
                time.sleep(value)
            elif what == "raise":
                raise ValueError(value)
            elif what == "return":
                return self.response(value)
            elif what == "thread":
                rest = steps[index + 1:]
                threading.Thread(target=self.steps, args=(sender, values, rest)).start()
                return None

    def response(self, text):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], np.object_))])
"""

ASYNC = """
import asyncio

class TritonPythonModel:
    async def execute(self, requests):
        self.tasks = getattr(self, "tasks", [])
        responses = []
        for request in requests:
            wait, count, after = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if DECOUPLED:
                sender = request.get_response_sender()
                if after:
                    self.tasks.append(asyncio.create_task(self.send(sender, wait, count)))
                else:
                    await self.send(sender, wait, count)
            else:
                await asyncio.sleep(wait / 1000)
                responses.append(self.response(count))
        return responses or None

    async def send(self, sender, wait, count):
        for number in range(count):
            await asyncio.sleep(wait / 1000)
            if number == 77:
                raise ValueError("77 is refused")
            sender.send(self.response(number))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def response(self, number):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))])
"""

REPEAT = """
import os

class TritonPythonModel:
    def initialize(self, args):
        self.progress = os.open(PROGRESS, os.O_CREAT | os.O_WRONLY)

    def finalize(self):
        os.close(self.progress)

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count, size = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().ravel()
            for number in range(count):
                out = [pb_utils.Tensor("INDEX", np.array([[number]], np.int32)),
                       pb_utils.Tensor("OUT", np.full((1, size), number % 100, np.uint8))]
                sender.send(pb_utils.InferenceResponse(out, **PARAMETERS))
                os.pwrite(self.progress, b"%08d" % (number + 1), 0)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

TURNS = """
import time

class TritonPythonModel:
    modserve_room = 2

    def initialize(self, args):
        self.running = []

    def execute(self, requests):
        for request in requests:
            (word,) = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            self.running.append([request, request.get_response_sender(), word])

    def modserve_turn(self):
        time.sleep(0.001)
        for each in list(self.running):
            request, sender, word = each
            if request.is_cancelled():
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                self.running.remove(each)
            elif word >= 0:
                out = np.array([len(self.running)], np.int32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
                each[2] = -1
                if word:
                    raise RuntimeError("a turn has failed")
        return bool(self.running)
"""

DECOUPLED = "model_transaction_policy { decoupled: true }"


@pytest.fixture(scope="module")
def progress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("progress")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, progress: Path) -> Iterator[Any]:
    repository = tmp_path_factory.mktemp("python_streams")
    scripted = tensors("input", SCRIPT="BYTES 1", VALUES="INT32 -1") + tensors("output", OUT="BYTES 1")
    write_python(repository, "scripted", SCRIPTED, scripted + DECOUPLED)
    write_python(repository, "single", SCRIPTED, scripted, modes=EVERY_MODE)
    code = REPEAT.replace("PROGRESS", repr(f"{progress}/MODE")).replace("PARAMETERS", "{}")
    repeat = tensors("input", IN="INT32 2") + tensors("output", INDEX="INT32 1", OUT="UINT8 -1")
    write_python(repository, "repeat", code, repeat + DECOUPLED + " max_batch_size: 4")
    code = REPEAT.replace("PROGRESS", repr("/dev/null")).replace("PARAMETERS", '{"parameters": {"number": number}}')
    write_python(repository, "numbered", code, repeat + DECOUPLED + " max_batch_size: 4 dynamic_batching { }")
    config = tensors("input", IN="INT32 3") + tensors("output", OUT="INT32 1")
    write_python(repository, "async_many", ASYNC.replace("DECOUPLED", "True"), config + DECOUPLED)
    write_python(repository, "async_single", ASYNC.replace("DECOUPLED", "False"), config, modes=EVERY_MODE)
    config = tensors("input", IN="INT32 1") + tensors("output", OUT="INT32 1")
    write_python(repository, "turns", TURNS, config + DECOUPLED, modes=("process",))
    with serving_python(repository, errors=["Traceback", "was lost"]) as running:
        yield running


def script(*steps: Any) -> dict[str, Any]:
    return {"SCRIPT": np.array([json.dumps(steps)], np.object_), "VALUES": [1, 2, 3]}


def shown(response: Response) -> str:
    """The text of a response, an error after "!", and nothing for an end alone."""
    if response.message:
        return f"!{response.message}"
    return response["OUT"][0].decode() if "OUT" in response.outputs else ""


CLOSED = "Unable to send response. Response sender has been closed."
SCRIPTS: dict[str, tuple[list[Any], list[str]]] = {
    "one": ([["send", "a"], ["end", 0]], ["a", ""]),
    "flag with the last": ([["send", "a"], ["last", "b"]], ["a", "b"]),
    "none": ([["end", 0]], [""]),
    "after execute": ([["thread", 0], ["sleep", 0.1], ["send", "a"], ["sum", 0], ["end", 0]], ["a", "6", ""]),
    "before and after": ([["send", "a"], ["thread", 0], ["sleep", 0.1], ["last", "b"]], ["a", "b"]),
    "none after execute": ([["thread", 0], ["sleep", 0.1], ["end", 0]], [""]),
    "error at the end": ([["send", "a"], ["last error", "x"]], ["a", "!x"]),
    "error alone": ([["last error", "x"]], ["!x"]),
    "raises": ([["send", "a"], ["raise", "x"]], ["a", "!ValueError: x"]),
    "raises at once": ([["raise", "x"]], ["!ValueError: x"]),
    "returns": ([["return", "a"]], ["!is using the decoupled mode and the execute function must return None."]),
    "nothing": ([["try nothing", 0], ["caught", 0], ["end", 0]], ["Inference Response object must be provided", ""]),
    "flags": ([["try flags", 7], ["caught", 0], ["end", 0]], ["Unable to send response. Unsupported flag", ""]),
    "after the end": ([["last", "a"], ["try send", "b"]], ["a"]),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_sender_sends(server: Any, mode: str, name: str) -> None:
    steps, expected = SCRIPTS[name]
    with stream(server) as opened:
        opened.send(f"scripted_{mode}", script(*steps))
        texts = [shown(response) for response in opened.until_final()]
        opened.send(f"scripted_{mode}", script(["last", "next"]))
        texts.append(shown(opened.next()))
        assert opened.quiet
    for text, part in zip(texts, [*expected, "next"], strict=True):
        assert text == part or (len(part) > 2 and text.startswith(part[0]) and part[1:] in text)


def test_errors_in_the_middle(server: Any, mode: str) -> None:
    with stream(server) as opened:
        opened.send(f"scripted_{mode}", script(["send", "a"], ["error", "x"], ["send", "b"], ["end", 0]))
        assert [shown(opened.next()) for _ in range(4)] == ["a", "!x", "b", ""]


@pytest.mark.skipif(bool(TRITON), reason="Triton leaves such requests waiting")
def test_forgotten_senders(server: Any, mode: str) -> None:
    with stream(server) as opened:
        for steps in ([], [["send", "a"]], [["thread", 0], ["sleep", 0.05], ["send", "b"]]):
            opened.send(f"scripted_{mode}", script(*steps))
        texts = sorted(shown(response) for response in opened.until_final(3))
    assert texts[3:] == ["a", "b"]
    expected = "did not send the flag TRITONSERVER_RESPONSE_COMPLETE_FINAL"
    assert all("released a request" in text and text.endswith(expected) for text in texts[:3]), texts


def test_out_of_order(server: Any, mode: str) -> None:
    """The second request is over before the first, whose responses come from a thread."""
    with stream(server) as opened:
        opened.send(f"scripted_{mode}", script(["thread", 0], ["sleep", 0.3], ["send", "slow"], ["end", 0]), "1")
        opened.send(f"scripted_{mode}", script(["send", "quick"], ["end", 0]), "2")
        responses = opened.until_final(2)
    assert [(each.id, shown(each)) for each in responses] == [("2", "quick"), ("2", ""), ("1", "slow"), ("1", "")]


def test_many_threads(server: Any, mode: str) -> None:
    steps = [["thread", 0]] + [["send", str(number)] for number in range(20)] + [["end", 0]]
    with stream(server) as opened:
        for number in range(16):
            opened.send(f"scripted_{mode}", script(*steps), str(number + 1))
        responses = opened.until_final(16)
    for number in range(16):
        texts = [shown(each) for each in responses if each.id == str(number + 1)]
        assert texts == [*map(str, range(20)), ""]


# A sender of a model with one response to a request

SINGLE: dict[str, tuple[list[Any], str]] = {
    "returned": ([["return", "a"]], "a"),
    "sent": ([["send", "a"], ["end", 0]], "a"),
    "sent with the flag": ([["last", "a"]], "a"),
    "sent by a thread": ([["thread", 0], ["sleep", 0.1], ["send", "a"], ["end", 0]], "a"),
    "error": ([["last error", "x"]], "!x"),
    "end alone": ([["end", 0]], "!Non-decoupled model cannot send complete final before sending a response"),
    "two": ([["try send", "a"], ["try send", "b"], ["end", 0]], "a"),
    "sent and returned": ([["last", "a"], ["return", "b"]], "a"),
}


@every_mode
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", SINGLE)
def test_senders_of_single_responses(server: Any, mode: str, protocol: str, name: str) -> None:
    steps, expected = SINGLE[name]
    text = shown(infer(server, protocol, f"single_{mode}", script(*steps)))
    assert text == expected or (expected.startswith("!") and text.startswith("!") and expected[1:] in text)
    assert shown(infer(server, protocol, f"single_{mode}", script(["return", "next"]))) == "next"


# Many responses, large ones, slow readers


@pytest.mark.parametrize(("count", "size"), [(3000, 4), (40, 3_000_000)])
def test_many_and_large_responses(server: Any, mode: str, count: int, size: int) -> None:
    with stream(server) as opened:
        opened.send(f"repeat_{mode}", {"IN": [[count, size]]})
        for number in range(count):
            response = opened.next()
            assert response["INDEX"] == [[number]]
            assert response.outputs["OUT"].shape == (1, size)
            assert (response.outputs["OUT"] == number % 100).all()
        assert opened.next().parameters == {"triton_final_response": True}


@pytest.mark.skipif(bool(TRITON), reason="Triton's models run ahead of slow readers")
def test_a_model_does_not_run_ahead_of_a_slow_reader(server: Any, mode: str, progress: Path) -> None:
    count = 300
    request = message(f"repeat_{mode}", [[count, 1_000_000]])
    with channel(server.grpc_port) as opened:
        responses = stub(opened).ModelStreamInfer(iter([request]), timeout=60)
        next(responses)
        sent = eventually(lambda: stands_still(progress / mode))
        assert sent < 200
        assert len(list(responses)) == count - 1
    assert int((progress / mode).read_text()) == count


def stands_still(path: Path) -> int:
    """How many responses a model has sent, if it sends no more for a while."""
    before = path.read_text() if path.exists() else ""
    time.sleep(0.3)
    return int(before or 0) if before == path.read_text() else 0


def message(model: str, value: Any) -> Any:
    (tensor,) = infer_inputs("grpc", {"IN": value})
    request = grpcclient.service_pb2.ModelInferRequest(model_name=model, inputs=[tensor._get_tensor()])
    request.raw_input_contents.append(tensor._get_content())
    return request


@pytest.mark.skipif(bool(TRITON), reason="response parameters are newer")
def test_a_batch_of_streams(server: Any, mode: str) -> None:
    def run(index: int) -> list[Response]:
        with stream(server) as opened:
            opened.send(f"numbered_{mode}", {"IN": [[index + 1, index]]})
            return opened.until_final()

    for index, responses in enumerate(at_once(8, run)):
        assert [each.parameters.get("number") for each in responses] == [*range(index + 1), None]
        assert [each["INDEX"] for each in responses[:-1]] == [[[number]] for number in range(index + 1)]


# A model of the server's own, which works between executions


def said(responses: Any) -> int:
    (word,) = np.frombuffer(next(responses).infer_response.raw_output_contents[0], np.int32)
    return int(word)


@pytest.mark.skipif(bool(TRITON), reason="Triton knows no turns")
def test_a_model_with_turns(server: Any) -> None:
    """It says how many requests it has: never more than it has room for, and those that are cancelled leave."""
    with channel(server.grpc_port) as opened:

        def call(word: int) -> Any:
            return stub(opened).ModelStreamInfer(iter([message("turns_process", [word])]), timeout=60)

        first = call(0)
        assert said(first) == 1
        second = call(0)
        assert said(second) == 2
        third = call(0)
        eventually(lambda: metric(server, "nv_inference_pending_request_count", model="turns_process") == 1)
        first.cancel()
        assert said(third) == 2
        second.cancel()
        failing = call(1)
        assert said(failing) == 2, "what a turn has sent before it fails is not lost"
        for responses in (third, failing):
            assert "exited with status 70" in next(responses).error_message  # and another process is made
        assert eventually(lambda: not next(call(0)).error_message)


# Over HTTP


def test_generate_stream(server: Any, mode: str) -> None:
    document = {"IN": [3, 2]}
    path = f"/v2/models/repeat_{mode}"
    parts = events(server, f"{path}/generate_stream", document)
    assert [(part["INDEX"], part["OUT"]) for part in parts] == [(0, [0, 0]), (1, [1, 1]), (2, [2, 2])]
    one = http(server.http_port, "POST", f"{path}/generate", json.dumps({"IN": [1, 2]}).encode())
    assert (one.status, one.json["OUT"]) == (200, [0, 0])
    many = http(server.http_port, "POST", f"{path}/generate", json.dumps(document).encode())
    assert many.status == (200 if TRITON else 400)
    assert "generate expects model to produce exactly 1 response, use generate stream" in many.json["error"]


@pytest.mark.skipif(bool(TRITON), reason="not in Triton")
def test_infer_stream(server: Any, mode: str) -> None:
    inputs = [{"name": "IN", "datatype": "INT32", "shape": [1, 2], "data": [[3, 2]]}]
    parts = events(server, f"/v2/models/repeat_{mode}/infer_stream", {"inputs": inputs})
    outputs = [{output["name"]: output["data"] for output in part["outputs"]} for part in parts if part.get("outputs")]
    assert outputs == [{"INDEX": [number], "OUT": [number, number]} for number in range(3)]
    assert parts[-1]["parameters"]["triton_final_response"] is True


def test_errors_of_generate_stream(server: Any, mode: str) -> None:
    steps = json.dumps([["send", "a"], ["last error", "x"]])
    parts = events(server, f"/v2/models/scripted_{mode}/generate_stream", {"SCRIPT": steps, "VALUES": [1]})
    assert [part.get("OUT", part.get("error")) for part in parts] == ["a", "x"]


# Coroutines


@pytest.mark.parametrize("after", [0, 1])
def test_coroutines_of_a_decoupled_model_run_at_the_same_time(server: Any, mode: str, after: int) -> None:
    with stream(server) as opened:
        for number in range(8):
            opened.send(f"async_many_{mode}", {"IN": [100, 4, after]}, str(number + 1))
        responses = opened.until_final(8)
    assert len([*groupby(responses, lambda each: each.id)]) > 8, "one after the other"
    for number in range(8):
        mine = [each for each in responses if each.id == str(number + 1)]
        assert [each["OUT"] for each in mine[:-1]] == [[0], [1], [2], [3]]


@pytest.mark.skipif(bool(TRITON), reason="Triton 2.51 leaves such requests waiting")
def test_failing_coroutines(server: Any, mode: str) -> None:
    with stream(server) as opened:
        opened.send(f"async_many_{mode}", {"IN": [0, 100, 0]})
        responses = opened.until_final()
    assert [each["OUT"] for each in responses[:-1]] == [[number] for number in range(77)]
    assert "ValueError: 77 is refused" in responses[-1].message
    assert "model.py(" in responses[-1].message


@every_mode
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_coroutines_with_single_responses(server: Any, mode: str, protocol: str) -> None:
    def run(index: int) -> Any:
        return infer(server, protocol, f"async_single_{mode}", {"IN": [10, index, 0]})["OUT"]

    assert at_once(6, run) == [[index] for index in range(6)]


def test_streams_of_several_clients(server: Any, mode: str) -> None:
    """A model that sleeps between responses in threads does not hold up the others."""
    steps = [["thread", 0], ["sleep", 0.2], ["send", "a"], ["sleep", 0.2], ["last", "b"]]
    order: list[str] = []

    def run(_: int) -> list[str]:
        with stream(server) as opened:
            opened.send(f"scripted_{mode}", script(*steps))
            texts = [shown(opened.next())]
            order.append(texts[0])
            texts += [shown(each) for each in opened.until_final()]
            order.append(texts[-1])
            return texts

    assert at_once(10, run) == [["a", "b"]] * 10
    assert order != ["a", "b"] * 10, "one after the other"
