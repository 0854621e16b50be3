"""How much memory all requests together may hold, and the refusal of what would exceed it."""

from .errors import OverloadedError


class MemoryExhaustedError(OverloadedError):
    """The server's memory budget is used up: 503 over HTTP, RESOURCE_EXHAUSTED over gRPC. Trying again may help."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __reduce__(self) -> tuple[type["MemoryExhaustedError"], tuple[str]]:
        return type(self), (self.message,)


class MemoryBudget:
    """Bytes that requests hold at this moment, against one limit for the whole server.

    Counted are bodies and messages from their first byte until their request is answered, what decoding makes of them,
    and answers until the client has read them. Whoever calls `take` calls `give_back` with the same size, exactly once,
    however the request ends. Not thread-safe: on the event loop's thread only.

    `limit` of 0 means that nothing is ever refused; what is held is still counted.
    """

    __slots__ = ("held", "limit", "peak", "refused")

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.held = 0
        self.peak = 0
        """The most that was held at one time."""
        self.refused = 0
        """How many requests were refused."""

    def __repr__(self) -> str:
        return f"MemoryBudget({self.held} of {self.limit} bytes held, {self.refused} refused)"

    def fits(self, size: int) -> bool:
        """Whether `size` more bytes are within the limit."""
        return not self.limit or self.held + size <= self.limit

    def take(self, size: int) -> None:
        """Hold `size` more bytes. Raises `MemoryExhaustedError` if they do not fit; nothing is held then."""
        held = self.held + size
        if self.limit and held > self.limit:
            self.refused += 1
            raise self.exhausted(size)
        self.held = held
        if held > self.peak:
            self.peak = held

    def force(self, size: int) -> None:
        """Hold `size` more bytes without asking: what cannot be refused any more, such as an answer that exists."""
        self.held += size
        if self.held > self.peak:
            self.peak = self.held

    def give_back(self, size: int) -> None:
        self.held -= size
        assert self.held >= 0, "more memory was given back than taken: this is a bug"

    def exhausted(self, size: int) -> MemoryExhaustedError:
        """The refusal of a request that needs `size` more bytes."""
        if size > self.limit:
            return MemoryExhaustedError(
                f"the request needs {size} bytes of memory, and the server allows {self.limit} bytes for all requests "
                "together. Send a smaller request, or raise --request-memory-limit."
            )
        return MemoryExhaustedError(
            f"the server is out of memory for requests: those under way hold {self.held} of {self.limit} bytes, and "
            f"this one needs {size} more. Try again later, or raise --request-memory-limit."
        )
