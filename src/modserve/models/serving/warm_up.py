"""Warm-up: makes samples from the configuration, or from generated data, and runs them on instances.

Triton makes requests of a sample that skip its scheduler, `batch_size` of them, each with a row of the same data. So do
we. Where Triton's requests to a model with sequences are outside all sequences, and lack the control inputs that the
sample does not name, ours are sequences of one request, with new states.
"""

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from modserve.backends.api import InstanceLostError
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.configuration.sequence_config import ControlKind, SequenceBatching
from modserve.core.configuration.warm_up_config import WARM_UP_FOLDER, DataKind, WarmUp, WarmUpInput, WarmUpMode
from modserve.core.errors import ModserveError, from_exception, invalid
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.normalize import Signature
from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.core.requests.response import NOBODY, ResponseSink
from modserve.core.requests.sequence import ControlTensors, SequenceId, StateTable, membership
from modserve.core.tensors import dtypes
from modserve.core.tensors.sample_data import Sizes, file_tensor, generator, likely, random_values, zeros
from modserve.core.tensors.tensor import Tensor
from modserve.execution.pool import InstancePool
from modserve.execution.warming import Ran, Sample, failure_of

_log = logging.getLogger(__name__)

_MOST_MADE_UP = 64 << 20
"""Bytes of a batch that is made up: the largest batch of some models would take all memory."""


def make_samples(
    config: ModelConfig, mode: WarmUpMode, directory: Path, initial_states: Mapping[str, Tensor]
) -> Sequence[Sample]:
    """Make the samples that each instance of a model is to run. Blocks; for a loading thread.

    `directory` is that of the model, `initial_states` as `models.loading.reading` reads them. Raises INVALID_ARG
    for samples that the model does not take; generated ones are left out then, with a warning.
    """
    if mode is WarmUpMode.OFF:
        return []
    if config.warm_ups or mode is WarmUpMode.CONFIG:
        return [_read_sample(config, warm_up, directory, initial_states) for warm_up in config.warm_ups]
    if config.decoupled:
        _log.info("model '%s' is decoupled: it is not warmed up with generated data", config.name)
        return []
    try:
        return _generate(config, initial_states)
    except ModserveError as error:
        _log.warning("model '%s' is not warmed up: %s", config.name, error.message)
        return []


def _read_sample(config: ModelConfig, warm_up: WarmUp, directory: Path, initial_states: Mapping[str, Tensor]) -> Sample:
    tensors: dict[str, Tensor] = {}
    try:
        for name, said in warm_up.inputs.items():
            tensors[name] = _tensor(said, directory / WARM_UP_FOLDER / said.file)
        absent = [spec for spec in config.inputs if not spec.optional and spec.name not in tensors]
        tensors.update(_likely(absent, Sizes("", config.name)))
        requests = _Requests(config, warm_up.name, tensors, warm_up.batch_size, initial_states)
        requests(NOBODY)
    except ModserveError as error:
        raise invalid(f"model '{config.name}': warm-up sample '{warm_up.name}': {error.message}") from None
    return Sample(warm_up.name, warm_up.count, requests)


def _tensor(spec: WarmUpInput, file: Path) -> Tensor:
    """Make one row, without the batch dimension."""
    if spec.kind is DataKind.FILE:
        return file_tensor(file, spec.datatype, spec.dims)
    random = spec.kind is DataKind.RANDOM
    array = random_values(spec.datatype, spec.dims, generator()) if random else zeros(spec.datatype, spec.dims)
    return Tensor.from_array(array, spec.datatype)


def _likely(specs: Sequence[TensorSpec], sizes: Sizes) -> dict[str, Tensor]:
    """Return a row of what most models take, for each of these inputs."""
    random = generator()
    shapes = {spec.name: sizes.resolve(spec.name, spec.dims) for spec in specs}
    length = min([shape[-1] for shape in shapes.values() if shape], default=1)
    return {
        spec.name: Tensor.from_array(likely(spec.name, spec.datatype, shapes[spec.name], random, length), spec.datatype)
        for spec in specs
    }


