"""Errors as Hugging Face's text-embeddings-inference writes them: ``{"error", "error_type"}``."""

from typing import Any, Final

from modserve.core.errors import ModserveError

from .openai_errors import EMPTY, TOO_LONG, TOO_MANY, RequestFieldError

_KINDS: Final = {TOO_LONG: (413, "Validation"), TOO_MANY: (413, "Validation"), EMPTY: (400, "Empty")}
"""Code of a mistake → status and type."""
_TYPES: Final = {429: "Overloaded", 500: "Backend", 503: "Unhealthy"}


def error_body(error: ModserveError, status: int, message: str) -> tuple[int, dict[str, Any]]:
    """Return the body of a failure, and its status instead of this usual one. A body of the wrong form is 422.

    `message` is that of the error, as clients may see it.
    """
    if isinstance(error, RequestFieldError) and status == 400:
        status, kind = _KINDS.get(error.slug, (422, "Validation"))
    else:
        kind = _TYPES.get(status, "Validation")
    return status, {"error": message, "error_type": kind}
