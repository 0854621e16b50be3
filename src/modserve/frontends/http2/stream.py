"""One stream: what it may still receive and send, and what waits to be sent.

A stream knows its connection; whoever serves it is a subclass, which hears of bytes as they come.
"""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from mypy_extensions import mypyc_attr

from .frames import CANCEL, INTERNAL_ERROR, window_update
from .headers import Head

if TYPE_CHECKING:
    from .sending import Sending

Chunk: TypeAlias = bytes | bytearray | memoryview


@mypyc_attr(allow_interpreted_subclasses=True)
class Stream:
    """Its state: `ended` when the client has sent all, `over` when nothing more is sent or heard.

    `pending` holds the bytes of DATA frames that could not be sent yet, and `final` the header block behind them.
    """

    __slots__ = (
        "advanced",
        "connection",
        "consumed",
        "due",
        "ended",
        "final",
        "head",
        "headers_sent",
        "heard",
        "moved",
        "number",
        "opened",
        "over",
        "pending",
        "queued",
        "room",
        "watched",
        "window",
    )

    def __init__(self, connection: "Sending", number: int, head: Head, window: int, room: int) -> None:
        self.connection = connection
        self.number = number
        self.head = head
        self.ended = False
        self.over = False
        self.headers_sent = False
        self.window = window
        """Bytes that may be sent."""
        self.room = room
        """Bytes that the client may still send."""
        self.due = head.length
        """Bytes that the client has announced and not sent; -1: it has announced none."""
        self.consumed = 0
        """Bytes that it has not been told of yet."""
        self.pending: deque[Chunk] | None = None
        self.final: bytes | None = None
        self.queued = False
        """Whether the connection has it among those that can send."""
        self.watched = False
        self.opened = connection.site.seconds
        self.heard = self.opened
        """When something of what the client has to send last came, by the clock of the site."""
        self.advanced = self.opened
        """When so much of it had come that the client has as long for as much again."""
        self.moved = self.opened
        """When something of what is pending was last sent."""

    # What a subclass does

    def data_received(self, data: bytes, start: int, end: int) -> None:
        """`data` from `start` to `end` has come: a part of the body, of any size."""
        raise NotImplementedError

    def end_received(self) -> None:
        """The client has sent its last byte."""
        raise NotImplementedError

    def begin(self) -> None:
        """What came with the stream's last bytes has been read as well; called after `connection.ready`."""
        raise NotImplementedError

    def lost(self) -> None:
        """The client has reset the stream, or the connection is lost. Nothing may be sent any more."""
        raise NotImplementedError

    def finished(self) -> None:
        """Everything has been sent."""
        raise NotImplementedError

    def broken(self) -> None:
        """Whoever serves it has raised, unforeseen."""
        self.reset(INTERNAL_ERROR)

    def drained(self) -> None:
        """All that was pending has been sent, and the stream goes on."""

    def overdue(self) -> None:
        """Nothing has come for too long, though something had to."""
        raise NotImplementedError

    def expects(self) -> bool:
        """Whether the client has to send something soon."""
        return False

    # What it does

    def credit(self, size: int) -> None:
        """Let the client send so many bytes more, which have been consumed."""
        self.consumed += size
        if self.consumed >= self.connection.half_window and not self.ended and not self.over:
            self.room += self.consumed
            self.connection.control(window_update(self.number, self.consumed))
            self.consumed = 0

    def send_headers(self, block: bytes) -> None:
        if not self.over:
            self.headers_sent = True
            self.connection.send_headers(self, block)

    def send_data(self, chunks: list[Chunk]) -> None:
        """Returns at once; `pending` is empty if everything is on its way."""
        if not self.over:
            self.wait_to_send(chunks)
            self.connection.push(self)

    def wait_to_send(self, chunks: Iterable[Chunk]) -> None:
        if not self.pending:
            self.moved = self.connection.site.seconds
            if self.pending is None:
                self.pending = deque()
        for chunk in chunks:
            if len(chunk):  # what has no bytes would wait for a window that it does not need
                self.pending.append(chunk)

    def finish(self, block: bytes) -> None:
        """End it with a header block, behind all that was sent before."""
        if not self.over and self.final is None:
            self.final = block
            self.connection.push(self)

    def reset(self, code: int = CANCEL) -> None:
        """End it at once; what is pending is dropped."""
        if not self.over:
            self.connection.reset(self, code)


def gathered(parts: list[Chunk]) -> list[Chunk]:
    """The same bytes in fewer parts: neighbours that are short become one."""
    fewer: list[Chunk] = []
    short: list[Chunk] = []
    for part in parts:
        if len(part) <= 1024:
            short.append(part)
            continue
        if short:
            fewer.append(b"".join(short))
            short = []
        fewer.append(part)
    if short:
        fewer.append(b"".join(short))
    return fewer
