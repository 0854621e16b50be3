"""OpenAI's ``POST /v1/embeddings``."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from modserve.core.configuration.text_settings import TextTask
from modserve.core.errors import ModserveError
from modserve.frontends import offload
from modserve.text.openai_errors import EMPTY, RequestFieldError
from modserve.text.pooling import Vectors
from modserve.text.tokenizer import Tokens

from . import fields
from .models import TextHandle
from .text_calls import TextCall, TextOptions, check_count, check_length, usage, write

_FORMATS: Final = ("float", "base64")
_FORM: Final = "a string, a list of strings, a list of tokens, or a list of lists of tokens"


async def embeddings(call: TextCall) -> bytes:
    """Return the embeddings of the texts in ``input``, in their order."""
    body = call.body
    encoding = fields.text(body, "encoding_format") or "float"
    if encoding not in _FORMATS:
        raise RequestFieldError(f"'encoding_format' must be one of {', '.join(_FORMATS)}", "encoding_format")
    dimensions, options = fields.whole_number(body, "dimensions"), fields.options(body)
    model = await call.model([TextTask.EMBEDDING])
    tokens = await _tokens(call, model, body.get("input"), options)
    vectors = await call.vectors(model, tokens, options, model.text.normalize, dimensions)
    name, count = body.get("model") or model.name, sum(map(len, vectors))
    if count > call.context.limits.elements:
        return await offload.on_thread(_response, name, vectors, tokens, encoding)
    return _response(name, vectors, tokens, encoding)


def _response(name: str, vectors: Sequence[Vectors], tokens: Sequence[Tokens], encoding: str) -> bytes:
    data: list[Mapping[str, Any]] = [
        {"object": "embedding", "index": index, "embedding": _base64(each) if encoding == "base64" else each}
        for index, each in enumerate(vectors)
    ]
    return write({"object": "list", "data": data, "model": name, "usage": usage(tokens)})


def _base64(vector: Vectors) -> str:
    """Encode a vector's little-endian 32-bit floats."""
    return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()


async def _tokens(call: TextCall, model: TextHandle, value: object, options: TextOptions) -> list[Tokens]:
    if isinstance(value, str):
        if not value:
            raise RequestFieldError("'input' is an empty string", "input", EMPTY)
        return await call.tokens(model, [value], options, "input")
    if not isinstance(value, list):
        why = "is missing" if value is None else "has another type"
        raise RequestFieldError(f"'input' {why}: {_FORM}", "input")
    if value and all(isinstance(each, str) for each in value):
        return await call.tokens(model, value, options, "input")
    lists = [value] if value and not isinstance(value[0], list) else value
    check_count(model, len(lists), "input")
    tokens = [_of_ids(model, ids, "input" if lists is not value else f"input[{at}]") for at, ids in enumerate(lists)]
    check_length(model, tokens, options, "input")
    return tokens


def _of_ids(model: TextHandle, ids: object, where: str) -> Tokens:
    if not isinstance(ids, list) or not all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
        raise RequestFieldError(f"'{where}' must be {_FORM}", where)
    if not ids:
        raise RequestFieldError(f"'{where}' has no tokens", where, EMPTY)
    try:
        return model.tokenizer.of_ids(ids, model.text.max_length)
    except ModserveError as error:
        raise RequestFieldError(f"'{where}': {error.message}", where) from None
