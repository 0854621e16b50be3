"""What a starting server prints for the person who started it."""

import json
import math
import shlex
from collections.abc import Callable, Sequence
from urllib.parse import quote

from .core.lifecycle import IndexEntry
from .core.model_config import ModelConfig, TensorSpec

_VALUES: dict[str, Callable[[int], object]] = {
    "bool": lambda index: index % 2 == 0,
    "int": lambda index: index % 100,
    "float": lambda index: index % 100,
    "string": lambda index: f"text {index}",
}
"""An example element by `Datatype.json_kind`."""


_MOST_ELEMENTS = 256


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


def example_call(models: Sequence[ModelConfig], port: int, scheme: str = "http") -> str:
    """A curl line that works when pasted, for the model with the least to type; empty if there is no model.

    Where even that is more than a screen takes, it asks for the model's metadata.
    """
    if not models:
        return ""
    host = f"localhost:{port}" if scheme == "http" else f"{scheme}://localhost:{port}"
    config = min(models, key=lambda model: (_elements(model), model.name))
    if _elements(config) > _MOST_ELEMENTS:
        return f"curl {host}/v2/models/{quote(config.name, safe='')}"
    body = {"inputs": [_example(config, spec) for spec in config.inputs if not spec.optional]}
    text = json.dumps(body, separators=(",", ":"))
    return f"curl {host}/v2/models/{quote(config.name, safe='')}/infer -d {shlex.quote(text)}"


def _elements(config: ModelConfig) -> int:
    return sum(math.prod(_shape(config, spec)) for spec in config.inputs)


def _shape(config: ModelConfig, spec: TensorSpec) -> list[int]:
    return [abs(size) for size in config.full_dims(spec)]


def _example(config: ModelConfig, spec: TensorSpec) -> dict[str, object]:
    shape = _shape(config, spec)
    data: list[object] = [_VALUES[spec.datatype.json_kind](index) for index in range(math.prod(shape))]
    return {"name": spec.name, "datatype": spec.datatype.name, "shape": shape, "data": data}
