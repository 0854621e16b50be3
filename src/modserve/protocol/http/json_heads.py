"""Cache of request descriptions. Saves 4 of the 14 µs of a binary request, and of the 20 µs of one in JSON, if each
request has another id and other values; 3.5 with other parameters, too (`benchmarks/codec_shortcuts.py`).

Clients describe the tensors of a model identically in each request. `cut` removes the id and the parameters, which
clients write at the beginning or the end. The rest is looked up: entirely if the tensors are binary, and without the
numbers if they are JSON. Each removed part is parsed, so it is a complete JSON value, and the rest was parsed without
it: together, they are the same document.

Other requests take the usual path, which parses the whole and reports errors.
"""

import math
import re
import secrets
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, final

import orjson

from modserve.core.requests.request import RequestForm
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.shared_memory import RegionSlice
from modserve.core.tensors.tensor import Shape, Tensor
from modserve.protocol.json import json_data
from modserve.protocol.json.json_text import JsonObject
from modserve.protocol.json.large_json import LARGE
from modserve.protocol.response_form import ResponseForm

_REMEMBERED: Final = 1024
_MEMORABLE: Final = 4096
"""Length in bytes of the longest cached text of a request."""
_ID: Final = b'{"id":'
_PARAMETERS: Final = b'"parameters":'
_DATA: Final = b'"data":'
_OUTPUTS: Final = b'"outputs":'
_NUMBERS = re.compile(rb'"data":(\s*\[[-+.eE0-9,\[\]\s]*\])')
_KINDS = ("int", "float")
_OPEN, _CLOSE, _COMMA, _SPACE = b"{}, "


class HttpInput(NamedTuple):  # created faster than a dataclass
    """Description of an input in the JSON: a tensor if its data is JSON, too, otherwise `size` bytes of binary data."""

    name: str
    datatype: Datatype
    shape: Shape
    size: int
    tensor: Tensor | None


class InputSpan(NamedTuple):
    """Position of an input's numbers: they end where the text `suffix` begins, which extends to the next numbers."""

    name: str
    datatype: Datatype
    shape: Shape
    packer: struct.Struct
    """Packs the numbers of a tensor of this shape and datatype."""
    suffix: bytes


class RequestDescription(NamedTuple):
    """Description of inputs and outputs in the JSON of a request."""

    inputs: tuple[HttpInput, ...]
    """Inputs, except those with numbers in `spans`."""
    places: tuple[tuple[HttpInput, RegionSlice], ...]
    """Inputs in shared memory."""
    outputs: tuple[str, ...]
    response_form: ResponseForm | None
    """Form of the response; None if no outputs are listed, and the parameters determine it."""
    shared: bool
    """True if any tensor is in shared memory."""
    form: RequestForm | None = None
    """Form of a cached description."""
    spans: tuple[InputSpan, ...] = ()
    largest: int = 0
    """Size of the largest of their tensors in bytes."""


@final
class CutRequest:
    """A request's JSON without its id and parameters: ``text[start:stop]``, in braces.

    `key`: all of that, or the text before the numbers of the first tensor, which begin at `numbers`, and the outputs
    listed after them.
    """

    __slots__ = ("key", "numbers", "parameters", "request_id", "start", "stop", "text")

    def __init__(self, text: bytes, start: int, stop: int, request_id: str, parameters: JsonObject | None) -> None:
        self.text = text
        self.start = start
        self.stop = stop
        self.request_id = request_id
        self.parameters = parameters
        data = text.find(_DATA, start, stop)
        if data < 0:
            self.numbers = stop
            self.key = text[start:stop]
        else:
            self.numbers = data + len(_DATA)
            outputs = text.rfind(_OUTPUTS, self.numbers, stop)
            self.key = text[start : self.numbers] + (text[outputs:stop] if outputs >= 0 else b"")


def cut(text: bytes) -> CutRequest | None:
    """Return the parts of a request; None for a long or unusual one."""
    size = len(text)
    if not 2 < size < LARGE or text[0] != _OPEN or text[size - 1] != _CLOSE:
        return None
    start, stop = 1, size - 1
    request_id = ""
    parameters: JsonObject | None = None
    try:
        if text.startswith(_ID):
            begin = len(_ID)
            value, start = _first(text, begin, text.find(b'"', text.find(b'"', begin) + 1) + 1)
            if type(value) is not str:
                return None
            request_id = value
        if text.startswith(_PARAMETERS, start):
            value, start = _first(text, start + len(_PARAMETERS), text.find(b"}", start) + 1)
            if type(value) is not dict:
                return None
            parameters = value
        elif text[stop - 1] == _CLOSE and (begin := text.rfind(_PARAMETERS, start)) >= start + 2:
            value = orjson.loads(text[begin + len(_PARAMETERS) : stop])
            stop = begin - 1 if text[begin - 1] != _SPACE else begin - 2
            if type(value) is not dict or text[stop] != _COMMA:
                return None
            parameters = value
    except ValueError:
        return None
    return CutRequest(text, start, stop, request_id, parameters)


