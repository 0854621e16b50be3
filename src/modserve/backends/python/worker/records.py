"""Requests and responses in frames. All that they have in common is written, and read, once.

    record   number, status, lengths of what follows: description, extras, id, tensors
             description: names, datatypes and shapes of the tensors, and what `Sort` has besides, as JSON
             extras: rarely used members, as JSON; nothing for most
             id: the request's, UTF-8
             for each tensor where its elements are: inline in this frame, or in shared memory (`arena`)
    inline   the elements of small tensors, each at a multiple of 16 bytes

The same descriptions come again and again: both sides keep them by their bytes, so that a usual request costs neither
side any JSON. Of a frame with one small record, all but the number and the elements is kept. No element is ever
interpreted here, and nothing that comes from the other side is ever executed.
"""

import json
import math
import struct
from typing import Any, Callable, Dict, Final, List, NamedTuple, Optional, Sequence, Tuple

from .dtypes import DTYPES
from .wire import HEADER, INLINE, Buffer, Location, pack

_RECORD = struct.Struct("<QHHIII")
"""Number, status, tensors, and bytes of description, extras and id."""
_NUMBER_BYTES = 8
_LOCATION = struct.Struct("<BQQQQ")
"""Location of a tensor's elements: which memory, offset and capacity of the block, start in it, size; in bytes."""
_ALIGN = 16

INLINE_BYTES = 16 * 1024
"""A larger tensor goes through shared memory: one copy in place of four, for some microseconds more."""
MAX_INLINE_BYTES = 128 * 1024
"""Limit for all inline tensors of a frame together: a socket holds this much at once."""


class Status:
    """Status of a record."""

    RESPONSE: Final = 0  # a response, and more may come
    FINAL: Final = 1  # the last response
    END: Final = 2  # no more responses; this is none
    ERROR: Final = 3  # the extras have `code` and `message`
    FINAL_ERROR: Final = 4
    RESCHEDULED: Final = 5
    OPEN: Final = 6  # a request; or its sender has the word


class TensorDescription(NamedTuple):
    """A tensor without its elements. `datatype` is each side's own form of the name; `size` is -1 for BYTES."""

    name: str
    datatype: Any
    shape: Tuple[int, ...]
    size: int


class Description(NamedTuple):
    """Common part of all requests or responses of a sort."""

    tensors: Tuple[TensorDescription, ...]
    outputs: Tuple[str, ...]
    target: Tuple[Any, ...]


class Record(NamedTuple):
    """A received request or response. `elements` are the tensors' raw forms, in the description's order."""

    number: int
    status: int
    description: Description
    extras: Dict[str, Any]
    id: str
    elements: List[Any]


SIZES = {**{name: dtype.itemsize for name, dtype in DTYPES.items()}, "BF16": 2}
"""Bytes of an element; BYTES have no fixed size."""

Sort = Tuple[Tuple[Tuple[str, str, Tuple[int, ...]], ...], Tuple[str, ...], Tuple[Any, ...]]
"""A description as a key: name, datatype and shape of each tensor, the requested outputs, and the target of a call."""

_KEPT = 1024
"""Limit of each kind; with more, shapes vary too much for any to come again."""


class _Template(NamedTuple):
    """A frame with one record, but for its number and the elements. `pads` follow the elements, empty where none do.

    Writes the frame of a small request in 2 µs in place of 5 (benchmarks/engine_shortcuts.py).
    """

    head: bytes
    tail: bytes
    pads: Tuple[bytes, ...]


class _Shape(NamedTuple):
    """A body with one record, but for the same. `slices` of it are the elements; `size` is all of it.

    Reads the frame of a small request in 4 µs in place of 8 (benchmarks/engine_shortcuts.py).
    """

    status: int
    description: Description
    slices: Tuple[slice, ...]
    size: int


class Descriptions:
    """Recently used descriptions, in both forms. `datatypes` maps a name to this side's form."""

    def __init__(self, datatypes: Callable[[str], Any] = str) -> None:
        self._datatypes = datatypes
        self._written: Dict[Sort, bytes] = {}
        self._read: Dict[bytes, Description] = {}
        self.templates: Dict[Tuple[int, int, Sort], Optional[_Template]] = {}
        self.shapes: Dict[bytes, _Shape] = {}

    def write(self, sort: Sort) -> bytes:
        written = self._written.get(sort)
        if written is None:
            written = pack(sort)
            keep(self._written, sort, written)
        return written

    def read(self, written: bytes) -> Description:
        """Read a description. Raises ValueError or KeyError for an invalid one."""
        description = self._read.get(written)
        if description is None:
            description = _read(written, self._datatypes)
            keep(self._read, written, description)
        return description


def keep(memory: Dict[Any, Any], key: Any, value: Any) -> None:
    if len(memory) >= _KEPT:
        memory.clear()
    memory[key] = value


def _read(written: bytes, datatypes: Callable[[str], Any]) -> Description:
    tensors, outputs, target = json.loads(written) if written else ((), (), ())
    described = []
    for name, datatype, dims in tensors:
        shape = tuple([int(dim) for dim in dims])
        size = -1 if datatype == "BYTES" else math.prod(shape) * SIZES[datatype]
        described.append(TensorDescription(str(name), datatypes(datatype), shape, size))
    return Description(tuple(described), tuple([str(name) for name in outputs]), tuple(target))


Place = Callable[[Buffer, int], Optional[Location]]
"""Function that puts that many bytes of elements into shared memory; returns the place. None: they must go inline."""


