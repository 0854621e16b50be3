"""Traces in the format of Triton's files: a JSON object for each record."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId

_ELEMENTS = 16 * 1024
"""Elements that are formatted at once: each needs far more memory than its text."""


class TraceRecord(NamedTuple):
    """An activity and its time, in nanoseconds of the monotonic clock; with `name`, a tensor at that time."""

    ns: int
    activity: str
    name: str = ""
    tensor: Tensor | None = None


def render(
    trace_id: int, model: ModelId, request_id: str, records: Sequence[TraceRecord], parent_id: int = 0, tenant: str = ""
) -> bytes:
    """The records of one trace by time, with commas between them. The first one names the trace and its model."""
    head: dict[str, object] = {"id": trace_id, "model_name": model.name, "model_version": model.version}
    if request_id:
        head["request_id"] = request_id
    if parent_id:
        head["parent_id"] = parent_id
    if tenant:
        head["tenant"] = tenant
    lines = [_json(head)]
    for record in sorted(records, key=lambda record: record.ns):
        if (tensor := record.tensor) is None:
            lines.append(f'{{"id":{trace_id},"timestamps":[{{"name":"{record.activity}","ns":{record.ns}}}]}}')
        else:
            described = {
                "name": record.name,
                "data": data(tensor),
                "shape": ",".join(map(str, tensor.shape)),
                "dtype": tensor.datatype.name,
            }
            lines.append(_json({"id": trace_id, "activity": record.activity, "tensor": described}))
    return ",".join(lines).encode()


def data(tensor: Tensor) -> str:
    """A tensor's elements with commas between them.

    Numbers are decimal and exact; BOOL is 0 or 1; BYTES are quoted like CSV, with backslash escapes for bytes that are
    not UTF-8.
    """
    flat = tensor.array.reshape(-1)
    if tensor.datatype is dtypes.BYTES:
        texts = (element.decode("utf-8", "backslashreplace").replace('"', '""') for element in flat.tolist())
        return ",".join(f'"{text}"' for text in texts)
    if tensor.datatype is dtypes.BOOL:
        flat = flat.view("u1")
    elif tensor.datatype is dtypes.BF16:
        flat = flat.astype("f4")
    pieces = (flat[start : start + _ELEMENTS] for start in range(0, len(flat), _ELEMENTS))
    # Without Python's floats, which would show more digits than an FP32 has.
    return ",".join(",".join(piece.astype("U").tolist()) for piece in pieces)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
