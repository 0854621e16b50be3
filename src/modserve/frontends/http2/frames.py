"""HTTP/2 frames as bytes, and their constants (RFC 9113, sections 4, 6 and 7)."""

from struct import Struct
from typing import Final

from .endings import PROTOCOL, CloseReason

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_SIZE: Final = 9

HEAD: Final = Struct(">HBBBI")
"""Frame header: the length in 16 and 8 bits, the kind, the flags, and the stream with a reserved bit."""
_SETTING: Final = Struct(">HI")

# Kinds
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

# Flags
END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
WITH_PRIORITY: Final = 32

# Error codes
NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

# Settings
HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME: Final = 16_384
LARGEST_FRAME: Final = (1 << 24) - 1
LARGEST_WINDOW: Final = (1 << 31) - 1
LAST_STREAM: Final = (1 << 31) - 1

SETTINGS_ACK: Final = b"\0\0\0\x04\x01\0\0\0\0"
_RESET: Final = b"\0\0\x04\x03\0"
_PING: Final = b"\0\0\x08\x06\0\0\0\0\0"
_PONG: Final = b"\0\0\x08\x06\x01\0\0\0\0"
_UPDATE: Final = b"\0\0\x04\x08\0"


class Http2Error(Exception):
    """An error that ends the whole connection (RFC 9113, section 5.4.1): code, message and `CloseReason`."""

    def __init__(self, code: int, message: str, ending: CloseReason = PROTOCOL) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.ending = ending


def client_error(ending: CloseReason) -> Http2Error:
    """Return the error that ends a connection after its client exceeded a limit."""
    return Http2Error(ENHANCE_YOUR_CALM, ending.text, ending)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return HEAD.pack(size >> 8, size & 255, kind, flags, stream) + payload


def head(size: int, kind: int, flags: int, stream: int) -> bytes:
    """Return the frame header for a payload of `size` bytes."""
    return HEAD.pack(size >> 8, size & 255, kind, flags, stream)


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join([_SETTING.pack(name, value) for name, value in values.items()]))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return names and values in order. Raises `Http2Error` for invalid values (RFC 9113, section 6.5.2)."""
    if len(payload) % 6:
        raise Http2Error(FRAME_SIZE_ERROR, "SETTINGS are six bytes each")
    values: list[tuple[int, int]] = [_SETTING.unpack_from(payload, at) for at in range(0, len(payload), 6)]
    for name, value in values:
        if name == INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW:
            raise Http2Error(FLOW_CONTROL_ERROR, "a window is larger than 2^31-1")
        if name == MAX_FRAME_SIZE and not DEFAULT_FRAME <= value <= LARGEST_FRAME:
            raise Http2Error(PROTOCOL_ERROR, f"no frame can have {value} bytes at most")
        if name == ENABLE_PUSH and value > 1:
            raise Http2Error(PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
    return values


def reset(stream: int, code: int) -> bytes:
    return _RESET + stream.to_bytes(4, "big") + code.to_bytes(4, "big")


def ping(payload: bytes, ack: bool = False) -> bytes:
    return (_PONG if ack else _PING) + payload


def window_update(stream: int, size: int) -> bytes:
    return _UPDATE + stream.to_bytes(4, "big") + size.to_bytes(4, "big")


def going_away(last: int, code: int, text: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big") + text)
