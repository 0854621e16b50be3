"""How header blocks come, and the streams that they open or end (RFC 9113, sections 6.2 and 6.10).

A short block is read when it is complete. A long one is read as its bytes come, whatever frames they are in: its call
is refused, and the calls beside it go on. The state:

- `_block` has the parts of a block whose end has not come, `_block_size` and `_block_frames` what it has in all; until
  then no other frame may come.
- `_long` is that of a long one; then `_left` bytes of the frame at hand are still to come, of which the last `_padding`
  mean nothing.
"""

from typing import Final

from . import frames
from .budgets import TOO_LONG_BLOCK
from .controlling import Controlling
from .decoding import Decoding, Fields
from .frames import CONTINUATION, END_HEADERS, END_STREAM, HEAD_SIZE, HEADERS, PADDED, PROTOCOL_ERROR, Http2Error
from .headers import Blocks, Head, MalformedError, has_pseudo
from .keeping import spent
from .site import Site
from .stream import Stream

CALL_WORK: Final = 40
"""To begin a call, or to end it before its time, costs about as much as so many frames: it may have a task."""

_SLICE: Final = 4 * 1024
"""Bytes of a long block between two looks at the work of this turn."""


class Opening(Controlling):
    """Each method raises `Http2Error` for what ends the connection."""

    __slots__ = (
        "_block",
        "_block_ends",
        "_block_frames",
        "_block_last",
        "_block_size",
        "_block_stream",
        "_blocks",
        "_left",
        "_long",
        "_padding",
        "_work",
    )

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._left = 0
        self._padding = 0
        self._work = 0
        self._block: list[bytes] | None = None
        self._block_size = 0
        self._block_frames = 0
        self._block_stream = 0
        self._block_ends = False
        """The client's side of the stream ends with it."""
        self._block_last = False
        """The frame at hand is its last."""
        self._long: Decoding | None = None
        self._blocks: Blocks | None = None

    # Short blocks

    def _on_headers(self, flags: int, number: int, payload: bytes) -> None:
        start, end = 0, len(payload)
        if flags & PADDED:
            start, end = 1, end - (payload[0] if payload else end)
        if flags & frames.WITH_PRIORITY:
            start += 5
        if start > end:
            raise Http2Error(PROTOCOL_ERROR, "the padding is longer than its frame")
        block = payload[start:end] if start or end < len(payload) else payload
        if flags & END_HEADERS:
            self._open(number, block, bool(flags & END_STREAM))
            return
        self._block = [block]
        self._begin_block(flags, number, len(block))

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        parts = self._block
        if parts is None:
            raise Http2Error(PROTOCOL_ERROR, "CONTINUATION without HEADERS before it")
        parts.append(payload)
        self._count_part(len(payload))
        if flags & END_HEADERS:
            self._block = None
            self._open(self._block_stream, b"".join(parts), self._block_ends)

    def _begin_block(self, flags: int, number: int, size: int) -> None:
        self._block_size, self._block_frames, self._block_stream = size, 0, number
        self._block_ends = bool(flags & END_STREAM)

    def _count_part(self, size: int) -> None:
        limits = self.site.limits
        self._block_frames += 1
        self._block_size += size
        if self._block_frames > limits.continuations or self._block_size > limits.longest_block:
            raise spent(TOO_LONG_BLOCK)
        if not size:
            self.count_noise()

    def _open(self, number: int, block: bytes, ends: bool) -> None:
        """A stream begins, or ends with trailers."""
        blocks = self._blocks
        if blocks is None:
            blocks = self._blocks = Blocks(self.site.limits)
        head = blocks.known(block) if number > self.highest else None
        if head is not None:
            self._open_stream(number, head, ends)
            return
        self._work += len(block) // 2
        decoding, lasting = blocks.decode(block)
        head = self._decoded(number, decoding, ends)
        if lasting and head is not None:
            blocks.remember(block, head)

    # Long ones

    def is_long(self, kind: int, length: int) -> bool:
        """Whether HEADERS or CONTINUATION of so many bytes are part of one."""
        before = self._block_size if kind == CONTINUATION and self._block is not None else 0
        return self._long is not None or before + length > self.site.limits.header_block

    def _begin_long(self, data: bytes, at: int, kind: int, flags: int, number: int, length: int) -> int:
        """A frame begins at `at`; where its part of the block does, or -1 if too little has come to know that."""
        if length > self.site.longest_data:
            raise Http2Error(frames.FRAME_SIZE_ERROR, f"a frame of kind {kind} has {length} bytes")
        if not number:
            raise Http2Error(PROTOCOL_ERROR, f"a frame of kind {kind} is on stream 0")
        at += HEAD_SIZE
        left, padding = length, 0
        if kind == HEADERS:
            before = (1 if flags & PADDED else 0) + (5 if flags & frames.WITH_PRIORITY else 0)
            if len(data) < at + before:
                return -1
            padding = data[at] if flags & PADDED else 0
            at += before
            left -= before
            self._begin_block(flags, number, left)
            if left > self.site.limits.longest_block:
                raise spent(TOO_LONG_BLOCK)
            self._block = []
        else:
            if self._block is None:
                raise Http2Error(PROTOCOL_ERROR, "CONTINUATION without HEADERS before it")
            self._count_part(length)
        if self._long is None:
            if self._blocks is None:
                self._blocks = Blocks(self.site.limits)
            self._long = self._blocks.begin()
            for part in self._block:
                self._work += len(part) // 2
                self._long.feed(part)
            self._block = []
        self._left, self._padding, self._block_last = left, padding, bool(flags & END_HEADERS)
        if not left:
            self._read_on(data, at, at)
        return at

    def _read_on(self, data: bytes, start: int, end: int) -> int:
        """Read a part of the frame at hand, from `start` to `end` or less; up to where."""
        decoding = self._long
        assert decoding is not None, "no long block has begun: this is a bug"
        end = min(end, start + _SLICE)
        self._left -= end - start
        stop = end - max(0, self._padding - self._left)
        if stop > start:
            self._work += (stop - start) // 2
            decoding.feed(data[start:stop])
        if not self._left and self._block_last:
            self._long = self._block = None
            assert self._blocks is not None
            self._blocks.finish(decoding)
            self._decoded(self._block_stream, decoding, self._block_ends)
        return end

    # What they mean

    def _decoded(self, number: int, decoding: Decoding, ends: bool) -> Head | None:
        """What the block says, if it opens a stream: then that is open, unless it is refused."""
        if number <= self.highest:
            self._on_trailers(number, decoding.fields, ends)
            return None
        try:
            head = self.site.understand(decoding.fields, decoding.size)
        except MalformedError:
            self._check_number(number)
            self.refuse(number, PROTOCOL_ERROR)
            return None
        self._open_stream(number, head, ends)
        return head

    def _check_number(self, number: int) -> None:
        if not number & 1:
            raise Http2Error(PROTOCOL_ERROR, f"clients cannot open stream {number}")
        self.highest = number

    def _open_stream(self, number: int, head: Head, ends: bool) -> None:
        if not number & 1:
            self._check_number(number)
        self.highest = number
        site = self.site
        if number > self.last_stream or len(self.streams) >= (site.limits.streams or site.limits.most_streams):
            self.refuse(number, frames.REFUSED_STREAM)
            return
        stream = site.open(self, number, head, self.initial_window, site.limits.stream_window)
        if stream.over:
            return
        self._work += CALL_WORK
        self.streams[number] = stream
        self.ready.append(stream)
        if ends:
            self._end(stream)

    def _on_trailers(self, number: int, fields: Fields, ends: bool) -> None:
        stream = self.streams.get(number)
        if stream is None:
            self.count_noise()
        elif stream.ended or not ends or has_pseudo(fields):
            self.wrong(stream, frames.STREAM_CLOSED if stream.ended else PROTOCOL_ERROR)
        else:
            self._end(stream)

    def _end(self, stream: Stream) -> None:
        if stream.due > 0 and not stream.over:
            self.wrong(stream, PROTOCOL_ERROR)  # less came than announced (RFC 9113, section 8.1.1)
        elif not stream.ended and not stream.over:
            stream.ended = True
            stream.end_received()
