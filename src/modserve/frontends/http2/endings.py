"""The ways in which the server ends a connection before its time."""

from typing import Final, NamedTuple

from .limits import LIMITS, NOISE_OF_DATA, NOISE_OF_STREAM, UPDATES_OF_DATA, UPDATES_OF_STREAM


class CloseReason(NamedTuple):
    """A way in which the server ends a connection."""

    reason: str
    """The label in the metrics."""
    text: str = ""
    """Text of the GOAWAY, unless each case has its own."""
    limit: str = ""
    """Text of the log about the limit and its option; empty: nothing is logged."""


_endings: Final[list[CloseReason]] = []


def _ending(reason: str, text: str = "", limit: str = "") -> CloseReason:
    ending = CloseReason(reason, text, limit)
    _endings.append(ending)
    return ending


def _gains(begin: int, second: int, rest: str) -> str:
    return f"{begin} to begin with, {second} more a second, {rest}"


TOO_MANY_UPDATES: Final = _ending(
    "window_updates",
    "too many WINDOW_UPDATE frames for what was sent",
    _gains(
        LIMITS.updates,
        LIMITS.updates_a_second,
        f"{UPDATES_OF_DATA} for each response and frame of data, {UPDATES_OF_STREAM} for each call that ends",
    ),
)
TOO_MUCH_NOISE: Final = _ending(
    "noise",
    "too many frames that do nothing",
    _gains(
        LIMITS.noise,
        LIMITS.noise_a_second,
        f"{NOISE_OF_DATA} for each response and frame of data, {NOISE_OF_STREAM} for each call that ends",
    ),
)
TOO_MANY_RESETS: Final = _ending(
    "resets",
    "too many streams that end early",
    _gains(LIMITS.resets, LIMITS.resets_a_second, "1 for each call that ends"),
)
TOO_MANY_PINGS: Final = _ending(
    "pings",
    "too_many_pings",
    "--grpc-http2-max-ping-strikes and --grpc-http2-min-recv-ping-interval-without-data set the limit",
)
TOO_LONG_BLOCK: Final = _ending(
    "header_block",
    "a header block is too long",
    f"{LIMITS.longest_block} bytes, in {LIMITS.continuations} CONTINUATION frames at most",
)
PROTOCOL: Final = _ending("protocol")
INTERNAL: Final = _ending("internal", "internal error")
NO_SETTINGS: Final = _ending("no_settings")
UNFINISHED: Final = _ending("unfinished")
UNREAD: Final = _ending("unread")
KEEPALIVE: Final = _ending("keepalive")

REASONS: Final = tuple(each.reason for each in _endings)
