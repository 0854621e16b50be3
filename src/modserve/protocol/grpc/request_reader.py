"""Parses the bytes of a ``ModelInferRequest`` without message objects, if they have the form that clients write.

In this form, each field follows the fields with lower numbers, so that raw data is at the end. Protobuf merges the
parts of a message (protobuf.dev, "Encoding", "Last One Wins"): the bytes between parameters and raw data, with the
inputs and requested outputs, mean the same as a message of their own. Clients repeat them in each request, so they are
parsed once and then found in a cache. Unusual messages are left to protobuf. This saves 5 of the 16 µs of a request
(`benchmarks/codec_shortcuts.py`).
"""

import struct
from collections.abc import Sequence
from typing import Final, final

from google.protobuf.message import DecodeError

from modserve.core.tensors.tensor import Buffer
from modserve.core.wire.protobuf_wire import WireError, read_varint, to_signed
from modserve.pb import inference as pb
from modserve.protocol.limits import LIMITS

from .infer_message import NO_PARAMETERS, InferHead, InferMessage, Parameter, head_of

SHORT: Final = 64 * 1024
"""Size in bytes of a message that protobuf may parse as a whole."""

# Keys of fields (number and wire type): first the fields of the request,
_MODEL_NAME: Final = 0x0A
_MODEL_VERSION: Final = 0x12
_ID: Final = 0x1A
_PARAMETER: Final = 0x22
_INPUT: Final = 0x2A
_OUTPUT: Final = 0x32
_RAW: Final = 0x3A
# then the fields of a map entry, and of an ``InferParameter``.
_ENTRY_KEY: Final = 0x0A
_ENTRY_VALUE: Final = 0x12
_BOOL: Final = 0x08
_INT64: Final = 0x10
_STRING: Final = 0x1A
_DOUBLE: Final = 0x21
_UINT64: Final = 0x28

_LONGEST: Final = 2**32
_double: Final = struct.Struct("<d")

_COPIED: Final = 512
"""Size in bytes up to which copying a tensor is faster than a view."""
_MOST_NAMES: Final = 1024
_LONGEST_NAMES: Final = 256
_MOST_HEADS: Final = 256 * 1024
"""Size in bytes of the cached heads; their objects take up to thirty times as much."""
_LONGEST_HEAD: Final = 4096


@final
class RequestReader:
    """Parses requests. Caches repeated parts, so a front end has one reader."""

    __slots__ = ("_heads", "_heads_size", "_most_short", "_names")

    def __init__(self, most_short: int = SHORT) -> None:
        """Create a reader. Messages longer than `most_short` bytes may have longer tensors, but not a longer rest."""
        self._most_short = most_short
        self._names: dict[bytes, tuple[str, str]] = {}
        self._heads: dict[bytes, InferHead] = {}
        self._heads_size = 0

    def read(self, data: bytes) -> InferMessage | None:
        """Parse the message; None if it is unusual or invalid, and left to protobuf."""
        try:
            return self._read(data)
        except (IndexError, WireError, UnicodeDecodeError, DecodeError):
            return None

    def _read(self, data: bytes) -> InferMessage | None:
        size = len(data)
        limit = self._most_short
        short = size <= limit
        if short:
            limit = size
        position = 0
        if data[0] == _MODEL_NAME:
            position = _field_end(data, 0)
        if data[position] == _MODEL_VERSION:
            position = _field_end(data, position)
        if position > limit:
            return None
        names = self._names.get(data[:position])
        if names is None:
            names = self._remember_names(data[:position])
        key = data[position]
        request_id = ""
        if key == _ID:
            start = position
            position = _field_end(data, start)
            if position > limit:
                return None
            request_id = _text(data, start, position)
            key = data[position]
        parameters = NO_PARAMETERS
        if key == _PARAMETER:
            parameters = {}
            position = _read_parameters(data, position, limit, parameters)
            if position < 0:
                return None
        end = _head_end(data, position, limit)
        if end < 0:
            return None
        head_bytes = data[position:end]
        head = self._heads.get(head_bytes)
        if head is None:
            head = self._read_head(head_bytes)
        raws: Sequence[Buffer] = ()
        if end < size:
            raw_data = _raws(data, end)
            if raw_data is None:
                return None
            raws = raw_data
        return InferMessage(names[0], names[1], request_id, parameters, head, raws, short)

    def _remember_names(self, data: bytes) -> tuple[str, str]:
        model = version = ""
        position = 0
        if data and data[0] == _MODEL_NAME:
            position = _field_end(data, 0)
            model = _text(data, 0, position)
        if position < len(data):
            version = _text(data, position, len(data))
        names = model, version
        if len(data) <= _LONGEST_NAMES:
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[data] = names
        return names

    def _read_head(self, data: bytes) -> InferHead:
        head = head_of(pb.ModelInferRequest.FromString(data))
        size = len(data)
        if size > _LONGEST_HEAD or head.typed:
            return head
        self._heads_size += size
        if self._heads_size > _MOST_HEADS:
            self._heads.clear()
            self._heads_size = size
        self._heads[data] = head
        head.lasting = True
        return head


