"""Bodies of errors in the form that the clients of a path read: OpenAI's, TEI's, or KServe's ``{"error": text}``.

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
"""Calls of KServe v1 and TensorFlow Serving among the paths below ``/v1``. The list of models, and a model without
more, are OpenAI's as well, whose clients show what they read; KServe's go by the status."""
_OPENAI: Final = re.compile(r"(/openai)?/v1(/.*)?|/v2/rerank|/embeddings|/score", re.S)
_TEI: Final = re.compile(r"/(embed|rerank|predict|similarity|tokenize|decode|info)?")


def encode(path: str, error: ModserveError, status: int) -> tuple[int, bytes]:
    """Return the status and body of a failure, whose status is usually this one, for a request to a decoded path."""
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
    """Return the body of a failure that is no server error: an unknown path, or a method that it does not have."""
    return encode(path, invalid(message), status)[1]