class OutgoingRecord(NamedTuple):
    """A record to be written. `elements` are the raw forms of the sort's tensors, as bytes or views of bytes."""

    number: int
    status: int
    sort: Optional[Sort] = None
    elements: Sequence[Buffer] = ()
    id: bytes = b""
    extras: bytes = b""


def write_records(descriptions: Descriptions, place: Place, kind: int, entries: Sequence[OutgoingRecord]) -> bytes:
    """Encode a frame with a record for each entry."""
    if len(entries) == 1:
        number, status, sort, elements, id, extras = entries[0]
        if sort is not None and not id and not extras:
            template = _template_for(descriptions, (kind, status, sort))
            if template is not None:
                parts: List[Buffer] = [template.head, number.to_bytes(_NUMBER_BYTES, "little"), template.tail]
                for one, pad in zip(elements, template.pads):
                    parts.append(one)
                    if pad:
                        parts.append(pad)
                return b"".join(parts)
    return _write_records(descriptions, place, kind, entries)


def _write_records(descriptions: Descriptions, place: Place, kind: int, entries: Sequence[OutgoingRecord]) -> bytes:
    records: List[Buffer] = []
    inline: List[Buffer] = []
    inline_size = size = 0
    for number, status, sort, elements, id, extras in entries:
        description = b"" if sort is None else descriptions.write(sort)
        records += (
            _RECORD.pack(number, status, len(elements), len(description), len(extras), len(id)),
            description,
            extras,
            id,
        )
        size += _RECORD.size + len(description) + len(extras) + len(id) + _LOCATION.size * len(elements)
        for one in elements:
            length = len(one)
            location = None
            if length > INLINE_BYTES or inline_size + length > MAX_INLINE_BYTES:
                location = place(one, length)
            if location is not None:
                records.append(_LOCATION.pack(*location))
                continue
            records.append(_LOCATION.pack(INLINE, 0, 0, inline_size, length))
            pad = bytes(-length % _ALIGN)
            inline += (one, pad)
            inline_size += length + len(pad)
    records.append(bytes(-size % _ALIGN))
    inline_at = size + len(records[-1])
    header = HEADER.pack(inline_at + inline_size, kind, len(entries), inline_at)
    return b"".join([header, *records, *inline])


def _template_for(descriptions: Descriptions, key: Tuple[int, int, Sort]) -> Optional[_Template]:
    try:
        return descriptions.templates[key]
    except KeyError:
        template = _template(descriptions, key)
        keep(descriptions.templates, key, template)
        return template


def _template(descriptions: Descriptions, key: Tuple[int, int, Sort]) -> Optional[_Template]:
    """Return the template of a frame; None if the elements' sizes vary, or are too large for the frame."""
    kind, status, sort = key
    sizes = [described.size for described in descriptions.read(descriptions.write(sort)).tensors]
    if [size for size in sizes if size < 0 or size > INLINE_BYTES] or sum(sizes) > MAX_INLINE_BYTES // 2:
        return None
    entry = OutgoingRecord(0, status, sort, [bytes(size) for size in sizes])
    frame = _write_records(descriptions, lambda elements, size: None, kind, [entry])
    _, _, _, inline_at = HEADER.unpack_from(frame)
    tail = frame[HEADER.size + _NUMBER_BYTES : HEADER.size + inline_at]
    return _Template(frame[: HEADER.size], tail, tuple([bytes(-size % _ALIGN) for size in sizes]))


def read_records(
    body: memoryview, count: int, inline_at: int, descriptions: Descriptions, fetch: Callable[[Location], Any]
) -> List[Record]:
    """Decode the records of a frame. `fetch` makes a view of elements in shared memory.

    Raises ValueError for a frame that is not from `write_records`.
    """
    end = len(body)
    if count == 1:
        known = bytes(body[_NUMBER_BYTES:inline_at])
        shape = descriptions.shapes.get(known)
        if shape is not None and shape.size == end:
            number = int.from_bytes(body[:_NUMBER_BYTES], "little")
            elements = [body[each] for each in shape.slices]
            return [Record(number, shape.status, shape.description, {}, "", elements)]
    records = []
    at = 0
    for _ in range(count):
        number, status, tensors, of_description, of_extras, of_id = _RECORD.unpack_from(body, at)
        at += _RECORD.size
        written = bytes(body[at : at + of_description])
        at += of_description
        description = descriptions.read(written)
        extras: Dict[str, Any] = {}
        if of_extras:
            extras = json.loads(bytes(body[at : at + of_extras]))
            at += of_extras
        id = ""
        if of_id:
            id = str(body[at : at + of_id], "utf-8", "replace")
            at += of_id
        described = description.tensors
        if tensors != len(described):
            raise ValueError("a record has as many tensors as its description")
        elements = []
        slices = []
        for index in range(tensors):
            memory, offset, capacity, start, size = _LOCATION.unpack_from(body, at)
            at += _LOCATION.size
            expected = described[index].size
            if size != expected and expected != -1:
                raise ValueError("a tensor has as many bytes as its shape says")
            if memory:
                elements.append(fetch(Location(memory, offset, capacity, start, size)))
                continue
            start += inline_at
            if start + size > end:
                raise ValueError("inline elements are in the frame")
            slices.append(slice(start, start + size))
            elements.append(body[slices[-1]])
        records.append(Record(number, status, description, extras, id, elements))
        if count == 1 and not of_extras and not of_id and len(slices) == tensors:
            keep(descriptions.shapes, known, _Shape(status, description, tuple(slices), end))
    return records
