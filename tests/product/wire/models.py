"""The repository of the product test: a model of each kind, and the forms that its configuration takes while it serves.

Each model takes INPUT0 (INT32, of any length), whose first number is unique, and gives it back as the first number of
OUTPUT0; `sums`, `many` and `versions` give more. What a form of a configuration may refuse is said beside it.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from repositories import write_accumulator, write_onnx_identity

PLAIN, SLOW, MANY, SUMS, CHAIN, CALLER = "plain", "slow", "many", "sums", "chain", "caller"
CACHED, LIMITED, QUEUED, VERSIONS = "cached", "limited", "queued", "versions"
LARGE = ("large0", "large1", "large2")
"""They come into memory when they are called, and no more than two of them fit."""

ECHOES = (PLAIN, SLOW, CHAIN, CALLER, CACHED, LIMITED, QUEUED, VERSIONS, *LARGE)
"""One response for each request, whose tensors are alike."""
PROCESSES = (SLOW, MANY, CALLER)
"""Each of their instances has a process of its own."""
USES: Mapping[str, tuple[str, ...]] = {CHAIN: (PLAIN, SLOW), CALLER: (PLAIN,)}
"""Which models call which."""

FULL = "Exceeds maximum queue size"
EXPIRED = "Request timeout expired"

_GIB = 1 << 30
_LARGE_BYTES = 1000 * _GIB
MEMORY_LIMIT = 2500 * _GIB
"""Sizes of files that have no content: by far more than all that is really in memory."""

OPTIONS = (
    "--model-control-mode=explicit",
    "--load-model=*",
    "--cache-config=local,size=4194304",
    "--rate-limit=execution_count",
    "--strict-readiness=true",
    "--access-log=errors",
)

_HEAD = """
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
"""


@dataclass(frozen=True)
class Form:
    """A configuration of a model, and what it may refuse."""

    text: str
    refusals: tuple[str, ...] = ()


def _group(count: int, more: str = "") -> str:
    return f"instance_group {{ count: {count} kind: KIND_CPU {more} }}"


def _batching(delay_us: int = 0, policy: str = "", more: str = "") -> str:
    queue = f"default_queue_policy {{ {policy} }}" if policy else ""
    return f"dynamic_batching {{ max_queue_delay_microseconds: {delay_us} {queue} {more} }}"


_WAITING = _batching(2000)
_SMALL_QUEUE = _batching(policy="max_queue_size: 3")
_SHORT_QUEUE = _batching(policy="default_timeout_microseconds: 20000")
_DELAYED_QUEUE = _batching(policy="timeout_action: DELAY default_timeout_microseconds: 1000")
_LEVELS = _batching(more="priority_levels: 2 default_priority_level: 2")
_PREFERRED = _batching(3000, more="preferred_batch_size: [ 4 ]")
_ORDERED = _batching(more="preserve_ordering: true")

_ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
ensemble_scheduling {
  step { model_name: "plain" model_version: -1
         input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "between" } }
  step { model_name: "slow" model_version: -1
         input_map { key: "INPUT0" value: "between" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
}
"""

_DECOUPLED = """
backend: "python"
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
model_transaction_policy { decoupled: true }
"""


def _forms() -> dict[str, tuple[Form, ...]]:
    onnx, python, identity = (f'backend: "{backend}" {_HEAD}' for backend in ("onnxruntime", "python", "identity"))
    queued = [
        ("", ()),
        (_WAITING, ()),
        (_SMALL_QUEUE, (FULL,)),
        (_SHORT_QUEUE, (EXPIRED,)),
        (_DELAYED_QUEUE, ()),
        (_LEVELS, ()),
        (_PREFERRED, ()),
        (_ORDERED, ()),
    ]
    rate = 'rate_limiter { resources { name: "desk" count: 1 } priority: %d }'
    delay = 'parameters { key: "execute_delay_ms" value { string_value: "%d" } }'
    lazy = 'parameters { key: "residency.load" value { string_value: "lazy" } }'
    every = "version_policy { all { } }"
    thread = 'parameters { key: "EXECUTION_MODE" value { string_value: "thread" } }'
    cache = "response_cache { enable: true }"
    return {
        PLAIN: tuple(
            Form(f"{onnx}{_group(count)}{text}", refusals) for count in (1, 2) for text, refusals in queued[1:]
        ),
        SLOW: (
            Form(f"{python}{_group(2)}{_WAITING}"),
            *(Form(f"{python}{_group(count)}{text}", refusals) for count in (1, 3) for text, refusals in queued),
        ),
        MANY: tuple(Form(f"{_DECOUPLED}{_group(count)}") for count in (1, 2)),
        CHAIN: (Form(_ENSEMBLE),),
        CALLER: tuple(Form(f"{python}{_group(count)}") for count in (1, 2)),
        CACHED: tuple(
            Form(f"{identity}{_group(1)}{text}{kept}") for kept in (cache, "") for text in (_WAITING, "", _ORDERED)
        ),
        LIMITED: tuple(
            Form(f"{identity}{_group(count, rate % priority)}{_WAITING}{delay % 3}")
            for count, priority in ((2, 1), (3, 2))
        ),
        QUEUED: tuple(
            Form(f"{identity}{_group(count)}{text}{delay % 70}", refusals)
            for count in (1, 2)
            for text, refusals in queued[1:]
        ),
        VERSIONS: tuple(Form(f"{python}{_group(count)}{every}{thread}") for count in (1, 2)),
        **{name: tuple(Form(f"{identity}{_group(count)}{lazy}") for count in (1, 2)) for name in LARGE},
    }


