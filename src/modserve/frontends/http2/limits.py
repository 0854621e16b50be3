"""Limits of one connection: against clients that mean harm, and the windows of flow control."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits: sizes in bytes, times in seconds. docs/decisions/009-hostile-clients.md has a row for each attack."""

    streams: int = 1_000
    """Streams that a client may have open, as it is told; others are refused, and may be sent again. 0: not told."""
    most_streams: int = 20_000
    """Open streams of a client that is not told its limit."""
    header_list: int = 16 * 1024
    """Names and values of a header block, with 32 bytes each, as it is told (RFC 9113, section 6.5.2)."""
    decoded: int = 64 * 1024
    """Names and values that are kept, with 32 bytes each. Fields beyond them are read for their effect on the table,
    and the call is refused."""
    longest_block: int = 1024 * 1024
    """Bytes of a header block, as it comes; beyond it the connection ends."""
    header_block: int = 16 * 1024
    """Bytes of a header block in one frame, as it comes, that is read when the frame is complete. Others are read as
    their bytes come, and never held as a whole."""
    continuations: int = 80
    """CONTINUATION frames of one header block: as many as it takes if none is larger than it must be."""
    table: int = 4096
    """Bytes of the table that a client's encoder fills (RFC 7541, section 4.2)."""
    frame: int = 1024 * 1024
    """The longest DATA frame. It is read as it comes, and never held as a whole."""
    control_frame: int = 16 * 1024
    """The longest of any other kind that is read; unknown kinds are skipped."""
    stream_window: int = 2 * 1024 * 1024
    """Bytes that a client may send on a stream ahead of what is consumed."""
    connection_window: int = 32 * 1024 * 1024
    """Bytes that a client may send on all its streams ahead of what has been received."""
    resets: int = 1_000
    """Streams that end before their time: reset within two seconds, refused, or wrong. Each that is served to its end
    makes up for one."""
    resets_a_second: int = 50
    updates: int = 2_000
    """WINDOW_UPDATE frames. Calls, frames of data that are sent and messages make up for some."""
    updates_a_second: int = 200
    noise: int = 2_000
    """Other frames that do not further any call: SETTINGS, PING, PRIORITY, unknown ones, DATA and CONTINUATION without
    bytes, and what comes for streams that are over. Each call, and each frame of data that is sent, makes up for
    some."""
    noise_a_second: int = 200
    work: int = 4_000
    """Frames that are read in one turn of the event loop. Two bytes of a header block count as one."""
    unsent_control: int = 64 * 1024
    """Bytes of acknowledgements that wait for a client that does not read."""
    preface: float = 10.0
    """Time until the client's first frame has come."""
    silence: float = 60.0
    """Time without another byte of a message that has begun, or of a call that has to have one."""
    part: int = 16 * 1024
    """Bytes of a message that have `silences` times as long to come, however lively the client."""
    silences: int = 5
    stall: float = 300.0
    """Time without another byte sent of a response for which the client leaves no window."""
    blockage: float = 60.0
    """Time without another byte taken by a client that has let its socket fill up."""
    farewell: float = 2.0
    """Time for the reply to the ping between the two GOAWAYs, and for what is under way to the client at the end."""


LIMITS = ConnectionLimits()

UPDATES_OF_STREAM: Final = 10
"""WINDOW_UPDATEs that a stream earns with its end."""

UPDATES_OF_DATA: Final = 10
"""WINDOW_UPDATEs for each frame of data that is worth something, and for each message that ends in one. gRPC's core
sends 2 or 3 for a response, and 4 at most."""

NOISE_OF_STREAM: Final = 8
"""Other frames that further no call, for each stream that ends."""

NOISE_OF_DATA: Final = 2
"""Other frames that further no call, for each frame of data that is worth something."""
