"""JSON requests that differ from one before in the numbers of their tensors alone: nothing else is read again.

The text around the numbers is compared with what it was. If it is the same, and each part between is a JSON array, the
whole is what it was but for these arrays. Whatever is not as expected is left to the usual way, which reads the whole
and says what is wrong.
"""

import math
import re
import secrets
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import orjson

from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Shape, Tensor
from modserve.protocol.json import json_data

KEY: Final = b'"data"'
_NUMBERS = re.compile(rb'"data"\s*:\s*(\[[-+.eE0-9,\[\]\s]*\])')
_KINDS = ("int", "float")


class Input(Protocol):
    """An input whose data is in the JSON."""

    @property
    def name(self) -> str: ...
    @property
    def datatype(self) -> Datatype: ...
    @property
    def shape(self) -> Shape: ...


class Slot(NamedTuple):
    """Where the numbers of an input are: they end where the text `behind` them begins, which is up to the next ones."""

    name: str
    datatype: Datatype
    shape: Shape
    packer: struct.Struct
    """Makes bytes of as many numbers as the shape has, of the datatype."""
    behind: bytes


class Slots(NamedTuple):
    """A request's text without its numbers. What stands `before` the first of them ends with an opening `KEY`."""

    before: bytes
    slots: tuple[Slot, ...]
    largest: int
    """Bytes of the largest tensor."""
    length: int
    """Bytes of all this text."""


def slots_of(text: bytes, inputs: Sequence[Input]) -> Slots | None:
    """Those of a request with these inputs; None if they are not all arrays of numbers."""
    matches = list(_NUMBERS.finditer(text))
    if not matches or len(matches) != len(inputs):
        return None
    if any(each.datatype.json_kind not in _KINDS or each.datatype.own_numpy is None for each in inputs):
        return None
    around = []
    at = 0
    for match in matches:
        around.append(text[at : match.start(1)])
        at = match.end(1)
    around.append(text[at:])
    if not _in_order(around):
        return None
    slots = []
    largest = 0
    for each, behind in zip(inputs, around[1:], strict=True):
        count = math.prod(each.shape)
        largest = max(largest, count * each.datatype.size)
        packer = struct.Struct(f"{count}{each.datatype.numpy.char}")
        slots.append(Slot(each.name, each.datatype, each.shape, packer, behind))
    return Slots(around[0], tuple(slots), largest, sum(map(len, around)))


def _in_order(around: Sequence[bytes]) -> bool:
    """Whether what goes between these texts is the data of the inputs, one after the other: marks in its place show it.

    Nobody can know the marks beforehand, so none of the client's own texts is one.
    """
    marks = [secrets.token_hex(8) for _ in around[1:]]
    marked = b"".join(b'%b"%b"' % (text, mark.encode()) for text, mark in zip(around, marks, strict=False)) + around[-1]
    try:
        document = orjson.loads(marked)
    except orjson.JSONDecodeError:  # they are parts of arrays, as of one with NaN in it
        return False
    inputs = document.get("inputs") if isinstance(document, dict) else None
    if not isinstance(inputs, list):
        return False
    return marks == [each.get("data") if isinstance(each, dict) else None for each in inputs]


def read(text: bytes, known: Slots) -> dict[str, Tensor] | None:
    """The inputs of a request; None if it is of another kind, or wrong. Raises INVALID_ARG for arrays in too many."""
    if not text.startswith(known.before):
        return None
    inputs: dict[str, Tensor] = {}
    start = len(known.before)
    for name, datatype, shape, packer, behind in known.slots:
        end = text.find(behind, start)
        if end < 0:  # before the slice, which would begin behind its end where the text is cut
            return None
        numbers = text[start:end]
        if b"u" in numbers or b"l" in numbers:  # true, false and null
            return None
        try:
            data = orjson.loads(numbers)
            if type(data) is not list:
                return None
            elements = packer.pack(*json_data.flattened(data))
        except (orjson.JSONDecodeError, struct.error, OverflowError):
            return None
        inputs[name] = Tensor(datatype, shape, elements, None)
        start = end + len(behind)
    return inputs if start == len(text) else None
