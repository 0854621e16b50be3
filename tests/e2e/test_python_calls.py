"""Models written in Python that call other models: by `exec` and `async_exec`, with one response or many."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from python_callers import ASYNC_EXECUTE, CALLER, COUNT, INITIALIZING, PLAIN, SLOW, SYNC_EXECUTE
from python_models import (
    EVERY_MODE,
    PROTOCOLS,
    TRITON,
    at_once,
    every_mode,
    infer,
    serving_python,
    stream,
    tensors,
    write_python,
)
from repositories import write_accumulator, write_identity
from server_process import eventually

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
    numbers = tensors("input", A="INT32 -1", B="INT32 -1")
    write_python(repository, "add", PLAIN, numbers + sums, modes=EVERY_MODE)
    number = tensors("input", IN="INT32 1") + tensors("output", OUT="INT32 1")
    for name in ("slow", "pool"):
        code = SLOW.replace("PATH", repr(f"{notes}/{name}_MODE"))
        write_python(repository, name, code, number + (" instance_group { count: 4 }" if name == "pool" else ""))
    write_python(repository, "queued", SLOW.replace("PATH", repr(f"{notes}/queued_MODE")), QUEUED)
    code = COUNT.replace("PATH", repr(f"{notes}/count_MODE"))
    write_python(repository, "count", code, number + "model_transaction_policy { decoupled: true }")
    what = tensors("input", WHAT="BYTES 1") + tensors("output", OUT="BYTES 1")
    caller = CALLER.replace("NOTES", repr(str(notes)))
    write_python(repository, "caller", caller + SYNC_EXECUTE, what)
    write_python(repository, "other", caller + SYNC_EXECUTE, what)
    write_python(repository, "gatherer", caller + ASYNC_EXECUTE, what)
    # What sleeps does so in a thread: on the event loop, all would sleep.
    code = re.sub("(slow|pool|queued|count)_MODE", r"\1_thread", caller) + ASYNC_EXECUTE
    write_python(repository, "gatherer", code, what, modes=["inline"])
    write_python(repository, "initializing", INITIALIZING, what)
    write_identity(repository, "identity_empty")
    (repository / "ensemble" / "1").mkdir(parents=True)
    (repository / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    write_accumulator(repository, "accumulate", "direct { }")
    with serving_python(repository) as running:
        yield running


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
    "every_argument": ["1", 4, 0, 60_000_000, {"key": "value", "number": 3, "flag": True}, [3]],
    "large": [True, True, True],
    "empty": [{"OUTPUT0": []}, [1, 0]],
    "decoupled": [[*out(0, 1, 2), {}], [{}], [*out(0), {}]],
    "decoupled_twice": [[*out(0, 1, 2), {}]] * 2,
    "begins_at_once": [True, out(1)],
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


ERRORS = [
    ("INVALID_ARG", "666 is refused"),
    ("NOT_FOUND", "nosuch"),
    ("NOT_FOUND", "9"),
    ("INVALID_ARG", "NOSUCH"),
    ("INVALID_ARG", "expected 2 inputs but got 1 inputs for model"),
    ("UNSUPPORTED", "responded more than once"),
]


def test_errors_of_calls(server: Any, mode: str) -> None:
    got = done(server, mode, "errors")
    for (what, code, message, outputs), (expected, text) in zip(got, ERRORS, strict=True):
        assert (what, code, outputs) == ("error", expected, 0)
        assert text in message


def test_errors_of_decoupled_calls(server: Any, mode: str) -> None:
    error, end = done(server, mode, "decoupled_error")
    assert (error[2], end) == ("13 is refused", {})
    assert done(server, mode, "decoupled_refused")[0][:2] == ["error", "NOT_FOUND"]


@pytest.mark.parametrize(
    ("model", "what"), [("caller", "cancelled"), ("caller", "forgotten"), ("gatherer", "cancelled_decoupled")]
)
def test_cancelled_calls(server: Any, mode: str, notes: Path, model: str, what: str) -> None:
    file = notes / f"count_{mode}"
    before = file.read_text() if file.exists() else ""
    got = done(server, mode, what, model=model)
    if what == "forgotten":
        assert got == out(0)[0]
    else:
        *first, last = got
        assert first == out(*range(3 if what == "cancelled" else 1))
        assert last in ({}, ["error", "CANCELLED"])  # the model may end the call before it is cancelled here
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


def test_calls_that_wait_are_refused_on_the_event_loop(server: Any) -> None:
    got = done(server, "inline", "refused", model="gatherer")
    assert len(got) == 3
    for text in got:
        assert "would block the whole server, because the model runs on its event loop" in text


GATHERED: dict[str, Any] = {
    "gathered": list(range(1, 51)),
    "gathered_slow": "together",
    "gathered_decoupled": [[*out(*range(number)), {}] for number in range(4)],
    "waited_for": "late",
}


@pytest.mark.parametrize(
    ("mode", "what"),
    [(mode, what) for mode in EVERY_MODE for what in GATHERED if (mode, what) != ("inline", "gathered_decoupled")],
)
def test_asynchronous_calls(server: Any, mode: str, what: str) -> None:
    assert done(server, mode, what, model="gatherer") == GATHERED[what]


@every_mode
def test_errors_of_asynchronous_calls(server: Any, mode: str) -> None:
    got = done(server, mode, "failing", model="gatherer")
    assert [each[1] for each in got] == ["INVALID_ARG", "NOT_FOUND"]


@every_mode
def test_a_call_may_be_too_late(server: Any, mode: str) -> None:
    """As in Triton, the time-out of a call is one for the queue."""
    slow, late, patient = done(server, mode, "timeout", model="gatherer")
    assert [slow, late[:2], patient] == [{"OUT": [1]}, ["error", "UNAVAILABLE"], {"OUT": [1]}]


def test_calls_of_several_clients(server: Any, mode: str) -> None:
    assert at_once(6, lambda _: done(server, mode, "add_sub")["SUM"]) == [[8]] * 6
    assert at_once(6, lambda _: len(done(server, mode, "gathered", model="gatherer"))) == [50] * 6


def test_readiness_may_be_looked_up_while_loading(server: Any, mode: str) -> None:
    assert done(server, mode, "-", model="initializing") is False


@every_mode
def test_a_client_that_leaves_takes_the_calls_along(server: Any, mode: str, notes: Path) -> None:
    file = notes / f"slow_{mode.replace('inline', 'thread')}"
    before = file.read_text() if file.exists() else ""
    with stream(server) as opened:
        opened.send(f"gatherer_{mode}", {"WHAT": np.array(["waiting"], np.object_)})
        eventually(lambda: file.exists() and file.read_text() == before + "begun ")
        opened.client.stop_stream(cancel_requests=True)
    eventually(lambda: file.read_text() == before + "begun cancelled ")
