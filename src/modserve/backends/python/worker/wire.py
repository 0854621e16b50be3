"""The protocol between the server and the worker of a Python model: frames over a socket pair.

A frame is a header and a body. The header has the body's length, the kind, the number of records, and an argument: a
call's number, or the end of the records in the body. The body is JSON, text, offsets, a number, or records: requests
and responses (`records`).
"""

import json
import struct
from typing import Any, Final, Iterable, List, NamedTuple, Optional, Tuple, Union

VERSION = 1
"""Version of this format. Workers run their server's code, so both sides always have the same version."""

Buffer = Union[bytes, bytearray, memoryview]

HEADER = struct.Struct("<QHHI")
"""Body length, kind, records, argument."""


class MessageKind:
    """Kind of a frame. From the server to the worker:"""

    START: Final = 1  # JSON: load model.py
    COMPLETE: Final = 2  # JSON: auto_complete_config
    INITIALIZE: Final = 3  # JSON: the arguments of `initialize`
    EXECUTE: Final = 4  # records: requests
    CANCELLED: Final = 5  # a record's number: this request was cancelled
    PAUSE: Final = 6  # a record's number: no room for more responses to this request
    RESUME: Final = 7  # a record's number
    RESPONSE: Final = 8  # a record: a response to a call
    RESULT: Final = 9  # JSON: the result of a control operation, or of a question of the server
    STOP: Final = 10  # finalize, and exit
    TRIM: Final = 11  # after idle time: release free memory
    HELLO: Final = 12  # request for a sign of life

    # From the worker to the server:
    EXECUTED: Final = 20  # records: responses; the worker accepts further requests
    RESPOND: Final = 21  # a record: one response of a request that may have more
    WATCH: Final = 22  # a record's number: report when this request is cancelled
    LET_GO: Final = 23  # a record's number: dropped without a final response
    CALL: Final = 24  # a record: a request to another model
    CANCEL_CALL: Final = 25  # a record's number
    TAKEN: Final = 26  # a record's number: a response of a decoupled call was consumed
    CONTROL: Final = 27  # JSON: see `host.Host.control`; answered by RESULT
    LOG: Final = 28  # text; the argument is the level
    METRIC: Final = 29  # JSON: metric, operation, value
    DROP_METRIC: Final = 30  # JSON

    # Both ways:
    RELEASE: Final = 40  # offsets of blocks of the other side: ended leases
    FORGET: Final = 41  # offsets of blocks of this side that the other side can unmap


_KINDS = frozenset(value for name, value in vars(MessageKind).items() if name.isupper())


LEVELS = ("ERROR", "WARNING", "INFO", "VERBOSE")

INLINE, SERVERS, WORKERS = 0, 1, 2
"""Memory with a tensor's elements: the frame, the server's shared memory, or the worker's."""


class Location(NamedTuple):
    """Elements in shared memory: bytes `start` to `start` + `size` of the block at `offset` with `capacity` bytes."""

    memory: int
    offset: int
    capacity: int
    start: int
    size: int


def number_frame(kind: int, number: int) -> bytes:
    """Encode a frame with only the number of a request or call."""
    return HEADER.pack(8, kind, 0, 0) + number.to_bytes(8, "little")


def read_number(body: memoryview) -> int:
    return int.from_bytes(body[:8], "little")


def json_frame(kind: int, value: Any, argument: int = 0) -> bytes:
    body = pack(value)
    return HEADER.pack(len(body), kind, 0, argument) + body


def pack(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def read_json(body: memoryview) -> Any:
    """Read the JSON of a body. Raises ValueError if it is invalid."""
    return json.loads(bytes(body))


def text_frame(kind: int, text: str, argument: int) -> bytes:
    body = text.encode("utf-8", "backslashreplace")
    return HEADER.pack(len(body), kind, 0, argument) + body


def offsets_frame(kind: int, offsets: Iterable[int]) -> bytes:
    body = b"".join([offset.to_bytes(8, "little") for offset in offsets])
    return HEADER.pack(len(body), kind, 0, 0) + body


def read_offsets(body: memoryview) -> List[int]:
    return [int.from_bytes(body[at : at + 8], "little") for at in range(0, len(body), 8)]


Frame = Tuple[int, int, int, memoryview]
"""Kind, records, argument and body. The body has its own memory, which is not written to again."""

_SCRATCH_BYTES = 64 * 1024
_MAX_BYTES = 1 << 36
"""Limit of a body's length. A larger one shows an invalid frame, as large tensors are in shared memory."""


class RecordReader:
    """Incremental reader of frames.

    ``receive(buffer)`` reads into a buffer and returns the number of bytes. A frame begins in the scratch buffer; a
    larger one continues in its own buffer.
    """

    def __init__(self) -> None:
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._filled = 0
        self._large: Optional[memoryview] = None
        self._large_filled = 0
        self._large_header = (0, 0, 0)

    def room(self) -> memoryview:
        """Return the buffer for the next bytes."""
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._view[self._filled :]

    def take_in(self, count: int) -> List[Frame]:
        """Process `count` bytes written to `room`; returns the complete frames.

        Raises ValueError for an invalid frame, and MemoryError for one that does not fit in memory.
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
