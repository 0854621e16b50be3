"""Models written in Python that call other models: by `exec` and `async_exec`, with one response or many."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from python_models import (
    MODES,
    PROTOCOLS,
    TRITON,
    at_once,
    infer,
    serving_python,
    stream,
    tensors,
    write_python,
)
from repositories import write_accumulator, write_identity
from server_process import eventually

PLAIN = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a, b = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("A", "B")]
            if a[0] == 666:
                error = pb_utils.TritonError("666 is refused", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            made = [pb_utils.Tensor("SUM", a + b), pb_utils.Tensor("DIFFERENCE", a - b)]
            responses.append(pb_utils.InferenceResponse(made))
        return responses
"""

SLOW = """
import time

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            end = time.monotonic() + float(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().ravel()[0]) / 1000
            while time.monotonic() < end and not request.is_cancelled():
                time.sleep(0.005)
            open(PATH, "a").write("cancelled " if request.is_cancelled() else "done ")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[1]] if "queued" in PATH else [1], np.int32))]))
        return responses
"""

COUNT = """
import time

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            (count,) = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for number in range(count):
                if sender.is_cancelled():
                    open(PATH, "a").write("cancelled ")
                    break
                if number == 13:
                    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("13 is refused")))
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))]))
                if count > 1000:
                    time.sleep(0.001)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

CALLER = """
import asyncio
import threading
import time

def ints(name, *values):
    return pb_utils.Tensor(name, np.array(values, np.int32))

def add(a, b, *, model="add_MODE", names=("SUM", "DIFFERENCE"), **more):
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=list(names), inputs=[ints("A", a), ints("B", b)], **more)

def one(model, value, **more):
    tensor = pb_utils.Tensor("IN", np.array([[value]] if model.startswith("queued") else [value], np.int32))
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUT"], inputs=[tensor], **more)

def outcome(response):
    if response.has_error():
        code = str(response.error().code()).split(".")[-1]
        return ["error", code, response.error().message(), len(response.output_tensors())]
    return {tensor.name(): [as_json(value) for value in tensor.as_numpy().ravel().tolist()]
            for tensor in response.output_tensors()}

def as_json(value):
    return json.loads(value) if isinstance(value, bytes) else value

def outcomes(responses):
    return [outcome(response) for response in responses]

def add_sub():
    return outcome(add(5, 3).exec())

def some_outputs():
    return outcome(add(5, 3, names=["SUM"]).exec())

def many():
    return [outcome(add(number, 1).exec())["SUM"][0] for number in range(300)]

def errors():
    missing = pb_utils.InferenceRequest(model_name="add_MODE", requested_output_names=["SUM"], inputs=[ints("A", 1)])
    return outcomes([
        add(666, 1).exec(),
        add(1, 1, model="nosuch").exec(),
        add(1, 1, model_version=9).exec(),
        add(1, 1, names=["NOSUCH"]).exec(),
        missing.exec(),
        one("count_MODE", 3).exec(),
    ])

def wrong_arguments():
    texts = []
    for arguments in (
        {"inputs": [], "requested_output_names": []},
        {"model_name": "m", "requested_output_names": []},
        {"model_name": "m", "inputs": []},
        {"model_name": "m", "inputs": [None], "requested_output_names": []},
    ):
        try:
            pb_utils.InferenceRequest(**arguments)
        except Exception as error:
            texts.append(type(error).__name__)
    return texts

def again():
    request = add(1, 2)
    responses = [request.exec(), request.exec(), add(1, 2, model_version=1).exec()]
    return [each["SUM"] for each in outcomes(responses)]

def large():
    values = np.arange(3_000_000, dtype=np.int32)
    request = pb_utils.InferenceRequest(
        model_name="add_MODE", requested_output_names=["SUM"],
        inputs=[pb_utils.Tensor("A", values), pb_utils.Tensor("B", values)])
    responses = [request.exec() for _ in range(3)]
    return [bool((each.output_tensors()[0].as_numpy() == values * 2).all()) for each in responses]

def empty():
    none = np.zeros((0,), np.int32)
    request = pb_utils.InferenceRequest(
        model_name="identity_empty", requested_output_names=["OUTPUT0"],
        inputs=[pb_utils.Tensor("INPUT0", none.reshape(1, 0))])
    return [outcome(request.exec()), request.exec().output_tensors()[0].shape()]

