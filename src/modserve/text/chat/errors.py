"""Errors as OpenAI's clients read them."""

import orjson

from modserve.core.errors import Code, ModserveError


class FieldError(ModserveError):
    """INVALID_ARG of a field, which OpenAI's errors name in `param`."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(Code.INVALID_ARG, message)
        self.param = param

    def __reduce__(self) -> tuple[type["FieldError"], tuple[str, str]]:
        return type(self), (self.param, self.message)


class TemplateError(ModserveError):
    """A chat template did not make a prompt. `detail` may quote the conversation, and `summary` does not."""

    def __init__(self, code: Code, summary: str, detail: str) -> None:
        super().__init__(code, f"{summary}: {detail}")
        self.summary = summary
        self.detail = detail

    def __reduce__(self) -> tuple[type["TemplateError"], tuple[Code, str, str]]:
        return type(self), (self.code, self.summary, self.detail)


_TYPES = {400: "invalid_request_error", 403: "permission_error", 404: "invalid_request_error", 429: "rate_limit_error"}
_CODES = {Code.NOT_FOUND: "model_not_found", Code.UNAVAILABLE: "unavailable", Code.UNSUPPORTED: "unsupported"}


def error_document(error: ModserveError, status: int, message: str) -> dict[str, object]:
    """The body of a failure with an HTTP status, and `message` as clients may see it."""
    param = error.param if isinstance(error, FieldError) else "model" if error.code is Code.NOT_FOUND else None
    members = {
        "message": message,
        "type": _TYPES.get(status, "server_error"),
        "param": param,
        "code": _CODES.get(error.code),
    }
    return {"error": members}


def error_event(error: ModserveError, status: int, message: str) -> bytes:
    """A failure after the beginning of a stream, which ends with it."""
    return b"data: " + orjson.dumps(error_document(error, status, message)) + b"\n\n"
