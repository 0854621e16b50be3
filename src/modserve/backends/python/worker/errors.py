"""The errors that models raise and receive, with Triton's codes."""

import enum
from typing import Optional, Union


class ErrorCode(enum.IntEnum):
    """The codes of `TritonError`. Their numbers are Triton's."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class TritonError(Exception):
    """Failure in place of outputs. Unlike in Triton, it can be raised: the request then fails with its code."""

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    _code = ErrorCode.INTERNAL  # for classes derived from this one with another __init__
    _message = ""

    def __init__(self, message: Union[str, bytes], code: int = ErrorCode.INTERNAL) -> None:
        if isinstance(message, bytes):
            message = message.decode("utf-8", "replace")
        if not isinstance(message, str):
            raise TypeError(f"the message of a TritonError must be a str, not {type_name(message)}")
        try:
            self._code = ErrorCode(code)
        except ValueError:
            raise TypeError(
                f"the code of a TritonError must be one such as TritonError.NOT_FOUND, from 0 to 7, not {code!r}"
            ) from None
        self._message = shorten(message)
        super().__init__(message)

    def __reduce__(self) -> "tuple[type, tuple[str, ErrorCode]]":
        return type(self), (self._message, self._code)

    def code(self) -> ErrorCode:
        return self._code

    def message(self) -> str:
        return self._message


class TritonModelException(Exception):
    """Raised by failed calls of this module, and by models to fail a request.

    Unlike Triton's, it may have a `code`; INTERNAL by default.
    """

    code = ErrorCode.INTERNAL

    def __init__(self, *args: object, code: Optional[ErrorCode] = None) -> None:
        super().__init__(*args)
        if code is None and args and isinstance(args[0], TritonError):
            code = args[0].code()
        if code is not None:
            self.code = ErrorCode(code)


class ModelError(Exception):
    """Fault in a model's own code, or in its file.

    `code` is the name of one of `ErrorCode`; `message` is for the caller and names the place in the model's own code,
    `traceback` is for the log and may be empty.
    """

    def __init__(self, code: str, message: str, traceback: str = "") -> None:
        super().__init__(code, message, traceback)
        self.code = code
        self.message = message
        self.traceback = traceback

    def __str__(self) -> str:
        return self.message


LONGEST = 64 * 1024
"""Limit, in characters, of a message or log line from the model: a longer one would only delay other requests."""


def shorten(text: str) -> str:
    """Return a model's text, without the middle if it is very long."""
    if len(text) <= LONGEST:
        return text
    note = f" [... {len(text)} characters in all ...] "
    half = (LONGEST - len(note)) // 2
    return text[:half] + note + text[-half:]


def type_name(value: object) -> str:
    """Return the name of a value's type, with its module where useful."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def describe_forgotten(label: str, decoupled: bool) -> str:
    """Return the failure of a request without a final response from `execute` or a response sender."""
    text = f"{label} released a request without a final response"
    if decoupled:
        return f"{text}: its response sender did not send the flag TRITONSERVER_RESPONSE_COMPLETE_FINAL"
    return (
        f"{text}: `execute` returned None for it (no `return`?), and must return a list with one response for each "
        "request, or send them through the requests' response senders"
    )