FORMS: Mapping[str, tuple[Form, ...]] = _forms()
"""Of each model whose configuration may change; the first is that at the start."""

BROKEN = 'backend: "identity" max_batch_size: "many"'

_PYTHON_HEAD = """
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def rows(request):
    return pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()


def response(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.ascontiguousarray(array))])
"""

_SLOW_CODE = """
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(max(int(rows(each)[0, 1]) for each in requests) / 1000)
        return [response(rows(each)) for each in requests]
"""

_MANY_CODE = """
class TritonPythonModel:
    def execute(self, requests):
        for each in requests:
            number, count, pause_ms, width = (int(value) for value in rows(each).ravel()[:4])
            sender = each.get_response_sender()
            for place in range(count):
                if each.is_cancelled():
                    break
                if pause_ms:
                    time.sleep(pause_ms / 1000)
                values = np.full(2 + width, 7, np.int32)
                values[:2] = number, place
                sender.send(response(values))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

_CALLER_CODE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for each in requests:
            call = pb_utils.InferenceRequest(
                model_name="plain",
                requested_output_names=["OUTPUT0"],
                inputs=[pb_utils.get_input_tensor_by_name(each, "INPUT0")],
            )
            answer = call.exec()
            if answer.has_error():
                responses.append(pb_utils.InferenceResponse(error=answer.error()))
            else:
                responses.append(response(pb_utils.get_output_tensor_by_name(answer, "OUTPUT0").as_numpy()))
        return responses
"""

_VERSIONS_CODE = """
class TritonPythonModel:
    def initialize(self, args):
        self.version = int(args["model_version"])

    def execute(self, requests):
        return [self.answer(rows(each)) for each in requests]

    def answer(self, array):
        if self.version == 2 and array[0, 1] == 13:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("version 2 does not like this"))
        return response(array)
"""

_CODE: Mapping[str, tuple[str, tuple[int, ...]]] = {
    SLOW: (_SLOW_CODE, (1,)),
    MANY: (_MANY_CODE, (1,)),
    CALLER: (_CALLER_CODE, (1,)),
    VERSIONS: (_VERSIONS_CODE, (1, 2)),
}


def write(repository: Path) -> None:
    """All models, with their first forms."""
    for name in FORMS:
        if name == PLAIN:
            write_onnx_identity(repository, name, "INT32")
        code, versions = _CODE.get(name, ("", (1,)))
        for version in versions:
            directory = repository / name / str(version)
            directory.mkdir(parents=True, exist_ok=True)
            if code:
                (directory / "model.py").write_text(_PYTHON_HEAD + code)
        if name in LARGE:
            with (repository / name / "1" / "nothing").open("wb") as file:
                file.truncate(_LARGE_BYTES)
        put_form(repository, name, 0)
    idle = "max_sequence_idle_microseconds: 20000000"  # a client of a busy machine may pause for long
    write_accumulator(repository, SUMS, "oldest { max_candidate_sequences: 8 }", idle)


def put_form(repository: Path, name: str, place: int) -> Form:
    form = FORMS[name][place]
    _replace(repository / name / "config.pbtxt", form.text)
    return form


def put_broken(repository: Path, name: str) -> None:
    _replace(repository / name / "config.pbtxt", BROKEN)


def touch_files(repository: Path, name: str) -> None:
    """The files are others, though what they say is the same."""
    for file in (repository / name).glob("*/model.*"):
        copy = file.with_suffix(".copy")
        if file.suffix == ".py":
            copy.write_text(f"{file.read_text()}#\n")
        else:
            shutil.copyfile(file, copy)
        copy.replace(file)


def _replace(file: Path, text: str) -> None:
    """At once: a look at the repository never sees half of it."""
    copy = file.with_suffix(".copy")
    copy.write_text(text)
    copy.replace(file)
