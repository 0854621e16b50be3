"""Errors as OpenAI's clients read them."""

import re
from collections.abc import Mapping
from typing import Final

import orjson

from modserve.core.errors import Code, ModserveError

from ..openai_errors import TOO_LONG, RequestFieldError, error_body

_PARAMETER: Final = re.compile(r"(?:sampling parameter '(\w+)(?:\.\w+)*'|\b(text_input)(?= (?:has|is) ))")
"""An engine's name for what it refuses: a sampling parameter, a member of one, or the prompt."""
_TOO_LONG: Final = re.compile(r"has \d+ tokens, but the model's context")


def field_error(param: str, message: str) -> RequestFieldError:
    """INVALID_ARG of a field."""
    return RequestFieldError(message, param)


def of_engine(error: ModserveError, fields: Mapping[str, str]) -> ModserveError:
    """Attribute an engine's refusal of a sampling parameter to the field of the request that set it.

    `fields` maps parameters to the fields that have other names.
    """
    if error.code is not Code.INVALID_ARG or isinstance(error, RequestFieldError):
        return error
    match = _PARAMETER.search(error.message)
    if match is None:
        return error
    name = match[1] or match[2]
    param = fields.get(name, name)
    message = f"{error.message[: match.start()]}'{param}'{error.message[match.end() :]}"
    slug = TOO_LONG if _TOO_LONG.search(message) else ""
    return RequestFieldError(message, param, slug, summary=message.partition(": ")[0])  # the rest may quote a schema


class TemplateError(ModserveError):
    """A chat template did not make a prompt. `detail` may quote the conversation, and `summary` does not."""

    def __init__(self, code: Code, summary: str, detail: str) -> None:
        super().__init__(code, f"{summary}: {detail}")
        self.summary = summary
        self.detail = detail

    def __reduce__(self) -> tuple[type["TemplateError"], tuple[Code, str, str]]:
        return type(self), (self.code, self.summary, self.detail)


def error_event(error: ModserveError, status: int, message: str) -> bytes:
    """Return a failure after the beginning of a stream, which ends with it."""
    return b"data: " + orjson.dumps(error_body(error, status, message)) + b"\n\n"
