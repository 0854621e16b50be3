"""Memory of request descriptions: saves 4 of the 14 µs of a binary request, and of the 20 µs of one in JSON, if each
request has another id and other values; 3.5 with other parameters, too (`benchmarks/codec_shortcuts.py`).

A client describes the tensors of a model in the same words in each request. `cut` takes off the id and the parameters,
which clients write at the beginning or the end. The rest is looked up: all of it if the tensors are binary, and all but
their numbers if they are JSON. Each part that is cut out is parsed, so it is a whole JSON value, and the rest has been
parsed without it: together, they are the same document.

Unexpected requests are left to the usual way, which reads the whole and reports what is wrong.
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
"""Bytes of the longest text that is kept of a request."""
_ID: Final = b'{"id":'
_PARAMETERS: Final = b'"parameters":'
_DATA: Final = b'"data":'
_OUTPUTS: Final = b'"outputs":'
_NUMBERS = re.compile(rb'"data":(\s*\[[-+.eE0-9,\[\]\s]*\])')
_KINDS = ("int", "float")
_OPEN, _CLOSE, _COMMA, _SPACE = b"{}, "


class HttpInput(NamedTuple):  # which is made sooner than a dataclass
    """An input as the JSON describes it: a tensor if its data is JSON too, else `size` bytes of binary data."""

    name: str
    datatype: Datatype
    shape: Shape
    size: int
    tensor: Tensor | None


class InputSpan(NamedTuple):
    """Position of an input's numbers: they end where the text `suffix` begins, which extends to the next ones."""

    name: str
    datatype: Datatype
    shape: Shape
    packer: struct.Struct
    """Makes bytes of as many numbers as the shape has, of the datatype."""
    suffix: bytes


class RequestDescription(NamedTuple):
    """The inputs and outputs that the JSON of a request describes."""

    inputs: tuple[HttpInput, ...]
    """Inputs, except those with numbers in `spans`."""
    places: tuple[tuple[HttpInput, RegionSlice], ...]
    """The inputs that are in shared memory."""
    outputs: tuple[str, ...]
    response_form: ResponseForm | None
    """Form of the response; None if no outputs are listed: then the parameters determine it."""
    shared: bool
    """True if any tensor is in shared memory."""
    form: RequestForm | None = None
    """Form of a description that is remembered."""
    spans: tuple[InputSpan, ...] = ()
    largest: int = 0
    """Bytes of the largest of their tensors."""


@final
class CutRequest:
    """A request's JSON without its id and its parameters: ``text[start:stop]``, in braces.

    `key` is all of that, or what stands before the numbers of the first tensor, which begin at `numbers`, and the
    outputs that are listed behind them.
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
    """Return the parts of a request; None for one that is long, or written in an unusual way."""
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
    """Return the JSON value between these places, and the next member's start. Raises ValueError if there is none."""
    if end <= start or text[end : end + 1] != b",":
        raise ValueError("no other member follows")
    value = orjson.loads(text[start:end])
    return value, end + 2 if text[end + 1] == _SPACE else end + 1


def read_numbers(request: CutRequest, known: RequestDescription) -> dict[str, Tensor] | None:
    """Read the inputs of a request whose description begins like this; None if it is wrong or of another kind."""
    text, start, stop = request.text, request.numbers, request.stop
    inputs: dict[str, Tensor] = {}
    for name, datatype, shape, packer, suffix in known.spans:
        end = text.find(suffix, start, stop)
        if end < 0:  # before the slice, which would begin behind its end where the text is cut
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
"""Requests that are described like this have come once: most never come again."""
_NEVER: Final = RequestDescription((), (), (), None, False)


@final
class JsonHeads:
    """Descriptions that came before. Bounded. Usable on any thread: two that read the same come to the same."""

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[bytes, RequestDescription] = {}

    def look_up(self, request: CutRequest, max_json_tensor: int) -> RequestDescription | None:
        """Return the cached description of a request, if any. Its numbers, if it has `spans`, are still to be read."""
        known = self.known.get(request.key)
        if known is None or known is _ONCE or known is _NEVER or known.largest > max_json_tensor:
            return None
        return known

    def remember(self, request: CutRequest, description: RequestDescription) -> None:
        """Keep the description of a correct request, from the second one on that begins like it."""
        key = request.key
        if len(key) > _MEMORABLE:
            return
        before = self.known.get(key)
        if before is None:
            if len(self.known) >= _REMEMBERED:
                self.known.clear()
            self.known[key] = _ONCE
        elif before is _ONCE:  # else the first kind of this beginning stays
            self.known[key] = _lasting(request, description)


def _lasting(request: CutRequest, description: RequestDescription) -> RequestDescription:
    """Return the description to keep; `_NEVER` if other requests with the same cut may mean something else."""
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
    """True if these texts are an object without id and parameters, and the data of the inputs goes between them.

    Marks in its place show it. They are unpredictable, so none of the client's own texts is one.
    """
    marks = [secrets.token_hex(8) for _ in around[1:]]
    marked = b"".join(b'%b"%b"' % (text, mark.encode()) for text, mark in zip(around, marks, strict=False)) + around[-1]
    try:
        document: JsonObject = orjson.loads(b"{%b}" % marked)
    except orjson.JSONDecodeError:  # they are parts of arrays, as of one with NaN in it
        return False
    inputs = document.get("inputs")
    if "id" in document or "parameters" in document or not isinstance(inputs, list):
        return False
    return not marks or marks == [each.get("data") if isinstance(each, dict) else None for each in inputs]