def _generate(config: ModelConfig, initial_states: Mapping[str, Tensor]) -> list[Sample]:
    """Generate samples of one row, and of as many as a batch may have."""
    tensors = _likely(config.inputs, Sizes(config.parameters.get("sample_shape", ""), config.name))
    size = sum(math.prod(tensor.shape) * (tensor.datatype.size or 64) for tensor in tensors.values())
    most = max(1, min(config.max_batch_size, _MOST_MADE_UP // max(1, size)))
    samples: list[Sample] = []
    for rows in sorted({1, most}):
        name = f"generated, {rows} row{'s' * (rows > 1)}" if config.batching else "generated"
        requests = _Requests(config, name, tensors, rows, initial_states)
        requests(NOBODY)
        samples.append(Sample(name, 1, requests, made_up=True))
    return samples


class _Requests:
    """Makes the requests of a sample, `count` of them with one row each, as `Sample.requests`."""

    def __init__(
        self,
        config: ModelConfig,
        name: str,
        tensors: Mapping[str, Tensor],
        count: int,
        initial_states: Mapping[str, Tensor],
    ) -> None:
        self._config = config
        self._accept = Signature(config).accept
        self._id = f"warm-up {name}"
        self._count = count
        batch = (1,) if config.batching else ()
        rows = {name: tensor.reshaped((*batch, *tensor.shape)) for name, tensor in tensors.items()}
        for tensor in rows.values():
            tensor.array.setflags(write=False)
        self._inputs = {name: tensor for name, tensor in rows.items() if name in config.inputs_by_name}
        self._special = {name: tensor for name, tensor in rows.items() if name not in config.inputs_by_name}
        sequences = self._sequences = config.sequence_batching
        self._controls: ControlTensors | None = None
        self._states: StateTable | None = None
        if sequences is not None:
            self._controls = ControlTensors(sequences.controls, config.batching)
            self._states = StateTable(sequences.states, config.batching, initial_states)

    def __call__(self, sink: ResponseSink) -> list[Inflight]:
        """Make the requests. Raises INVALID_ARG for requests that the model does not take."""
        return [self._request(sink, row) for row in range(self._count)]

    def _request(self, sink: ResponseSink, row: int) -> Inflight:
        sequences, controls, states = self._sequences, self._controls, self._states
        parameters: dict[str, ParameterValue] = {} if sequences is None else self._membership(sequences, row)
        request = InferenceRequest(self._config.name, self._inputs, id=self._id, parameters=parameters)
        inflight = self._accept(request, sink, time.monotonic_ns())
        if sequences is None or controls is None or states is None:
            return inflight
        inputs = {**inflight.inputs, **controls.of(membership(request))}
        if sequences.states:
            inflight.states = states.fresh()
            inputs.update(inflight.states.inputs)
        inflight.inputs = {**inputs, **self._special}
        return inflight

    def _membership(self, sequences: SequenceBatching, row: int) -> dict[str, ParameterValue]:
        """Return a sequence of one request, unless the sample says otherwise of its start or end."""
        control = sequences.correlation
        as_text = control is not None and control.datatype is dtypes.BYTES
        id: SequenceId = f"{self._id} {row + 1}" if as_text else row + 1
        flags = {"sequence_start": ControlKind.START, "sequence_end": ControlKind.END}
        return {"sequence_id": id, **{name: self._flag(sequences, kind) for name, kind in flags.items()}}

    def _flag(self, sequences: SequenceBatching, kind: ControlKind) -> bool:
        for control in sequences.controls:
            if control.kind is kind and control.name in self._special:
                return bool(self._special[control.name].array.flat[0] == control.values[1])
        return True


# Running them


async def warm_up(
    pool: InstancePool, numbers: Sequence[int], samples: Sequence[Sample], at_a_time: int
) -> dict[str, object]:
    """Run the samples on the instances with these numbers, and say what that took, for `core.servable.EngineReporter`.

    Raises why an instance is not fit to serve.
    """
    if not samples or not numbers:
        return {}
    start_ns = time.monotonic_ns()
    names = pool.names
    limit = asyncio.Semaphore(max(1, at_a_time))
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_warm_up(pool, number, samples, limit)) for number in numbers]
    except ExceptionGroup as errors:
        raise from_exception(errors.exceptions[0], "the warm-up failed") from None
    return {
        "warm_up": {
            "ms": _ms(time.monotonic_ns() - start_ns),
            "instances": {
                names[number]: [
                    {"sample": each.sample, "count": each.times, "ms": _ms(each.ns)}
                    | ({} if each.error is None else {"error": each.error.message})
                    for each in task.result()
                ]
                for number, task in zip(numbers, tasks, strict=True)
            },
        }
    }


async def _warm_up(pool: InstancePool, number: int, samples: Sequence[Sample], limit: asyncio.Semaphore) -> list[Ran]:
    async with limit:
        ended: asyncio.Future[list[Ran]] = asyncio.get_running_loop().create_future()
        pool.warm_up(number, samples, partial(_set, ended))
        ran = await ended
    error = failure_of(ran)
    if error is None:
        return ran
    if ran[-1].made_up and isinstance(error, InstanceLostError):
        pool.on_lost_in_warm_up(number, error)
        return ran
    raise error


def _set(ended: "asyncio.Future[list[Ran]]", ran: list[Ran]) -> None:
    if not ended.done():
        ended.set_result(ran)


def _ms(ns: int) -> float:
    return round(ns / 1e6, 3)
