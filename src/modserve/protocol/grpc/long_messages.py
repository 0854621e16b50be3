"""Splits long inference requests of gRPC, so that protobuf parses only their short parts.

Protobuf copies each tensor twice, takes up to sixty times the memory of typed elements, and blocks other threads
meanwhile. Instead, tensors stay views of the message. For field numbers see ``ModelInferRequest`` in
protos/grpc_service.proto; for the encoding of fields: protobuf.dev, "Encoding".
"""

from collections.abc import Iterator
from typing import final

from google.protobuf.message import DecodeError

from modserve.core.tensors.tensor import Buffer
from modserve.core.wire.protobuf_wire import LENGTH_DELIMITED, WireError, bytes_field, read_varint, value_span
from modserve.pb import inference as pb

_INPUT, _RAW = (number << 3 | LENGTH_DELIMITED for number in (5, 7))
_CONTENTS = 5 << 3 | LENGTH_DELIMITED

_FEW_FIELDS, _MANY_FIELDS = 100, 32 * 1024
"""Field counts, including fields of inputs. A request within `protocol.limits` has fewer than the latter."""


@final
class Tensors:
    """The tensors of a message, as views."""

    __slots__ = ("contents", "raws")

    def __init__(self) -> None:
        self.raws: list[Buffer] = []
        """``raw_input_contents``"""
        self.contents: list[Buffer | None] = []
        """``contents`` of each input as bytes; None without contents."""


class ManyFieldsError(ValueError):
    """Too many fields in a message."""


def split(data: bytes, most: int = 0) -> tuple[pb.ModelInferRequest, Tensors] | None:
    """Return the message without its tensors, and the tensors; None if more than `most` bytes are left without them.

    With `most` above 0, the message may have few fields only. Raises DecodeError for an invalid message, and
    `ManyFieldsError` for more fields than any request has.
    """
    try:
        split = _Splitter(data, _FEW_FIELDS if most else _MANY_FIELDS)
        split.run()
        if 0 < most < sum(map(len, split.head)):
            return None
        return pb.ModelInferRequest.FromString(b"".join(split.head)), split.tensors
    except ManyFieldsError:
        if most:
            return None
        raise
    except (WireError, IndexError):
        raise DecodeError("a field extends beyond the message or is malformed") from None


class _Splitter:
    def __init__(self, data: bytes, most_fields: int) -> None:
        self._data = data
        self._view = memoryview(data)
        self._fields_left = most_fields
        self.tensors = Tensors()
        self.head: list[Buffer] = []

    def run(self) -> None:
        view, kept = self._view, 0
        for tag, start, value, stop in self._fields(0, len(view)):
            if tag == _RAW:
                self.head.append(view[kept:start])
                self.tensors.raws.append(view[value:stop])
                kept = stop
            elif tag == _INPUT and (parts := self._without_contents(value, stop)):
                self.head += (view[kept:start], bytes_field(_INPUT >> 3, b"".join(parts)))
                kept = stop
        self.head.append(view[kept:])

    def _without_contents(self, position: int, end: int) -> list[Buffer]:
        """Return the parts of an input between its contents; none without contents."""
        view, kept = self._view, position
        parts: list[Buffer] = []
        contents: Buffer | None = None
        for tag, start, value, stop in self._fields(position, end):
            if tag == _CONTENTS:
                parts.append(view[kept:start])
                # Repeated contents are merged by concatenation.
                contents = view[value:stop] if contents is None else b"".join((contents, view[value:stop]))
                kept = stop
        self.tensors.contents.append(contents)
        if parts:
            parts.append(view[kept:end])
        return parts

    def _fields(self, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield each field's tag, its start, and the start and end of its value."""
        data = self._data
        while position < end:
            start = position
            tag, position = read_varint(data, position)
            self._fields_left -= 1
            if self._fields_left < 0:
                raise ManyFieldsError(f"the request has more than {_MANY_FIELDS} fields")
            value, position = value_span(data, position, end, tag)
            yield tag, start, value, position
