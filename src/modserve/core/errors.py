"""The one error type, with Triton's eight codes. `protocol/failures.py` spells them on both wires."""

import enum
from functools import partial
from typing import Any

from .texts import message_text, unicode_text


class Code(enum.Enum):
    """Kind of a failure, which also says who is at fault. The value is the text used in reasons."""

    UNKNOWN = "Unknown"
    INTERNAL = "Internal"
    NOT_FOUND = "Not found"
    INVALID_ARG = "Invalid argument"
    UNAVAILABLE = "Unavailable"
    UNSUPPORTED = "Unsupported"
    ALREADY_EXISTS = "Already exists"
    CANCELLED = "Cancelled"


class ModserveError(Exception):
    """Failure reported to the client. `code` is its kind; `message` says what is wrong, where, and what would be right.

    Messages repeat texts of models, files and clients: `message` is always valid Unicode.
    """

    def __init__(self, code: Code, message: str) -> None:
        message = unicode_text(message)
        super().__init__(message)
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code.name}, {self.message!r})"

    @property
    def reason(self) -> str:
        """The form used in the repository index, e.g. ``Invalid argument: unexpected ...``."""
        return f"{self.code.value}: {self.message}"


def first_paragraph(text: str) -> str:
    """Return the part of a load failure that clients see; the log and the index have the whole text for operators."""
    return text.partition("\n\n")[0]


class OverloadedError(ModserveError):
    """The server has too much to do: UNAVAILABLE or, where a protocol distinguishes the two, too many requests.

    `retry_after_ns`: when another attempt is likely to succeed; 0 if unknown.
    """

    def __init__(self, message: str, retry_after_ns: int = 0, *, too_many: bool = False) -> None:
        super().__init__(Code.UNAVAILABLE, message)
        self.retry_after_ns = retry_after_ns
        self.too_many = too_many

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(OverloadedError, too_many=self.too_many), (self.message, self.retry_after_ns)


class MemoryExhaustedError(ModserveError):
    """The server's memory budget is used up: 503 over HTTP, RESOURCE_EXHAUSTED over gRPC. Trying again may help."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, message)

    def __reduce__(self) -> tuple[type["MemoryExhaustedError"], tuple[str]]:
        return type(self), (self.message,)


class UnauthenticatedError(ModserveError):
    """Caller is not authenticated: 401 over HTTP, UNAUTHENTICATED over gRPC.

    `challenge`: the authentication methods that the caller is told of (RFC 9110, section 11.6.1).
    """

    def __init__(self, message: str, challenge: str = "Bearer") -> None:
        super().__init__(Code.INVALID_ARG, message)
        self.challenge = challenge

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.challenge)


class PermissionDeniedError(ModserveError):
    """The caller is known, and may not do this: 403 over HTTP, PERMISSION_DENIED over gRPC. `challenge`: as above."""

    def __init__(self, message: str, challenge: str = "Bearer") -> None:
        super().__init__(Code.INVALID_ARG, message)
        self.challenge = challenge

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.challenge)


invalid = partial(ModserveError, Code.INVALID_ARG)
"""The client sent something wrong."""
unavailable = partial(ModserveError, Code.UNAVAILABLE)
"""Right request, wrong moment: the client may try again."""
not_found = partial(ModserveError, Code.NOT_FOUND)
unsupported = partial(ModserveError, Code.UNSUPPORTED)
internal = partial(ModserveError, Code.INTERNAL)
"""Our fault, or the model's."""
cancelled = partial(ModserveError, Code.CANCELLED, "")
"""A cancelled request, for which Triton's message is empty."""


def from_exception(error: BaseException, doing: str) -> ModserveError:
    """Convert a foreign exception: a ModserveError passes unchanged, all others become INTERNAL with the current
    activity.

    Never raises, even if the exception misbehaves when it is formatted.
    """
    try:
        if isinstance(error, ModserveError):
            said: tuple[object, object] = (error.code, error.message)
            if isinstance(said[0], Code) and isinstance(said[1], str):
                return error
        text = message_text(str(error))
    except Exception:  # others' subclasses may lack what ours have, or fail to describe themselves
        text = ""
    return internal(f"{doing}: {text or type(error).__name__}")


def forget_frames(error: BaseException) -> None:
    """Drop the traceback frames of an exception and its causes, and all objects that they hold.

    An exception stored in one of its own frames forms a cycle, and the frame's tensors stay until the garbage collector
    runs. Call this when an exception has been logged and goes no further.
    """
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None:
            continue
        left += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup) and one.__traceback__ is not None:
            left += one.exceptions
        one.__traceback__ = one.__cause__ = one.__context__ = None
