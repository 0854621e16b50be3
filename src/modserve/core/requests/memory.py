"""Memory budget of all requests, which refuses requests that exceed it."""

from collections import deque
from dataclasses import dataclass, field

from ..errors import MemoryExhaustedError as MemoryExhaustedError


@dataclass(slots=True, eq=False, repr=False)
class MemoryBudget:
    """Bytes that requests currently hold, against one limit for the whole server.

    Bodies and messages count from their first byte until their request is settled, and so do their decoded values.
    Responses count until the client has read them. Each caller of `take` calls `give_back` with the same size,
    exactly once, however the request ends. Not thread-safe: on the event loop's thread only.

    With a `limit` of 0 nothing is ever refused, but everything still counts.
    """

    limit: int = 0
    held: int = 0
    peak: int = 0
    """The most that was held at one time."""
    refused: int = 0
    """Number of refused requests."""

    def __repr__(self) -> str:
        return f"MemoryBudget({self.held} of {self.limit} bytes held, {self.refused} refused)"

    @property
    def full(self) -> bool:
        """True if the limit is reached. Any thread may read this."""
        return 0 < self.limit <= self.held

    def fits(self, size: int) -> bool:
        """Return True if `size` more bytes are within the limit."""
        return not self.limit or self.held + size <= self.limit

    def take(self, size: int) -> None:
        """Hold `size` more bytes. Raises `MemoryExhaustedError` if they do not fit; nothing is held then."""
        held = self.held + size
        if self.limit and held > self.limit:
            self.refused += 1
            raise self.make_exhausted_error(size)
        self.held = held
        if held > self.peak:
            self.peak = held

    def force(self, size: int) -> None:
        """Hold `size` more bytes that cannot be refused any more, such as a response that exists."""
        self.held += size
        if self.held > self.peak:
            self.peak = self.held

    def give_back(self, size: int) -> None:
        self.held -= size
        assert self.held >= 0, "more memory was returned than taken: this is a bug"

    def make_exhausted_error(self, size: int) -> MemoryExhaustedError:
        """Return the error for a request that needs `size` more bytes."""
        if size > self.limit:
            limit = f"the server allows {self.limit} bytes for all requests together"
            advice = "Send a smaller request, or raise --request-memory-limit."
            return MemoryExhaustedError(f"the request needs {size} bytes of memory, and {limit}. {advice}")
        return MemoryExhaustedError(
            f"the server is out of memory for requests: those in flight hold {self.held} of {self.limit} bytes, and "
            f"this one needs {size} more. Try again later, or raise --request-memory-limit."
        )


@dataclass(slots=True, eq=False)
class UnsentResponses:
    """The memory of one request's responses while they wait for a client that takes its time to read.

    The responses exist, so they are never refused. `release` is called in the end, however the request ends.
    """

    _budget: MemoryBudget
    _sizes: deque[int] = field(default_factory=deque)

    def add(self, size: int) -> None:
        """Add a response of `size` bytes, 0 for a failure or a bare end, which waits behind the others."""
        self._sizes.append(size)
        self._budget.force(size)

    def release_first(self) -> None:
        """Release the first one, which has been sent."""
        self._budget.give_back(self._sizes.popleft())

    def release(self) -> None:
        """Drop the rest."""
        while self._sizes:
            self.release_first()
