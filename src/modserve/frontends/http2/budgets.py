"""Of what a client may do so much and no more: the budgets of one connection, and why connections end.

A budget begins with so many frames (`ConnectionLimits`), and gains some a second up to that, and some by what the
server does for the client. What it has sent earns WINDOW_UPDATE without an upper bound: a client may give back the
windows of a burst of responses long after the last of them was sent.
"""

from typing import Final, NamedTuple

from .limits import LIMITS

UPDATES_OF_STREAM: Final = 10
"""WINDOW_UPDATEs that a stream earns with its end."""

UPDATES_OF_DATA: Final = 10
"""The same for each frame of data that is worth something, and for each message that ends in one. gRPC's core sends 2
or 3 for a response, and 4 at most."""

NOISE_OF_STREAM: Final = 8
"""Other frames that further no call, for each stream that ends."""

NOISE_OF_DATA: Final = 2
"""The same for each frame of data that is worth something."""


def after(left: int, gain: int, most: int) -> int:
    """What a budget has when it has gained by time, which fills it up to `most` and takes nothing that was earned."""
    return max(left, min(left + gain, most))


class Ending(NamedTuple):
    """A way in which the server ends a connection before its time."""

    reason: str
    """The label in the metrics."""
    text: str = ""
    """Of the GOAWAY, unless each case has its own."""
    limit: str = ""
    """What the log says of the limit and its option; empty: nothing is logged."""


def _gains(begin: int, second: int, rest: str) -> str:
    return f"{begin} to begin with, {second} more a second, {rest}"


TOO_MANY_UPDATES: Final = Ending(
    "window_updates",
    "too many WINDOW_UPDATE frames for what was sent",
    _gains(
        LIMITS.updates,
        LIMITS.updates_a_second,
        f"{UPDATES_OF_DATA} for each response and frame of data, {UPDATES_OF_STREAM} for each call that ends",
    ),
)
TOO_MUCH_NOISE: Final = Ending(
    "noise",
    "too many frames that do nothing",
    _gains(
        LIMITS.noise,
        LIMITS.noise_a_second,
        f"{NOISE_OF_DATA} for each response and frame of data, {NOISE_OF_STREAM} for each call that ends",
    ),
)
TOO_MANY_RESETS: Final = Ending(
    "resets",
    "too many streams that end early",
    _gains(LIMITS.resets, LIMITS.resets_a_second, "1 for each call that ends"),
)
TOO_MANY_PINGS: Final = Ending(
    "pings",
    "too_many_pings",
    "--grpc-http2-max-ping-strikes and --grpc-http2-min-recv-ping-interval-without-data set the limit",
)
TOO_LONG_BLOCK: Final = Ending(
    "header_block",
    "a header block is too long",
    f"{LIMITS.longest_block} bytes, in {LIMITS.continuations} CONTINUATION frames at most",
)
PROTOCOL: Final = Ending("protocol")
INTERNAL: Final = Ending("internal", "internal error")
NO_SETTINGS: Final = Ending("no_settings")
UNFINISHED: Final = Ending("unfinished")
UNREAD: Final = Ending("unread")
KEEPALIVE: Final = Ending("keepalive")

REASONS: Final = tuple(
    each.reason
    for each in (
        TOO_MANY_UPDATES,
        TOO_MUCH_NOISE,
        TOO_MANY_RESETS,
        TOO_MANY_PINGS,
        TOO_LONG_BLOCK,
        PROTOCOL,
        INTERNAL,
        NO_SETTINGS,
        UNFINISHED,
        UNREAD,
        KEEPALIVE,
    )
)
