"""Fields of requests that mean nothing here.

They are ignored, as OpenAI and TEI ignore some, and the log says so once for each call and name: a client that relies
on one finds it there.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

_log = logging.getLogger(__name__)

_WITHOUT_EFFECT = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
"""Fields that only describe the client: ignored in silence."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_MOST_NAMES = 200
_names: set[tuple[str, str]] = set()

_READ = ("model", "truncate", "truncation_direction", "prompt_name")
_RERANK = frozenset({*_READ, "query", "documents", "top_n", "return_documents"})
_CALLS: Final[Mapping[str, frozenset[str]]] = {
    "/v1/embeddings": frozenset({*_READ, "input", "dimensions", "encoding_format"}),
    "/v1/rerank": _RERANK,
    "/v1/score": frozenset({*_READ, "text_1", "text_2"}),
    "/embed": frozenset({*_READ, "inputs", "normalize", "dimensions"}),
    "/rerank": _RERANK | {"texts", "raw_scores", "return_text"},
    "/predict": frozenset({*_READ, "inputs", "raw_scores"}),
    "/similarity": frozenset({*_READ, "inputs", "parameters"}),
    "/tokenize": frozenset({*_READ, "inputs", "add_special_tokens"}),
    "/decode": frozenset({*_READ, "ids", "skip_special_tokens"}),
    "/info": frozenset(_READ),
}
TEXT_CALLS: Final = {**_CALLS, "/": _CALLS["/embed"] | _CALLS["/rerank"] | _CALLS["/predict"]}
"""The fields of the calls that generate nothing."""


def tell(call: str, document: Mapping[str, Any], known: frozenset[str]) -> None:
    """Say in the log, once for each, which fields of the request have no effect."""
    if known.issuperset(document):
        return  # as nearly always, at a tenth of the cost
    for name in document.keys() - known - _WITHOUT_EFFECT:
        key = (call, name)
        if document[name] is None or key in _names or len(_names) >= _MOST_NAMES or not _NAME.fullmatch(name):
            continue
        _names.add(key)
        _log.warning("the field '%s' of a request to %s is unknown, and ignored in this one and all others", name, call)