def decoupled():
    return [outcomes(one("count_MODE", value).exec(decoupled=True)) for value in (3, 0, 1)]

def decoupled_twice():
    responses = one("count_MODE", 3).exec(decoupled=True)
    return [outcomes(responses), outcomes(responses)]

def decoupled_error():
    return outcomes(one("count_MODE", 20).exec(decoupled=True))[-2:]

def decoupled_single():
    responses = add(5, 3).exec(decoupled=True)
    return outcomes(responses)

def decoupled_refused():
    return outcomes(one("nosuch", 3).exec(decoupled=True))

def cancelled():
    responses = one("count_MODE", 1_000_000).exec(decoupled=True)
    first = [outcome(next(responses)) for _ in range(3)]
    responses.cancel()
    return first

def forgotten():
    responses = one("count_MODE", 1_000_000).exec(decoupled=True)
    return outcome(next(responses))

def ensemble():
    request = pb_utils.InferenceRequest(
        model_name="ensemble", requested_output_names=["OUTPUT0"],
        inputs=[pb_utils.Tensor("INPUT0", np.array([[7]], np.int32))])
    return outcome(request.exec())

def sequence():
    start, end = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
    got = []
    for id in (71, "name"):
        for value, flags in ((1, start), (2, 0), (3, end)):
            request = pb_utils.InferenceRequest(
                model_name="accumulate", requested_output_names=["OUTPUT"], correlation_id=id,
                inputs=[pb_utils.Tensor("INPUT", np.array([[value]], np.int32))])
            request.set_flags(flags)
            got.append(outcome(request.exec()).get("OUTPUT"))
    return got

def threads():
    got = [None] * 8
    def run(index):
        got[index] = [outcome(add(index, number).exec())["SUM"][0] for number in range(20)]
    started = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return got

def ready():
    return [pb_utils.is_model_ready("add_MODE"), pb_utils.is_model_ready("add_MODE", "1"),
            pb_utils.is_model_ready("add_MODE", "7"), pb_utils.is_model_ready("nosuch")]

def itself():
    return outcome(call_of("caller_MODE", "add_sub").exec())

def ring():
    return outcome(call_of("other_MODE", "itself").exec())

def nested():
    return outcome(call_of("other_MODE", "add_sub").exec())

def call_of(model, what):
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=["OUT"],
        inputs=[pb_utils.Tensor("WHAT", np.array([what], np.object_))])

async def gathered():
    responses = await asyncio.gather(*[add(number, 1).async_exec() for number in range(50)])
    return [outcome(each)["SUM"][0] for each in responses]

async def gathered_slow():
    begun = time.monotonic()
    await asyncio.gather(*[one("pool_MODE", 200).async_exec() for _ in range(4)])
    return time.monotonic() - begun < 0.75

async def gathered_decoupled():
    iterators = await asyncio.gather(*[one("count_MODE", number).async_exec(decoupled=True) for number in range(4)])
    return [outcomes(each) for each in iterators]

async def cancelled_decoupled():
    responses = await one("count_MODE", 1_000_000).async_exec(decoupled=True)
    first = outcome(next(responses))
    responses.cancel()
    return first

async def failing():
    return outcomes(await asyncio.gather(add(666, 1).async_exec(), add(1, 1, model="nosuch").async_exec()))

async def timeout():
    calls = [one("queued_MODE", 500), one("queued_MODE", 0, timeout=50_000), one("queued_MODE", 0)]
    return outcomes(await asyncio.gather(*[call.async_exec() for call in calls]))

async def waiting():
    return outcome(await one("slow_MODE", 5000).async_exec())

async def waited_for():
    try:
        await asyncio.wait_for(one("slow_MODE", 3000).async_exec(), 0.1)
    except asyncio.TimeoutError:
        return "late"
"""

SYNC_EXECUTE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            what = pb_utils.get_input_tensor_by_name(request, "WHAT").as_numpy()[0].decode()
            responses.append(self.response(globals()[what]()))
        return responses

    def response(self, got):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(got)], np.object_))])
"""
ASYNC_EXECUTE = SYNC_EXECUTE.replace("def execute", "async def execute").replace("globals()", "await globals()")

