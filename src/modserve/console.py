"""What a starting server prints for the person who started it."""

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from .core import dtypes
from .core.lifecycle import IndexEntry
from .core.model_config import ModelConfig, TensorSpec
from .core.sequence_config import SequenceBatching

_VALUES: Mapping[str, Callable[[int], object]] = {
    "bool": lambda index: index % 2 == 0,
    "int": lambda index: index % 100,
    "float": lambda index: index % 100,
    "string": lambda index: f"text {index}",
}
"""An element of the first example input by `Datatype.json_kind`."""

_ONES: Mapping[str, object] = {"bool": True, "int": 1, "float": 1, "string": "one"}
"""All elements of the other inputs, so that one sees what a model makes of them."""

_MOST_ELEMENTS = 256

_ANY_ADDRESS = frozenset({"", "0.0.0.0", "::"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where the HTTP port can be reached from this machine. `tls`: with a certificate that nobody may know."""

    address: str
    port: int
    tls: bool = False

    def curl(self, path: str) -> str:
        """The curl command for a path, without the request's body."""
        host = "localhost" if self.address in _ANY_ADDRESS else self.address
        scheme = "https://" if self.tls else ""
        options = " -k" if self.tls else ""
        if ":" in host:
            return f"curl -g{options} {shlex.quote(f'{scheme}[{host}]:{self.port}{path}')}"
        return f"curl{options} {scheme}{host}:{self.port}{path}"


def models_table(entries: Sequence[IndexEntry]) -> str:
    """The models with version, state and load time; the reason of a failure stands below its line."""
    rows = [("model", "version", "state", "load time")]
    for entry in entries:
        version = "-" if entry.version is None else str(entry.version)
        load_time = f"{entry.load_ns / 1e9:.3f} s" if entry.load_ns else "-"
        rows.append((entry.name, version, entry.state.value, load_time))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    heading, *lines = ["  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)) for row in rows]
    out = [heading.rstrip(), "  ".join("-" * width for width in widths)]
    for line, entry in zip(lines, entries, strict=True):
        out.append(line.rstrip())
        out += [f"    {text}" for text in entry.reason.splitlines()]
    return "\n".join(out)


def example_call(models: Sequence[ModelConfig], place: Place) -> str:
    """A curl line that works when pasted, for the model whose answer says most; empty if there is no model.

    Where even that is more than a screen takes, it asks for the model's metadata.
    """
    if not models:
        return ""
    by_name = {model.name: model for model in models}
    config = min(models, key=lambda model: _effort(model, by_name))
    path = f"/v2/models/{quote(config.name, safe='')}"
    if _elements(config) > _MOST_ELEMENTS:
        return place.curl(path)
    needed = [spec for spec in config.inputs if not spec.optional] or config.inputs[:1]
    body: dict[str, object] = {"inputs": [_example(config, spec, first=spec is needed[0]) for spec in needed]}
    sequences = _sequences(config, by_name)
    if sequences:
        texts = any(each.correlation is not None and each.correlation.datatype is dtypes.BYTES for each in sequences)
        one_request = {"sequence_id": "1" if texts else 1, "sequence_start": True, "sequence_end": True}
        body = {"parameters": one_request, **body}
    text = json.dumps(body, separators=(",", ":"))
    call = "infer_stream" if any(each.decoupled for each in _composing(config, by_name)) else "infer"
    return f"{place.curl(f'{path}/{call}')} -d {shlex.quote(text)}"


def waiting_line(names: Sequence[str], place: Place | None) -> str:
    """What to do where models are loaded only when somebody asks for them, and nobody has."""
    count = f"{len(names)} models wait" if len(names) != 1 else "1 model waits"
    text = f"{count} for a load call: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
    if place is None:
        return text
    path = f"/v2/repository/models/{quote(names[0], safe='')}/load"
    return f"{text}\n  {place.curl(path)} -X POST"


def _composing(config: ModelConfig, by_name: Mapping[str, ModelConfig]) -> list[ModelConfig]:
    """A model, and all that an ensemble is made of."""
    if config.ensemble is None:
        return [config]
    steps = [by_name[step.model] for step in config.ensemble.steps if step.model in by_name]
    return [config, *(each for step in steps for each in _composing(step, by_name))]


def _sequences(config: ModelConfig, by_name: Mapping[str, ModelConfig]) -> list[SequenceBatching]:
    """What is said of sequences by those models that take no request without one."""
    batchings = [each.sequence_batching for each in _composing(config, by_name)]
    return [batching for batching in batchings if batching is not None and not batching.iterative]


def _effort(config: ModelConfig, by_name: Mapping[str, ModelConfig]) -> tuple[object, ...]:
    """Least for what is easiest to type and to make sense of: of known sizes, answered by itself and at once."""
    composing = _composing(config, by_name)
    return (
        _elements(config) > _MOST_ELEMENTS,
        bool(_sequences(config, by_name)),
        any(each.decoupled for each in composing),
        any(size < 0 for spec in config.inputs for size in spec.dims),
        len(composing) > 1,
        _elements(config),
        config.name,
    )


def _elements(config: ModelConfig) -> int:
    return sum(math.prod(_shape(config, spec)) for spec in config.inputs)


def _shape(config: ModelConfig, spec: TensorSpec) -> list[int]:
    return [abs(size) for size in config.full_dims(spec)]


def _example(config: ModelConfig, spec: TensorSpec, first: bool) -> dict[str, object]:
    shape, kind = _shape(config, spec), spec.datatype.json_kind
    data = [_VALUES[kind](index) if first else _ONES[kind] for index in range(math.prod(shape))]
    return {"name": spec.name, "datatype": spec.datatype.name, "shape": shape, "data": data}
