"""Error bodies in the format of the path's API: OpenAI's, TEI's, or KServe's ``{"error": text}``.

The first two are imported at the first failure that needs them: most servers have no text models.
"""

import re
from typing import Final

import orjson

from modserve.core.errors import ModserveError, invalid
from modserve.protocol import failures
from modserve.protocol.http import infer_response

_KSERVE: Final = re.compile(
    r"/v1/models/[^/]+(/(versions|labels|metadata)(/.*)?|:(predict|classify|regress|explain))", re.S
)
"""Paths of KServe v1 and TensorFlow Serving below ``/v1``. The model list and plain model paths belong to OpenAI's API
as well. They get OpenAI's format, because its clients show the error text; KServe's clients only check the status."""
_OPENAI: Final = re.compile(r"(/openai)?/v1(/.*)?|/v2/rerank|/embeddings|/score", re.S)
_TEI: Final = re.compile(r"/(embed|rerank|predict|similarity|tokenize|decode|info)?")


def encode(path: str, error: ModserveError, status: int) -> tuple[int, bytes]:
    """Return the status (normally `status`) and body of a failure, for a request to a decoded path."""
    message = failures.public_message(error)
    if _OPENAI.fullmatch(path) and not _KSERVE.fullmatch(path):
        from modserve.text import openai_errors

        return status, orjson.dumps(openai_errors.error_body(error, status, message))
    if _TEI.fullmatch(path):
        from modserve.text import tei_errors

        status, document = tei_errors.error_body(error, status, message)
        return status, orjson.dumps(document)
    return status, infer_response.encode_message(message)


def encode_message(path: str, message: str, status: int) -> bytes:
    """Return the body of a client error: an unknown path, or a method that it does not support."""
    return encode(path, invalid(message), status)[1]
