"""What a server and the worker of a Python model say to each other: frames over a socket pair.

A frame is a header and a body. The body is JSON, text, or records, and one record is a request or a response:

    header   bytes of the body, kind, number of records, argument (a call's number, or where the inline area is)
    record   number, status, lengths of what follows: description, extras, id, tensors
             description: names, datatypes and shapes of the tensors, and the requested outputs, as JSON
             extras: what few requests have, as JSON; nothing for most
             id: the request's, UTF-8
             for each tensor where its elements are: inline in this frame, or in shared memory (`arena`)
    inline   the elements of small tensors, each at a multiple of 16 bytes

The same descriptions come again and again: both sides keep them by their bytes, so that a usual request costs neither
side any JSON. No element is ever interpreted here, and nothing that comes from the other side is ever executed.
"""

import json
import math
import struct
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

VERSION = 1
"""Of this format. A worker runs the code of its server, so that both always have the same."""

Buffer = Union[bytes, bytearray, memoryview]

HEADER = struct.Struct("<QHHI")
"""Bytes of the body, kind, records, argument."""
_RECORD = struct.Struct("<QHHIII")
"""Number, status, tensors, and bytes of description, extras and id."""
_LOCATION = struct.Struct("<BQQQQ")
"""Where the elements of a tensor are: which memory, offset and capacity of the block, start in it, size; in bytes."""
_ALIGN = 16


class Kind:
    """What a frame says. From the server to the worker:"""

    START = 1  # JSON: load model.py
    COMPLETE = 2  # JSON: auto_complete_config
    INITIALIZE = 3  # JSON: the arguments of `initialize`
    EXECUTE = 4  # records: requests
    CANCELLED = 5  # argument-less; one record's number: nobody waits for this request any more
    PAUSE = 6  # a record's number: no room for more responses to this request
    RESUME = 7  # a record's number
    RESPONSE = 8  # a record: a response to a call
    RESULT = 9  # JSON: what a control operation, or a question of the server, came to
    STOP = 10  # finalize, and exit
    TRIM = 11  # nothing has happened for a while: give memory back
    HELLO = 12  # are you there?

    # From the worker to the server:
    EXECUTED = 20  # records: responses; the worker takes other requests
    RESPOND = 21  # a record: one response of a request that may have more
    WATCH = 22  # a record's number: say when this request is cancelled
    LET_GO = 23  # a record's number: forgotten without a final response
    CALL = 24  # a record: a request to another model
    CANCEL_CALL = 25  # a record's number
    TAKEN = 26  # a record's number: a response of a decoupled call has been used
    CONTROL = 27  # JSON: see `host.Host.control`; answered by RESULT
    LOG = 28  # text; the argument is the level
    METRIC = 29  # JSON: metric, operation, value
    DROP_METRIC = 30  # JSON

    # Both ways:
    RELEASE = 40  # offsets of blocks of the other side that are not read any more
    FORGET = 41  # offsets of blocks of this side that the other need not keep mapped


_KINDS = frozenset(value for name, value in vars(Kind).items() if name.isupper())


class Status:
    """Of a record."""

    RESPONSE = 0  # a response, and more may come
    FINAL = 1  # the last response
    END = 2  # no more responses; this is none
    ERROR = 3  # the extras have `code` and `message`
    FINAL_ERROR = 4
    RESCHEDULED = 5
    OPEN = 6  # the request's sender has the word


LEVELS = ("ERROR", "WARNING", "INFO", "VERBOSE")

INLINE_BYTES = 16 * 1024
"""A larger tensor goes through shared memory: one copy in place of four, for some microseconds more."""
MAX_INLINE_BYTES = 128 * 1024
"""All inline tensors of a frame together: so much fits into a socket at once."""

INLINE, SERVERS, WORKERS = 0, 1, 2
"""The memory a tensor's elements are in: this frame, or the shared memory that the server or the worker owns."""


class Location(NamedTuple):
    """Elements in shared memory: bytes `start` to `start` + `size` of the block at `offset` with `capacity` bytes."""

    memory: int
    offset: int
    capacity: int
    start: int
    size: int


