"""Messages that clients send compressed.

How a message begins shows whether it is compressed: no message that is served has a field 15, and none has wire type 7.
"""

import asyncio

from modserve.core.errors import ModserveError, OverloadedError
from modserve.core.requests.memory import MemoryBudget
from modserve.frontends import offload
from modserve.frontends.offload import RequestMemory
from modserve.protocol.compression import Inflater
from modserve.settings import LoopLimits

_GZIP = b"\x1f\x8b"
_ZLIB = 0x78
STARTS = frozenset({_GZIP[0], _ZLIB})
"""First bytes that compressed messages may have."""

MOST = 64 * 1024 * 1024
"""Bytes that any message may become."""
RATIO = 100
"""Most growth of a longer message, as a factor: numbers that are computed seldom shrink to a fifth."""


class MessageInflater:
    """Inflater of messages, within the server's memory and the limit of the port, which is 0 for none."""

    def __init__(self, memory: MemoryBudget, max_message: int, limits: LoopLimits) -> None:
        self._memory = memory
        self._max_message = max_message
        self._limits = limits

    async def inflate(self, data: bytes) -> tuple[bytes, RequestMemory | None]:
        """Return the message that `data` was made from, and its memory, which the caller releases.

        `data` itself if it is not compressed. Raises INVALID_ARG for what only begins as if it were, and
        RESOURCE_EXHAUSTED for what becomes too long.
        """
        name = _algorithm(data)
        if not name:
            return data, None
        size = len(data)
        limit = max(MOST, RATIO * size)
        if self._max_message:
            limit = min(limit, self._max_message)

        def too_long() -> ModserveError:
            return OverloadedError(
                f"Decompressed message larger than max ({limit} bytes for a compressed message of {size} bytes): "
                "send it without compression, or raise --grpc-max-message-size where that is less",
                too_many=True,
            )

        inflater = Inflater(data, name, limit, too_long)
        memory = RequestMemory(self._memory, asyncio.get_running_loop())
        try:
            if size <= self._limits.compressed and (whole := inflater.read(self._limits.json)) is not None:
                memory.force(len(whole))
                return whole, memory
            return await offload.on_thread(inflater.read_all, memory.take), memory
        except BaseException:
            memory.release()
            raise

    async def short(self, data: bytes) -> bytes:
        """Inflate a message of a call with short or refused requests, for which no memory is held."""
        whole, memory = await self.inflate(data)
        if memory is not None:
            memory.release()
        return whole


def _algorithm(data: bytes) -> str:
    """Return the algorithm by its name in HTTP; empty for none."""
    if data.startswith(_GZIP):
        return "gzip"
    # RFC 1950, section 2.2: the first two bytes are a multiple of 31.
    if len(data) > 1 and data[0] == _ZLIB and not (data[0] << 8 | data[1]) % 31:
        return "deflate"
    return ""
