"""Errors as OpenAI's API writes them: ``{"error": {"message", "type", "param", "code"}}``."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from modserve.core.errors import Code, ModserveError

_TYPES: Final[Mapping[int, str]] = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""HTTP status → type. Of others, those below 500 are mistakes of the client."""
MODEL_NOT_FOUND: Final = "model_not_found"
TOO_LONG: Final = "context_length_exceeded"
TOO_MANY: Final = "too_many_inputs"
EMPTY: Final = "empty_input"
"""Codes of errors, the first two OpenAI's."""
_LISTED: Final = 20


class RequestFieldError(ModserveError):
    """A mistake of the client's, in one field of its request: `param` names it, as in ``input[3]``.

    `slug` is OpenAI's error code, such as ``model_not_found``; empty for none. The log gets `summary` where the message
    may quote the request.
    """

    def __init__(
        self, message: str, param: str = "", slug: str = "", code: Code = Code.INVALID_ARG, summary: str = ""
    ) -> None:
        super().__init__(code, message)
        self.summary = summary or self.message
        self.param = param
        self.slug = slug

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(RequestFieldError, code=self.code, summary=self.summary), (self.message, self.param, self.slug)


def format_names(names: Sequence[str]) -> str:
    """Return the names of models in a message: the first ones, and how many more there are."""
    shown = ", ".join(f"'{name}'" for name in names[:_LISTED])
    return f"{shown} and {len(names) - _LISTED} more" if len(names) > _LISTED else shown


def error_type(status: int) -> str:
    """Return the type of an error with this HTTP status."""
    return _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")


def error_body(error: ModserveError, status: int, message: str) -> dict[str, Any]:
    """Return the body of a response with this HTTP status, and the data of an event that ends a stream.

    `message` is that of the error, as clients may see it.
    """
    param, slug = ("model", MODEL_NOT_FOUND) if error.code is Code.NOT_FOUND else ("", "")
    if isinstance(error, RequestFieldError):
        param, slug = error.param, error.slug
    return {
        "error": {
            "message": message,
            "type": error_type(status),
            "param": param or None,
            "code": slug or None,
        }
    }
