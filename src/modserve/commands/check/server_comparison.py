"""Comparison of local models with another server's: metadata, configuration and responses.

Both receive the same bytes. Generated data is the same in each run, so differences are reproducible.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from modserve.client.input_values import ClientCall, ModelMetadata, metadata_of
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError
from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.core.servable import Servable
from modserve.core.tensors import dtypes
from modserve.core.tensors.sample_data import Sizes, generator, likely, random_values
from modserve.core.tensors.tensor import Tensor
from modserve.pb import inference as pb
from modserve.protocol.control.metadata import config_message, model_json
from modserve.server.in_process import response

from ..errors import UnreachableError
from ..remote_server import RemoteServer
from ..tensor_comparison import ElementTolerance, compare_elements, precision

Inputs = Mapping[str, Tensor]

_ROWS = 2
"""Batch size of the second request to a batching model."""
_SEQUENCE = 4_000_000_007
"""Sequence id that other clients are unlikely to use."""


@dataclass
class ServerDifference:
    """Differences of a model: `problems` are errors, `notes` are allowed."""

    problems: list[tuple[str, str]] = field(default_factory=list)
    """Configuration field (may be empty) and difference."""
    notes: list[tuple[str, str]] = field(default_factory=list)
    requests: int = 0
    """Number of responses compared."""


async def compare(served: Mapping[int, Servable], server: RemoteServer, url: str, tolerance: float) -> ServerDifference:
    """Compare all served versions of one model. Raises UnreachableError."""
    difference = ServerDifference()
    first = next(iter(served.values()))
    try:
        theirs = await asyncio.to_thread(server.metadata, first.config.name)
    except UnreachableError:
        raise
    except ModserveError as error:
        difference.problems.append(("", f"{url} has no such model: {error.message}"))
        return difference
    difference.problems += _metadata(metadata_of(model_json(first, served)), theirs, url)
    for version, servable in served.items():
        if str(version) not in theirs.versions:
            continue
        try:
            config = await asyncio.to_thread(server.config, servable.config.name, version)
        except UnreachableError:
            raise
        except ModserveError as error:
            difference.notes.append(
                ("", f"{url} does not return the configuration of version {version}: {error.message}")
            )
        else:
            _configurations(config_message(servable), config, url, difference)
        if not difference.problems:  # otherwise the requests would differ
            await _responses(servable, version, server, url, tolerance, difference)
    return difference


# Metadata


def _metadata(ours: ModelMetadata, theirs: ModelMetadata, url: str) -> Iterator[tuple[str, str]]:
    absent = [version for version in ours.versions if version not in theirs.versions]
    if absent:
        yield "version_policy", f"{url} serves versions {_join_names(theirs.versions)}, and not {_join_names(absent)}"
    for kind, here, there in (("input", ours.inputs, theirs.inputs), ("output", ours.outputs, theirs.outputs)):
        own = {each.name: each for each in here}
        other = {each.name: each for each in there}
        for name in own.keys() | other.keys():
            if name not in other:
                yield kind, f"{kind} '{name}' does not exist at {url}, which has {_join_names(other)}"
            elif name not in own:
                yield kind, f"{url} has {kind} '{name}', which does not exist here"
            elif own[name] != other[name]:
                shown = [f"{each[name].datatype} {list(each[name].shape)}" for each in (own, other)]
                yield kind, f"{kind} '{name}' is {shown[0]} here, and {shown[1]} at {url}"


def _join_names(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(names) or "none"


# Configuration


class _Field(NamedTuple):
    name: str
    value: Callable[[pb.ModelConfig], object]
    matters: bool = False
    """True if responses may depend on the field."""


def _steps(config: pb.ModelConfig) -> object:
    return [
        (step.model_name, step.model_version, sorted(step.input_map.items()), sorted(step.output_map.items()))
        for step in config.ensemble_scheduling.step
    ]


def _controls(config: pb.ModelConfig) -> object:
    kinds = [
        (each.name, pb.ModelSequenceBatching.Control.Kind.Name(control.kind))
        for each in config.sequence_batching.control_input
        for control in each.control
    ]
    return sorted(kinds)


_FIELDS = (
    _Field("max_batch_size", lambda config: config.max_batch_size, True),
    _Field("model_transaction_policy", lambda config: config.model_transaction_policy.decoupled, True),
    _Field("ensemble_scheduling", _steps, True),
    _Field("sequence_batching", lambda config: config.HasField("sequence_batching"), True),
    _Field("sequence_batching", _controls, True),
    _Field(
        "sequence_batching",
        lambda config: sorted((each.input_name, each.output_name) for each in config.sequence_batching.state),
        True,
    ),
    _Field("input", lambda config: sorted(each.name for each in config.input if each.optional), True),
    _Field("output", lambda config: sorted((each.name, each.label_filename) for each in config.output), True),
    _Field("backend", lambda config: config.backend),
    _Field("dynamic_batching", lambda config: config.HasField("dynamic_batching")),
    _Field("dynamic_batching", lambda config: config.dynamic_batching.max_queue_delay_microseconds),
    _Field("dynamic_batching", lambda config: config.dynamic_batching.preserve_ordering),
    _Field("dynamic_batching", lambda config: config.dynamic_batching.priority_levels),
    _Field("instance_group", lambda config: sum(each.count for each in config.instance_group)),
    _Field("response_cache", lambda config: config.response_cache.enable),
    _Field("parameters", lambda config: {key: value.string_value for key, value in config.parameters.items()}),
)
_WORDS = {"model_transaction_policy": "decoupled"}
"""Names in messages for fields that are compared by one subfield."""


def _configurations(ours: pb.ModelConfig, theirs: pb.ModelConfig, url: str, difference: ServerDifference) -> None:
    for row in _FIELDS:
        here, there = row.value(ours), row.value(theirs)
        if here != there:
            text = (
                f"{_WORDS.get(row.name, row.name)} is {_format_value(here)} here, and {_format_value(there)} at {url}"
            )
            rows = difference.problems if row.matters else difference.notes
            if (row.name, text) not in rows:
                rows.append((row.name, text))


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "set" if value else "not set"
    text = str(value) if isinstance(value, int | str) and value != "" else repr(value)
    return text if len(text) < 200 else f"{text[:200]}…"


# Responses


async def _responses(
    servable: Servable, version: int, server: RemoteServer, url: str, tolerance: float, difference: ServerDifference
) -> None:
    config = servable.config
    if config.decoupled:
        difference.notes.append(("", f"version {version} is decoupled: its responses are not compared"))
        return
    try:
        samples = list(_samples(config))
    except ModserveError as error:
        difference.notes.append(("", f"the responses of version {version} are not compared: {error.message}"))
        return
    for what, inputs, parameters in samples:
        request = InferenceRequest(config.name, inputs, version=version, id="compared", parameters=parameters)
        ours, theirs = await _ours(servable, request), await _theirs(server, request)
        where = f"version {version}, {what}"
        if isinstance(ours, ModserveError) and isinstance(theirs, ModserveError):
            difference.notes.append(
                ("", f"{where}: both refuse the request: {ours.message}; at {url}: {theirs.message}")
            )
        elif isinstance(ours, ModserveError):
            difference.problems.append(("", f"{where}: the request fails here, but not at {url}: {ours.message}"))
        elif isinstance(theirs, ModserveError):
            difference.problems.append(("", f"{where}: the request fails at {url}, but not here: {theirs.message}"))
        else:
            difference.requests += 1
            difference.problems += (("", f"{where}: {text}") for text in _outputs(ours, theirs, url, tolerance))


async def _ours(servable: Servable, request: InferenceRequest) -> Inputs | ModserveError:
    try:
        return (await response(servable, request, time.monotonic_ns())).outputs
    except ModserveError as error:
        return error


async def _theirs(server: RemoteServer, request: InferenceRequest) -> Inputs | ModserveError:
    call = ClientCall(
        request.model_name, request.version, request.inputs, request_id=request.id, parameters=request.parameters
    )
    try:
        return (await asyncio.to_thread(server.infer, call)).tensors
    except UnreachableError:
        raise
    except ModserveError as error:
        return error


def _samples(config: ModelConfig) -> Iterator[tuple[str, Inputs, Mapping[str, ParameterValue]]]:
    """Yield requests with description, inputs and parameters: usual values, then random ones. Raises INVALID_ARG.

    For a sequence model, they form one sequence.
    """
    sizes = Sizes(config.parameters.get("sample_shape", ""), config.name)
    random = generator()
    inputs = {spec.name: (spec, sizes.resolve(spec.name, spec.dims)) for spec in config.inputs}
    length = min([dims[-1] for _, dims in inputs.values() if dims], default=1)
    sequence = config.sequence_batching
    rows = 1 if sequence is not None else min(_ROWS, config.max_batch_size)
    made = []
    for count in (1, rows):
        shapes = {name: (count, *dims) if config.batching else dims for name, (_, dims) in inputs.items()}
        made.append(shapes)
    usual = {
        name: Tensor.from_array(likely(name, spec.datatype, made[0][name], random, length), spec.datatype)
        for name, (spec, _) in inputs.items()
    }
    other = {
        name: Tensor.from_array(random_values(spec.datatype, made[1][name], random), spec.datatype)
        for name, (spec, _) in inputs.items()
    }
    if sequence is None:
        yield "usual values", usual, {}
        yield f"random values{f', {rows} rows' * (rows > 1)}", other, {}
        return
    control = sequence.correlation
    as_text = control is not None and control.datatype is dtypes.BYTES
    id: ParameterValue = f"compared-{_SEQUENCE}" if as_text else _SEQUENCE
    yield "start of a sequence", usual, {"sequence_id": id, "sequence_start": True, "sequence_end": False}
    yield "end of a sequence", other, {"sequence_id": id, "sequence_start": False, "sequence_end": True}


def _outputs(ours: Inputs, theirs: Inputs, url: str, tolerance: float) -> Iterator[str]:
    if ours.keys() != theirs.keys():
        yield f"the outputs are {_join_names(ours)} here, and {_join_names(theirs)} at {url}"
    for name in ours.keys() & theirs.keys():
        if text := differs(ours[name], theirs[name], url, tolerance):
            yield f"output '{name}' {text}"


def differs(ours: Tensor, theirs: Tensor, url: str, tolerance: float) -> str:
    """Describe the difference between two tensors, the second one from `url`; empty if there is none.

    Floating-point numbers are equal within `tolerance` times the larger of their value and the mean of all, or within
    the precision of their type.
    """
    if ours.datatype is not theirs.datatype or ours.shape != theirs.shape:
        shown = [f"{each.datatype} {list(each.shape)}" for each in (ours, theirs)]
        return f"is {shown[0]} here, and {shown[1]} at {url}"
    sizes = ElementTolerance(0.0, 0.0)
    if ours.datatype.json_kind == "float":
        relative = max(tolerance, 4 * precision(ours.datatype))
        magnitudes = np.abs(theirs.array.astype(np.float64))
        finite = magnitudes[np.isfinite(magnitudes)]
        sizes = ElementTolerance(relative, relative * float(np.mean(finite)) if finite.size else 0.0)
    comparison = compare_elements(theirs, ours, sizes)
    if not comparison.unlike:
        return ""
    place = f"at {list(comparison.index)} " if comparison.index else ""
    return (
        f"differs in {comparison.unlike} of {comparison.elements} elements, first {place}with {comparison.second} "
        f"here, and {comparison.first} at {url}"
    )
