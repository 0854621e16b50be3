"""The names of OpenVINO's tensors, which may have several names or none.

A *port* is an input or output of a graph. ONNX gives each one name, TensorFlow may add forms such as ``x:0``, and a
converted model may have none but that of the operator.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Shape

DATATYPES: dict[str, Datatype] = {
    "boolean": dtypes.BOOL,
    "u8": dtypes.UINT8,
    "u16": dtypes.UINT16,
    "u32": dtypes.UINT32,
    "u64": dtypes.UINT64,
    "i8": dtypes.INT8,
    "i16": dtypes.INT16,
    "i32": dtypes.INT32,
    "i64": dtypes.INT64,
    "f16": dtypes.FP16,
    "bf16": dtypes.BF16,
    "f32": dtypes.FP32,
    "f64": dtypes.FP64,
}
"""OpenVINO's names of element types. ``string`` is not here: its operators on strings are in another package."""


@dataclass(frozen=True, slots=True)
class Port:
    """Port of a model. `shape` is complete, with -1 for variable dimensions; None if their number varies, too."""

    index: int
    names: frozenset[str]
    operator: str
    """The name of the operator that it belongs to."""
    element_type: str
    shape: Shape | None


def find(ports: Sequence[Port], name: str) -> Port | None:
    """Return the port of a configured name: exactly, by its operator, or but for ``:0`` at the end."""
    plain = name.removesuffix(":0")
    for matches in (
        [port for port in ports if name in port.names],
        [port for port in ports if name == port.operator],
        [port for port in ports if plain in {each.removesuffix(":0") for each in (*port.names, port.operator)}],
    ):
        if len(matches) == 1:
            return matches[0]
    return None


def labels(ports: Sequence[Port], configured: Collection[str]) -> list[str]:
    """Return a name for each port: the configured one, or the best of its own names. No two are the same."""
    chosen: dict[int, str] = {}
    for name in configured:
        port = find(ports, name)
        if port is not None:
            chosen.setdefault(port.index, name)
    for port in ports:
        if port.index not in chosen:
            chosen[port.index] = _own(port, chosen.values())
    return [chosen[port.index] for port in ports]


def _own(port: Port, used: Collection[str]) -> str:
    ranked = sorted(port.names, key=lambda name: (name != port.operator, name.count(":"), len(name), name))
    free = (name for name in (*ranked, port.operator) if name and name not in used)
    return next(free, f"{port.operator}_{port.index}")