def _head_end(data: bytes, position: int, limit: int) -> int:
    """Return the end of the inputs and outputs that begin at `position`; -1 if it is beyond `limit`."""
    size = len(data)
    while position < size:
        key = data[position]
        if key != _INPUT and key != _OUTPUT:
            break
        position = _field_end(data, position)
        if position > limit:
            return -1
    return position


def _raws(data: bytes, position: int) -> list[Buffer] | None:
    """Parse the tensors from `position` to the end; None if there are many, or other fields."""
    size = len(data)
    raws: list[Buffer] = []
    view: memoryview | None = None
    while position < size:
        if data[position] != _RAW or len(raws) > LIMITS.tensors:
            return None
        length = data[position + 1]
        position += 2
        if length > 0x7F:
            length, position = _long_length(data, position - 1)
        end = position + length
        if end > size:
            return None
        if length <= _COPIED:
            raws.append(data[position:end])
        else:
            if view is None:
                view = memoryview(data)
            raws.append(view[position:end])
        position = end
    return raws


def _read_parameters(data: bytes, position: int, limit: int, parameters: dict[str, Parameter]) -> int:
    """Add the parameters from `position` on to `parameters`; return their end, or -1 for an unusual one.

    None of them extends beyond `limit`.
    """
    size = len(data)
    while position < size and data[position] == _PARAMETER:
        end = _field_end(data, position)
        if end > limit or len(parameters) >= LIMITS.parameters:
            return -1
        start = _value_start(data, position)
        if data[start] != _ENTRY_KEY:
            return -1
        value = _field_end(data, start)
        if value >= end or data[value] != _ENTRY_VALUE or _field_end(data, value) != end:
            return -1
        name = _text(data, start, value)
        parameter = _parameter(data, _value_start(data, value), end)
        if parameter is None or name in parameters:
            return -1
        parameters[name] = parameter
        position = end
    return position


def _parameter(data: bytes, position: int, end: int) -> Parameter | None:
    """Parse the ``InferParameter`` from `position` to `end`; None unless it has exactly one field."""
    if position >= end:
        return None
    key = data[position]
    if key == _STRING:
        return ("string_param", _text(data, position, end)) if _field_end(data, position) == end else None
    if key == _DOUBLE:
        if position + 9 != end:
            return None
        double: float = _double.unpack_from(data, position + 1)[0]
        return "double_param", double
    number, behind = read_varint(data, position + 1)
    if behind != end or number >= 2**64:
        return None
    if key == _BOOL:
        return "bool_param", number != 0
    if key == _INT64:
        return "int64_param", to_signed(number)
    return ("uint64_param", number) if key == _UINT64 else None


def _field_end(data: bytes, position: int) -> int:
    """Return the end of a field that has a length and a one-byte key at `position`."""
    length = data[position + 1]
    if length < 0x80:
        return position + 2 + length
    length, position = _long_length(data, position + 1)
    return position + length


def _long_length(data: bytes, position: int) -> tuple[int, int]:
    """Parse a length like `read_varint`. Raises WireError for superfluous bytes, some of which protobuf accepts.

    Also raised for lengths beyond any message: in compiled code, a position above 64 bits raises no IndexError.
    """
    length, position = read_varint(data, position)
    if not data[position - 1]:
        raise WireError("a length has more bytes than it needs")
    if length > _LONGEST:
        raise WireError("a field extends beyond its message")
    return length, position


def _value_start(data: bytes, position: int) -> int:
    """Return the start of the value of a field, as in `_field_end`."""
    position += 1
    while data[position] > 0x7F:
        position += 1
    return position + 1


def _text(data: bytes, position: int, end: int) -> str:
    return data[_value_start(data, position) : end].decode()
