"""Models inside the server for unit tests: their requests, and the server that they call, are fakes."""

import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from modserve import testing
from modserve.backends.api import EngineRequest, ModelCaller, ModelSource
from modserve.backends.python.inline import InlineInstance
from modserve.backends.python.thread import PythonThreadInstance
from modserve.core.errors import ModserveError
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors.tensor import Array, Tensor

HEAD = """\
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

def value(request):
    return pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()

def response(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])

def call(model="other"):
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", np.zeros(1, np.float32))])

class TritonPythonModel:
"""
DOUBLE = """
def execute(self, requests):
    return [response(value(each) * 2) for each in requests]
"""


class FakeRequest:
    """Implements `backends.api.EngineRequest`, as far as instances inside the server use it."""

    def __init__(self, *values: float, raw: bool = False, **more: Any) -> None:
        array = np.array(values, np.float32)
        tensor = Tensor.from_array(array)
        if raw:
            tensor = Tensor.from_raw(tensor.datatype, tensor.shape, bytearray(tensor.raw))
        self.tensors: Mapping[str, Tensor] = {"IN": tensor}
        self.id = self.request_id = self.trace_context = ""
        self.outputs = ("OUT",)
        self.parameters: Mapping[str, Any] = {}
        self.timeout_ns = self.priority = self.correlation_id = 0
        self.sequence_start = self.sequence_end = self.cancelled = False
        self.events: list[Any] = []
        vars(self).update(more)

    def respond(self, outputs: Mapping[str, Tensor], *, parameters: Mapping[str, Any], final: bool) -> bool:
        self.events.append({name: tensor.array.tolist() for name, tensor in outputs.items()})
        if parameters:
            self.events.append(dict(parameters))
        return True

    def fail(self, error: ModserveError, *, final: bool = True) -> bool:
        self.events.append(error)
        return True

    def complete(self) -> None:
        self.events.append("complete")

    def reschedule(self) -> None:
        self.events.append("again")


class FakeModels:
    """Implements `backends.api.ModelCaller`: the test responds to the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[InferenceRequest, Sequence[EngineRequest], Future[InferenceResponse]]] = []

    def infer(
        self, request: InferenceRequest, *, parent: Sequence[EngineRequest], trace: str = ""
    ) -> "Future[InferenceResponse]":
        future: Future[InferenceResponse] = Future()
        self.calls.append((request, parent, future))
        return future

    def is_ready(self, name: str, version: int | None = None) -> "Future[bool]":
        future: Future[bool] = Future()
        future.set_result(True)
        return future


def result(array: Array) -> InferenceResponse:
    return InferenceResponse("other", 1, {"OUT": Tensor.from_array(array)})


Kind = TypeVar("Kind", PythonThreadInstance, InlineInstance)


def instance(
    kind: type[Kind],
    path: Path,
    methods: str = DOUBLE,
    models: FakeModels | None = None,
    **config: Any,
) -> Kind:
    """One that has been initialized; `methods` are those of its class, `config` parts of its configuration."""
    file = path / "m" / "1" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text(HEAD + textwrap.indent(textwrap.dedent(methods), "    "))
    written = testing.config("m", max_batch_size=0, **config)
    source = ModelSource(written, 1, file, file.parents[1], models=cast(ModelCaller, models or FakeModels()))
    made = kind("model 'm'", source, {"path": str(file), "name": "m"})
    made.initialize("model 'm', instance 'm_0'", testing.instance_spec(written), {"model_name": "m"})
    return made


def engine(*requests: FakeRequest) -> list[EngineRequest]:
    return cast(list[EngineRequest], list(requests))