class Described(NamedTuple):
    """A tensor but for its elements. `datatype` is what each side makes of the name; `size` is -1 for BYTES."""

    name: str
    datatype: Any
    shape: Tuple[int, ...]
    size: int


class Description(NamedTuple):
    """What all requests or responses of a sort have in common."""

    tensors: Tuple[Described, ...]
    outputs: Tuple[str, ...]


class Record(NamedTuple):
    """One request or response as it came. `elements` are the tensors' raw forms, in the description's order."""

    number: int
    status: int
    description: Description
    extras: Dict[str, Any]
    id: str
    elements: List[Any]


SIZES = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
"""Bytes of an element; BYTES have no fixed size."""

Sort = Tuple[Tuple[Tuple[str, str, Tuple[int, ...]], ...], Tuple[str, ...]]
"""A description as a key: name, datatype and shape of each tensor, and the requested outputs."""

_KEPT = 1024
"""Descriptions kept on each side; more than that, and shapes vary too much for any to come again."""


class Descriptions:
    """The descriptions that have been used lately, in both forms. `datatypes` makes of a name what this side uses."""

    def __init__(self, datatypes: Callable[[str], Any] = str) -> None:
        self._datatypes = datatypes
        self._written: Dict[Sort, bytes] = {}
        self._read: Dict[bytes, Description] = {}

    def write(self, sort: Sort) -> bytes:
        written = self._written.get(sort)
        if written is None:
            if len(self._written) >= _KEPT:
                self._written.clear()
            written = self._written[sort] = pack(sort)
        return written

    def read(self, written: bytes) -> Description:
        """Raises ValueError or KeyError for what is no description."""
        description = self._read.get(written)
        if description is None:
            if len(self._read) >= _KEPT:
                self._read.clear()
            description = self._read[written] = _read(written, self._datatypes)
        return description


def _read(written: bytes, datatypes: Callable[[str], Any]) -> Description:
    tensors, outputs = json.loads(written) if written else ((), ())
    described = []
    for name, datatype, dims in tensors:
        shape = tuple([int(dim) for dim in dims])
        size = -1 if datatype == "BYTES" else math.prod(shape) * SIZES[datatype]
        described.append(Described(str(name), datatypes(datatype), shape, size))
    return Description(tuple(described), tuple([str(name) for name in outputs]))


Place = Callable[[Buffer, int], Optional[Location]]
"""Puts elements of that many bytes into shared memory, and says where. None: they must go inline."""


class FrameWriter:
    """Makes one frame of records."""

    __slots__ = ("_count", "_inline", "_inline_size", "_place", "_records", "_size")

    def __init__(self, place: Place) -> None:
        self._place = place
        self._records: List[Buffer] = []
        self._inline: List[Buffer] = []
        self._inline_size = 0
        self._size = 0
        self._count = 0

    def add(
        self,
        number: int,
        status: int,
        description: bytes = b"",
        elements: Sequence[Buffer] = (),
        id: bytes = b"",
        extras: bytes = b"",
    ) -> None:
        """A record. `elements` are contiguous, as bytes or views of bytes."""
        record = _RECORD.pack(number, status, len(elements), len(description), len(extras), len(id))
        parts = self._records
        parts.append(record)
        parts.append(description)
        size = len(record) + len(description)
        if extras:
            parts.append(extras)
            size += len(extras)
        if id:
            parts.append(id)
            size += len(id)
        for one in elements:
            length = len(one)
            place = None
            if length > INLINE_BYTES or self._inline_size + length > MAX_INLINE_BYTES:
                place = self._place(one, length)
            if place is not None:
                parts.append(_LOCATION.pack(*place))
            else:
                parts.append(_LOCATION.pack(INLINE, 0, 0, self._inline_size, length))
                if length:
                    self._inline.append(one)
                    self._inline_size += length
                    if short := -length % _ALIGN:
                        self._inline.append(bytes(short))
                        self._inline_size += short
            size += _LOCATION.size
        self._size += size
        self._count += 1

    def frame(self, kind: int) -> bytes:
        pad = bytes(-self._size % _ALIGN)
        inline_at = self._size + len(pad)
        header = HEADER.pack(inline_at + self._inline_size, kind, self._count, inline_at)
        return b"".join([header, *self._records, pad, *self._inline])


