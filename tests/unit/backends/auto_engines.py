"""Made-up engines for the backend that chooses among engines, and a made-up clock that only their executions move."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from modserve.backends.api import BatchDone, Executor, InstanceHandle, InstanceSpec, ModelSource
from modserve.core.configuration.model_config import DescribedTensor, ModelDescription
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array

DESCRIPTION = ModelDescription(
    (DescribedTensor("IN", dtypes.FP32, (-1, 4)),), (DescribedTensor("OUT", dtypes.FP32, (-1, 4)),), 7
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.now += seconds


@dataclass
class MadeUpEngine:
    """A backend whose executions take so many seconds a row, by precision, and which doubles, with an error.

    `failures` are raised by what they are called after: import, open, describe, instance, execute.
    """

    clock: Clock
    seconds: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, Exception] = field(default_factory=dict)
    description: ModelDescription | None = DESCRIPTION
    kind: Callable[["MadeUpModel"], Executor] = field(default=lambda model: MadeUpInstance(model))
    said: Mapping[str, object] = field(default_factory=dict)
    sources: list[ModelSource] = field(default_factory=list)
    specs: list[InstanceSpec] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    side_by_side: bool = False
    """Executions of instances that were opened together take no longer than one."""
    open_models: int = 0
    open_instances: int = 0
    default_model_filename: str = "model.onnx"
    default_cpu_instances: int = 1
    any_thread: bool = False

    def gpu_count(self) -> int:
        return 0

    def open(self, source: ModelSource) -> "MadeUpModel":
        self.sources.append(source)
        self.fail("open")
        self.open_models += 1
        return MadeUpModel(self, source)

    def fail(self, step: str) -> None:
        if step in self.failures:
            raise self.failures[step]


class MadeUpModel:
    def __init__(self, engine: MadeUpEngine, source: ModelSource) -> None:
        self.engine = engine
        hint = source.config.parameters.get("INFERENCE_PRECISION_HINT", "f32")
        self.precision = "bf16" if hint == "bf16" else "fp32"
        if {"WEIGHT_COMPRESSION", "dynamic_quantization"} & source.config.parameters.keys():
            self.precision = "int8"
        self.any_thread = not engine.any_thread
        self.instances = source.cpu_instances

    def describe(self) -> ModelDescription | None:
        self.engine.fail("describe")
        return self.engine.description

    def report(self) -> Mapping[str, object]:
        return self.engine.said

    def instance(self, spec: InstanceSpec) -> Executor:
        self.engine.fail("instance")
        self.engine.specs.append(spec)
        self.engine.open_instances += 1
        return self.engine.kind(self)

    def close(self) -> None:
        self.engine.open_models -= 1


class MadeUpInstance:
    def __init__(self, model: MadeUpModel) -> None:
        self.model = model

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        engine, precision = self.model.engine, self.model.precision
        engine.fail("execute")
        rows = len(inputs["IN"])
        engine.batches.append(rows)
        together = self.model.instances if engine.side_by_side else 1
        engine.clock.sleep(engine.seconds[precision] * rows / together)
        error = engine.errors.get(precision, 0.0)
        return {"OUT": (inputs["IN"] * np.float32(2 * (1 + error))).astype(np.float32)}

    def close(self) -> None:
        self.model.engine.open_instances -= 1


class AsyncMadeUp:
    """The same on an event loop: four executions at a time, into the same memory again and again."""

    max_in_flight = 4
    reuses_outputs = True

    def __init__(self, model: MadeUpModel) -> None:
        self._inner = MadeUpInstance(model)
        self._memory = np.zeros((64, 4), np.float32)
        self.attached = False
        self.most = 0
        self._running = 0

    def attach(self, handle: InstanceHandle) -> None:
        assert handle.loop.is_running()
        self.attached = True
        self._loop = handle.loop

    def start(self, inputs: Mapping[str, Array], outputs: tuple[str, ...], done: BatchDone) -> None:
        self._running += 1
        self.most = max(self.most, self._running)

        def finish() -> None:
            self._running -= 1
            try:
                result = self._inner.execute(inputs, outputs)["OUT"]
            except Exception as error:
                done(error)
                return
            lent = self._memory[: len(result)]
            lent[...] = result
            done({"OUT": lent})

        self._loop.call_soon(finish)

    def detach(self) -> None:
        self.attached = False

    def close(self) -> None:
        assert not self.attached
        self._inner.close()


class RequestMadeUp:
    """An instance that gets requests in place of batches."""

    def __init__(self, model: MadeUpModel) -> None:
        self._model = model

    def execute_requests(self, requests: object) -> None:
        raise AssertionError("nobody has requests")

    def close(self) -> None:
        self._model.engine.open_instances -= 1


def write_artifact(repository: Path, name: str, config: str, file: str = "model.onnx") -> None:
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    (repository / name / "1" / file).write_bytes(b"a graph")
    (repository / name / "config.pbtxt").write_text(config)
