"""What the JSON of an inference request says, and the memory of what came before, which is not read again.

Two kinds of requests are known again:

- Those with binary tensors, by all of their JSON. Of the 15 µs that a request takes, this saves 2.5.
- Those in JSON alone, by all but the numbers of their tensors: if the text around the numbers is what it was, and each
  part between is a JSON array, the whole is what it was but for these arrays. Of 20 µs, this saves 3.1.

Whatever is not as expected is left to the usual way, which reads the whole and says what is wrong. What is saved is
measured by `benchmarks/codec_shortcuts.py`.
"""

import math
import re
import secrets
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import orjson

from modserve.core.requests.request import ParameterValue, RequestForm
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.shared_memory import RegionSlice
from modserve.core.tensors.tensor import Shape, Tensor
from modserve.protocol.json import json_data
from modserve.protocol.json.large_json import LARGE
from modserve.protocol.response_form import ResponseForm

_REMEMBERED: Final = 1024
_MEMORABLE: Final = 4096
"""Bytes of the longest text that is kept of a request."""
_KEY: Final = b'"data"'
_NUMBERS = re.compile(rb'"data"\s*:\s*(\[[-+.eE0-9,\[\]\s]*\])')
_KINDS = ("int", "float")


class HttpInput(NamedTuple):  # which is made sooner than a dataclass
    """An input as the JSON describes it: a tensor if its data is JSON too, else `size` bytes of binary data."""

    name: str
    datatype: Datatype
    shape: Shape
    size: int
    tensor: Tensor | None


class Header(NamedTuple):
    """All that the JSON part of a request says."""

    id: str
    parameters: Mapping[str, ParameterValue]
    inputs: tuple[HttpInput, ...]
    places: tuple[tuple[HttpInput, RegionSlice], ...]
    """The inputs that are in shared memory."""
    outputs: tuple[str, ...]
    response_form: ResponseForm
    shared: bool
    """Whether any tensor is in shared memory."""
    form: RequestForm | None = None
    """Of JSON that is remembered."""


class InputSpan(NamedTuple):
    """Where the numbers of an input are: they end where the text `suffix` begins, which is up to the next ones."""

    name: str
    datatype: Datatype
    shape: Shape
    packer: struct.Struct
    """Makes bytes of as many numbers as the shape has, of the datatype."""
    suffix: bytes


class NumberSlots(NamedTuple):
    """A request's text without its numbers. What stands `before` the first of them ends with an opening `_KEY`."""

    before: bytes
    slots: tuple[InputSpan, ...]
    largest: int
    """Bytes of the largest tensor."""
    length: int
    """Bytes of all this text."""


def slots_of(text: bytes, inputs: Sequence[HttpInput]) -> NumberSlots | None:
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
    for each, suffix in zip(inputs, around[1:], strict=True):
        count = math.prod(each.shape)
        largest = max(largest, count * each.datatype.size)
        packer = struct.Struct(f"{count}{each.datatype.numpy.char}")
        slots.append(InputSpan(each.name, each.datatype, each.shape, packer, suffix))
    return NumberSlots(around[0], tuple(slots), largest, sum(map(len, around)))


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


def read_numbers(text: bytes, known: NumberSlots) -> dict[str, Tensor] | None:
    """The inputs of a request; None if it is of another kind, or wrong. Raises INVALID_ARG for arrays in too many."""
    if not text.startswith(known.before):
        return None
    inputs: dict[str, Tensor] = {}
    start = len(known.before)
    for name, datatype, shape, packer, suffix in known.slots:
        end = text.find(suffix, start)
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
        start = end + len(suffix)
    return inputs if start == len(text) else None


class _Alike(NamedTuple):
    """Requests in JSON alone that differ in their numbers only. Without `slots` they are not known well enough."""

    slots: NumberSlots | None
    header: Header | None


_ONCE: Final = _Alike(None, None)
"""Requests that begin like this have come once: most never come again, and it takes a while to make slots of one."""
_NEVER: Final = _Alike(None, None)


class JsonHeads:
    """The JSON of requests that repeats from call to call and is not read again.

    That is all of it where the tensors are binary, and all but the numbers where they are not. What it holds is
    bounded. Usable on any thread: two that read the same JSON at a time come to the same.
    """

    __slots__ = ("_alike", "known")

    def __init__(self) -> None:
        self.known: dict[bytes, Header] = {}
        self._alike: dict[bytes, _Alike] = {}
        """By what stands before the first tensor's data."""

    def remember(self, text: bytes, header: Header) -> None:
        # With an id it will not come again; with tensors in it, it could be large.
        if header.id or len(text) > _MEMORABLE or any(each.tensor is not None for each in header.inputs):
            return
        if len(self.known) >= _REMEMBERED:
            self.known.clear()
        self.known[text] = header if header.shared else header._replace(form=RequestForm())

    def look_up(self, text: bytes, max_json_tensor: int) -> tuple[Header, dict[str, Tensor]] | None:
        """What a request in JSON alone says, if all but its numbers is remembered. Raises INVALID_ARG."""
        if len(text) >= LARGE:
            return None
        slots, header = self._alike.get(text[: text.find(_KEY)], _ONCE)
        if slots is None or header is None or slots.largest > max_json_tensor:
            return None
        inputs = read_numbers(text, slots)
        return None if inputs is None else (header, inputs)

    def remember_numbers(self, text: bytes, header: Header) -> None:
        """For requests in JSON alone that differ from this one in their numbers."""
        if header.id or header.shared or len(text) >= LARGE:
            return
        start = text.find(_KEY)
        if not 0 < start <= _MEMORABLE:
            return
        beginning = text[:start]
        before = self._alike.get(beginning)
        if before is None:
            if len(self._alike) >= _REMEMBERED:
                self._alike.clear()
            self._alike[beginning] = _ONCE
        elif before is _ONCE:  # else the first kind of this beginning stays
            slots = slots_of(text, header.inputs)
            short = slots is not None and slots.length <= _MEMORABLE
            kept = header._replace(inputs=(), form=RequestForm())
            self._alike[beginning] = _Alike(slots, kept) if short else _NEVER