def _first(text: bytes, start: int, end: int) -> tuple[object, int]:
    """Return the JSON value between these positions, and the next member's start. Raises ValueError without a value."""
    if end <= start or text[end : end + 1] != b",":
        raise ValueError("no other member follows")
    value = orjson.loads(text[start:end])
    return value, end + 2 if text[end + 1] == _SPACE else end + 1


def read_numbers(request: CutRequest, known: RequestDescription) -> dict[str, Tensor] | None:
    """Read the inputs of a request with this known beginning; None if it is invalid or differs later."""
    text, start, stop = request.text, request.numbers, request.stop
    inputs: dict[str, Tensor] = {}
    for name, datatype, shape, packer, suffix in known.spans:
        end = text.find(suffix, start, stop)
        if end < 0:  # checked before the slice, which would begin after its end in truncated text
            return None
        numbers = text[start:end]
        if b"u" in numbers or b"l" in numbers:  # true, false and null
            return None
        try:
            data = orjson.loads(numbers)
            if type(data) is not list:
                return None
            elements = packer.pack(*json_data.flatten(data))
        except (orjson.JSONDecodeError, struct.error, OverflowError):
            return None
        inputs[name] = Tensor(datatype, shape, elements, None)
        start = end + len(suffix)
    return inputs if start == stop else None


_ONCE: Final = RequestDescription((), (), (), None, False)
"""Marks requests seen once: most never repeat."""
_NEVER: Final = RequestDescription((), (), (), None, False)


@final
class JsonHeads:
    """Cached descriptions, bounded. Usable on any thread: results of concurrent reads are equal."""

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[bytes, RequestDescription] = {}

    def look_up(self, request: CutRequest, max_json_tensor: int) -> RequestDescription | None:
        """Return the cached description of a request, if any. Numbers of its `spans` still have to be read."""
        known = self.known.get(request.key)
        if known is None or known is _ONCE or known is _NEVER or known.largest > max_json_tensor:
            return None
        return known

    def remember(self, request: CutRequest, description: RequestDescription) -> None:
        """Cache the description of a valid request, from the second request on with the same beginning."""
        key = request.key
        if len(key) > _MEMORABLE:
            return
        before = self.known.get(key)
        if before is None:
            if len(self.known) >= _REMEMBERED:
                self.known.clear()
            self.known[key] = _ONCE
        elif before is _ONCE:  # otherwise the first kind with this beginning stays
            self.known[key] = _lasting(request, description)


def _lasting(request: CutRequest, description: RequestDescription) -> RequestDescription:
    """Return the description to cache; `_NEVER` if requests with the same cut may have another meaning."""
    rest = request.text[request.start : request.stop]
    matches = list(_NUMBERS.finditer(rest))
    tensors = sum(each.tensor is not None for each in description.inputs)
    if len(matches) != tensors or (tensors and tensors != len(description.inputs)):
        return _NEVER
    around = []
    at = 0
    for match in matches:
        around.append(rest[at : match.start(1)])
        at = match.end(1)
    around.append(rest[at:])
    if len(around[0]) != request.numbers - request.start or sum(map(len, around)) > _MEMORABLE or not _in_order(around):
        return _NEVER
    form = None if description.shared else RequestForm()
    if not tensors:
        return description._replace(form=form)
    spans = []
    largest = 0
    for each, suffix in zip(description.inputs, around[1:], strict=True):
        if each.datatype.json_kind not in _KINDS or each.datatype.own_numpy is None:
            return _NEVER
        count = math.prod(each.shape)
        largest = max(largest, count * each.datatype.size)
        packer = struct.Struct(f"{count}{each.datatype.numpy.char}")
        spans.append(InputSpan(each.name, each.datatype, each.shape, packer, suffix))
    return description._replace(inputs=(), form=form, spans=tuple(spans), largest=largest)


def _in_order(around: Sequence[bytes]) -> bool:
    """True if these texts form an object without id and parameters, with the inputs' data between them.

    Tested with marks in place of the data. Marks are unpredictable, so clients' texts cannot contain them.
    """
    marks = [secrets.token_hex(8) for _ in around[1:]]
    marked = b"".join(b'%b"%b"' % (text, mark.encode()) for text, mark in zip(around, marks, strict=False)) + around[-1]
    try:
        document: JsonObject = orjson.loads(b"{%b}" % marked)
    except orjson.JSONDecodeError:  # parts of arrays, for example after a NaN
        return False
    inputs = document.get("inputs")
    if "id" in document or "parameters" in document or not isinstance(inputs, list):
        return False
    return not marks or marks == [each.get("data") if isinstance(each, dict) else None for each in inputs]