def read_records(
    body: memoryview, count: int, inline_at: int, descriptions: Descriptions, fetch: Callable[[Location], Any]
) -> List[Record]:
    """The records of a frame. `fetch` makes a view of elements in shared memory.

    Raises ValueError for what no `FrameWriter` makes.
    """
    records = []
    at, end = 0, len(body)
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
        elements: List[Any] = []
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
            elements.append(body[start : start + size])
        records.append(Record(number, status, description, extras, id, elements))
    return records


def number_frame(kind: int, number: int) -> bytes:
    """A frame that says no more than which request or call it is about."""
    return HEADER.pack(8, kind, 0, 0) + number.to_bytes(8, "little")


def read_number(body: memoryview) -> int:
    return int.from_bytes(body[:8], "little")


def json_frame(kind: int, value: Any, argument: int = 0) -> bytes:
    body = pack(value)
    return HEADER.pack(len(body), kind, 0, argument) + body


def pack(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def read_json(body: memoryview) -> Any:
    """Raises ValueError for what is no JSON."""
    return json.loads(bytes(body))


def text_frame(kind: int, text: str, argument: int = 0) -> bytes:
    body = text.encode("utf-8", "replace")
    return HEADER.pack(len(body), kind, 0, argument) + body


def offsets_frame(kind: int, offsets: Iterable[int]) -> bytes:
    body = b"".join([offset.to_bytes(8, "little") for offset in offsets])
    return HEADER.pack(len(body), kind, 0, 0) + body


def read_offsets(body: memoryview) -> List[int]:
    return [int.from_bytes(body[at : at + 8], "little") for at in range(0, len(body), 8)]


Frame = Tuple[int, int, int, memoryview]
"""Kind, records, argument and body. The body is memory of its own, which nobody writes to again."""

_SCRATCH_BYTES = 256 * 1024
_MAX_BYTES = 1 << 36
"""Of a body. What announces more is no frame: tensors of such sizes are in shared memory."""


class FrameReader:
    """Takes bytes as they come and gives whole frames.

    ``receive(buffer)`` reads into a buffer and returns how many bytes came. A frame begins in the scratch buffer; one
    that does not fit there continues in a buffer of its own.
    """

    def __init__(self) -> None:
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._filled = 0
        self._large: Optional[memoryview] = None
        self._large_filled = 0
        self._large_header = (0, 0, 0)

    def room(self) -> memoryview:
        """Where the next bytes go."""
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._view[self._filled :]

    def received(self, count: int) -> List[Frame]:
        """So many bytes have come into `room`; returns the frames that are whole.

        Raises ValueError for what is no frame, and MemoryError for one that there is no room for.
        """
        if self._large is not None:
            self._large_filled += count
            if self._large_filled < len(self._large):
                return []
            frame = (*self._large_header, self._large)
            self._large = None
            return [frame]
        filled = self._filled + count
        frames: List[Frame] = []
        at = 0
        while filled - at >= 16:
            length, kind, records, argument = HEADER.unpack_from(self._scratch, at)
            end = at + 16 + length
            if kind not in _KINDS or length > _MAX_BYTES:
                raise ValueError(f"a frame has one of the known kinds and at most {_MAX_BYTES} bytes")
            if end <= filled:
                body = memoryview(self._scratch[at + 16 : end])
                frames.append((kind, records, argument, body))
                at = end
            elif 16 + length > _SCRATCH_BYTES:
                large = memoryview(bytearray(length))
                begun = filled - at - 16
                large[:begun] = self._view[at + 16 : filled]
                self._large, self._large_filled, self._large_header = large, begun, (kind, records, argument)
                at = filled
            else:
                break
        if at:
            left = filled - at
            if left:
                self._view[:left] = bytes(self._view[at:filled])
            filled = left
        self._filled = filled
        return frames
