"""Errors as OpenAI's clients read them."""

from typing import Any

import orjson

from modserve.core.errors import Code, ModserveError

from ..openai_errors import RequestFieldError, error_body


def field_error(param: str, message: str) -> RequestFieldError:
    """INVALID_ARG of a field."""
    return RequestFieldError(message, param)


class TemplateError(ModserveError):
    """A chat template did not make a prompt. `detail` may quote the conversation, and `summary` does not."""

    def __init__(self, code: Code, summary: str, detail: str) -> None:
        super().__init__(code, f"{summary}: {detail}")
        self.summary = summary
        self.detail = detail

    def __reduce__(self) -> tuple[type["TemplateError"], tuple[Code, str, str]]:
        return type(self), (self.code, self.summary, self.detail)


def error_document(error: ModserveError, status: int, message: str) -> dict[str, Any]:
    """The body of a failure with an HTTP status, and `message` as clients may see it."""
    body = error_body(error, status)
    body["error"]["message"] = message
    if error.code is Code.NOT_FOUND:
        body["error"] |= {"param": "model", "code": "model_not_found"}
    return body


def error_event(error: ModserveError, status: int, message: str) -> bytes:
    """A failure after the beginning of a stream, which ends with it."""
    return b"data: " + orjson.dumps(error_document(error, status, message)) + b"\n\n"