INITIALIZING = """
class TritonPythonModel:
    def initialize(self, args):
        self.ready = pb_utils.is_model_ready("nosuch")

    def execute(self, requests):
        made = [pb_utils.Tensor("OUT", np.array([json.dumps(self.ready)], np.object_))]
        return [pb_utils.InferenceResponse(made) for _ in requests]
"""

QUEUED = (
    tensors("input", IN="INT32 1")
    + tensors("output", OUT="INT32 1")
    + """
max_batch_size: 1
dynamic_batching { default_queue_policy { timeout_action: REJECT allow_timeout_override: true } }
"""
)

ENSEMBLE = """
platform: "ensemble"
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1, -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1, -1 ] }
ensemble_scheduling { step {
  model_name: "identity_empty" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
} }
"""


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notes")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, notes: Path) -> Iterator[Any]:
    repository = tmp_path_factory.mktemp("python_calls")
    sums = tensors("output", SUM="INT32 -1", DIFFERENCE="INT32 -1")
    write_python(repository, "add", PLAIN, tensors("input", A="INT32 -1", B="INT32 -1") + sums)
    number = tensors("input", IN="INT32 1") + tensors("output", OUT="INT32 1")
    for name in ("slow", "pool"):
        code = SLOW.replace("PATH", repr(f"{notes}/{name}_MODE"))
        write_python(repository, name, code, number + (" instance_group { count: 4 }" if name == "pool" else ""))
    write_python(repository, "queued", SLOW.replace("PATH", repr(f"{notes}/queued_MODE")), QUEUED)
    code = COUNT.replace("PATH", repr(f"{notes}/count_MODE"))
    write_python(repository, "count", code, number + "model_transaction_policy { decoupled: true }")
    what = tensors("input", WHAT="BYTES 1") + tensors("output", OUT="BYTES 1")
    write_python(repository, "caller", CALLER + SYNC_EXECUTE, what)
    write_python(repository, "other", CALLER + SYNC_EXECUTE, what)
    write_python(repository, "gatherer", CALLER + ASYNC_EXECUTE, what)
    write_python(repository, "initializing", INITIALIZING, what)
    write_identity(repository, "identity_empty")
    (repository / "ensemble" / "1").mkdir(parents=True)
    (repository / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    write_accumulator(repository, "accumulate", "direct { }")
    with serving_python(repository) as running:
        yield running


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def done(server: Any, mode: str, what: str, protocol: str = "grpc", model: str = "caller") -> Any:
    """What the model's function `what` returns."""
    response = infer(server, protocol, f"{model}_{mode}", {"WHAT": np.array([what], np.object_)})
    return json.loads(response["OUT"][0])


def out(*numbers: int) -> list[dict[str, list[int]]]:
    return [{"OUT": [number]} for number in numbers]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_exec(server: Any, mode: str, protocol: str) -> None:
    assert done(server, mode, "add_sub", protocol) == {"SUM": [8], "DIFFERENCE": [2]}


CALLS: dict[str, Any] = {
    "some_outputs": {"SUM": [8]},
    "many": list(range(1, 301)),
    "again": [[3], [3], [3]],
    "large": [True, True, True],
    "empty": [{"OUTPUT0": []}, [1, 0]],
    "decoupled_twice": [out(0, 1, 2), out(0, 1, 2)],
    "decoupled_single": [{"SUM": [8], "DIFFERENCE": [2]}],
    "ensemble": {"OUTPUT0": [7]},
    "sequence": [[1], [3], [6]] * 2,
    "threads": [[index + number for number in range(20)] for index in range(8)],
    "ready": [True, True, False, False],
    "nested": {"OUT": [{"SUM": [8], "DIFFERENCE": [2]}]},
    "wrong_arguments": ["TypeError", "TypeError", "TypeError", "TritonModelException"],
}


@pytest.mark.parametrize("what", CALLS)
def test_calls(server: Any, mode: str, what: str) -> None:
    assert done(server, mode, what) == CALLS[what]


def test_decoupled_calls(server: Any, mode: str) -> None:
    """Triton's iterators end with an empty response, where the end came alone."""
    got = done(server, mode, "decoupled")
    assert [[each for each in one if each] for one in got] == [out(0, 1, 2), [], out(0)]


ERRORS = [
    ("INVALID_ARG", "666 is refused"),
    ("NOT_FOUND", "nosuch"),
    ("NOT_FOUND", "9"),
    ("INVALID_ARG", "NOSUCH"),
    ("INVALID_ARG", "expected 2 inputs but got 1 inputs for model"),
    ("UNSUPPORTED", "decoupled"),
]


def test_errors_of_calls(server: Any, mode: str) -> None:
    got = done(server, mode, "errors")
    for (what, code, message, outputs), (expected, text) in zip(got, ERRORS, strict=True):
        assert (what, code, outputs) == ("error", expected, 0)
        assert text in message


def test_errors_of_decoupled_calls(server: Any, mode: str) -> None:
    got = [each for each in done(server, mode, "decoupled_error") if each]
    assert got[-1][2] == "13 is refused"
    assert done(server, mode, "decoupled_refused")[0][:2] == ["error", "NOT_FOUND"]


@pytest.mark.parametrize(
    ("model", "what"), [("caller", "cancelled"), ("caller", "forgotten"), ("gatherer", "cancelled_decoupled")]
)
def test_cancelled_calls(server: Any, mode: str, notes: Path, model: str, what: str) -> None:
    file = notes / f"count_{mode}"
    before = file.read_text() if file.exists() else ""
    got = done(server, mode, what, model=model)
    assert got == (out(0, 1, 2) if what == "cancelled" else out(0)[0])
    eventually(lambda: file.exists() and file.read_text() == before + "cancelled ")


@pytest.mark.parametrize("what", ["itself", "ring"])
@pytest.mark.skipif(bool(TRITON), reason="Triton waits for ever")
def test_models_that_wait_for_themselves(server: Any, mode: str, what: str) -> None:
    got = done(server, mode, what)
    if what == "ring":
        got = got["OUT"][0]
    assert got[:2] == ["error", "UNSUPPORTED"]
    assert f"caller_{mode}" in got[2]
    assert done(server, mode, "add_sub") == {"SUM": [8], "DIFFERENCE": [2]}


GATHERED: dict[str, Any] = {
    "gathered": list(range(1, 51)),
    "gathered_slow": True,
    "gathered_decoupled": [[], out(0), out(0, 1), out(0, 1, 2)],
    "waited_for": "late",
}


@pytest.mark.parametrize("what", GATHERED)
def test_asynchronous_calls(server: Any, mode: str, what: str) -> None:
    got = done(server, mode, what, model="gatherer")
    if what == "gathered_decoupled":
        got = [[each for each in one if each] for one in got]
    assert got == GATHERED[what]


def test_errors_of_asynchronous_calls(server: Any, mode: str) -> None:
    got = done(server, mode, "failing", model="gatherer")
    assert [each[1] for each in got] == ["INVALID_ARG", "NOT_FOUND"]


def test_a_call_may_be_too_late(server: Any, mode: str) -> None:
    """As in Triton, the time-out of a call is one for the queue."""
    slow, late, patient = done(server, mode, "timeout", model="gatherer")
    assert [slow, late[:2], patient] == [{"OUT": [1]}, ["error", "UNAVAILABLE"], {"OUT": [1]}]


def test_calls_of_several_clients(server: Any, mode: str) -> None:
    begun = time.monotonic()
    assert at_once(6, lambda _: done(server, mode, "add_sub")["SUM"]) == [[8]] * 6
    assert at_once(6, lambda _: len(done(server, mode, "gathered", model="gatherer"))) == [50] * 6
    assert time.monotonic() - begun < 10


def test_readiness_may_be_looked_up_while_loading(server: Any, mode: str) -> None:
    assert done(server, mode, "-", model="initializing") is False


def test_a_client_that_leaves_takes_the_calls_along(server: Any, mode: str, notes: Path) -> None:
    file = notes / f"slow_{mode}"
    before = file.read_text() if file.exists() else ""
    with stream(server) as opened:
        opened.send(f"gatherer_{mode}", {"WHAT": np.array(["waiting"], np.object_)})
        time.sleep(0.2)
        opened.client.stop_stream(cancel_requests=True)
    eventually(lambda: file.exists() and file.read_text() == before + "cancelled ", 2.5)
