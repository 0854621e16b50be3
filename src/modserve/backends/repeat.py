"""The ``repeat`` backend: many responses to one request, as Triton's repeat backend does.

A decoupled model to test clients with. For each element of input ``IN`` ([n], any type) a response is sent after the
milliseconds that ``DELAY`` (UINT32, [n]) says for it: ``OUT`` [1] is the element, and ``IDX`` (UINT32, [1], if the
configuration has it) its index. ``WAIT`` (UINT32, [1]) is how many milliseconds the instance takes no other request,
while the responses go on their way.
"""

import threading
import time
from collections.abc import Sequence

import numpy as np

from modserve.core.configuration.model_config import ModelConfig, ModelDescription
from modserve.core.errors import from_exception, invalid
from modserve.core.tensors import dtypes

from .api import INSTANCES, EngineRequest, InstanceSpec, ModelSource
from .code import NoCode

_INPUTS = {"IN": None, "DELAY": dtypes.UINT32, "WAIT": dtypes.UINT32}
_OUTPUTS = {"OUT": None, "IDX": dtypes.UINT32}
_POLL_INTERVAL = 0.02
"""Seconds after which a sleeping request checks for its cancellation."""


class RepeatBackend(NoCode):
    default_model_filename = ""
    default_cpu_instances = 1
    in_place = INSTANCES
    any_thread = False

    def gpu_count(self) -> int:
        return 0

    def open(self, source: ModelSource) -> "RepeatModel":
        return RepeatModel()


class RepeatModel:
    def describe(self) -> ModelDescription | None:
        return None

    def instance(self, spec: InstanceSpec) -> "RepeatInstance":
        _check(spec.config)
        return RepeatInstance()

    def close(self) -> None:
        pass


class RepeatInstance:
    def __init__(self) -> None:
        self._closing = threading.Event()

    def execute_requests(self, requests: Sequence[EngineRequest]) -> None:
        wait = 0
        for request in requests:
            wait = max([wait, *(int(ms) for ms in request.inputs["WAIT"].ravel())])
            threading.Thread(target=self._repeat, args=(request,), name="repeat", daemon=True).start()
        del requests
        self._closing.wait(wait / 1e3)

    def close(self) -> None:
        self._closing.set()

    def _repeat(self, request: EngineRequest) -> None:
        try:
            values, delays = request.inputs["IN"].ravel(), request.inputs["DELAY"].ravel()
            if len(values) != len(delays):
                raise invalid(f"expected IN and DELAY shape to match, got [{len(values)}] and [{len(delays)}]")
            for index, delay in enumerate(delays):
                _sleep(int(delay) / 1e3, request)
                if request.cancelled:
                    break
                request.respond({"OUT": values[index : index + 1], "IDX": np.array([index], np.uint32)})
            request.complete()
        except Exception as error:
            request.fail(from_exception(error, "the repeat backend failed"))


def _sleep(seconds: float, request: EngineRequest) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not request.cancelled:
        time.sleep(min(left, _POLL_INTERVAL))


def _check(config: ModelConfig) -> None:
    """Check the tensors. Raises INVALID_ARG for tensors that this backend does not have."""
    if not config.decoupled:
        raise invalid(
            f"model '{config.name}': the repeat backend only supports models with decoupled transaction policy, "
            "set model_transaction_policy { decoupled: true }"
        )
    if config.batching:
        raise invalid(f"model '{config.name}': the repeat backend does not support batching, set max_batch_size to 0")
    inputs, outputs = config.inputs_by_name, config.outputs_by_name
    for tensors, known, what in ((inputs, _INPUTS, "input"), (outputs, _OUTPUTS, "output")):
        for name, spec in tensors.items():
            if name not in known:
                raise invalid(f"model '{config.name}': the repeat backend has no {what} '{name}', only {list(known)}")
            datatype = known[name]
            if datatype is not None and spec.datatype is not datatype:
                raise invalid(f"model '{config.name}': {what} '{name}' must be {datatype.config_name}")
    missing = [name for name in _INPUTS if name not in inputs] + [name for name in ("OUT",) if name not in outputs]
    if missing:
        raise invalid(f"model '{config.name}': the repeat backend needs {', '.join(missing)}")
    if inputs["IN"].datatype is not outputs["OUT"].datatype:
        raise invalid(f"model '{config.name}': IN and OUT must be of the same data type")
