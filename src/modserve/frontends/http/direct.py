"""Calls that the port runs by itself, without the application: calls of texts, and calls with streams of responses.

Inference has a way of its own. Their modules are imported, on a thread, at the first request for one of their paths.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from modserve.frontends import offload
from modserve.protocol.http.request_head import RequestHead

from .exchange import CompleteRequest, Handler, ResponseStream, WholeResponse
from .infer import CallContext
from .streams import Streams

TEXT: Final = "modserve.frontends.http.text.handlers"
GENERATION: Final = "modserve.frontends.http.openai.handlers"
EXTENSION: Final = "modserve.frontends.http.generate"

_TEI: Final = ("/embed", "/rerank", "/predict", "/similarity", "/tokenize", "/decode")
_PREFIXES: Final = ("/v1", "/openai/v1")
_TEXT_CALLS: Final = ("embeddings", "rerank", "score")
_GENERATION_CALLS: Final = ("chat/completions", "completions", "responses")
_OF_MODEL: Final = b"/v2/models/{model}"
MODULES: Final[Mapping[bytes, str]] = {
    **{path.encode(): TEXT for path in ("/", *_TEI, "/v2/rerank", "/embeddings", "/score")},
    **{f"{prefix}/{call}".encode(): TEXT for prefix in _PREFIXES for call in _TEXT_CALLS},
    **{f"{prefix}/{call}".encode(): GENERATION for prefix in _PREFIXES for call in _GENERATION_CALLS},
    **{_OF_MODEL + call: EXTENSION for call in (b"/generate", b"/generate_stream", b"/infer_stream")},
}
"""Path, or its template if it names a model → the module with its handler.

All are for POST, and of the category `inference` of restricted calls.
"""


class DirectCalls:
    """The handlers, and the `streams` that are open. For the event loop's thread."""

    def __init__(self, context: CallContext) -> None:
        self.context = context
        self.streams = Streams(context.server, context.limits)
        self._by_module: dict[str, Mapping[str, Handler]] = {}
        self._by_path: dict[bytes, Handler] = {}

    def handler(self, head: RequestHead) -> Handler:
        """Return the handler of a head with a route."""
        known = self._by_path.get(_template(head))
        return self._first if known is None else known

    def of(self, module: str) -> Mapping[str, Handler]:
        """Return the handlers of a module by their paths: always the same ones. The first call imports it."""
        if module not in self._by_module:
            made = _MAKERS[module](importlib.import_module(module), self)
            self._by_module[module] = made
            self._by_path |= {path.encode(): call for path, call in made.items()}
        return self._by_module[module]

    async def _first(self, request: CompleteRequest) -> WholeResponse | ResponseStream:
        path = _template(request.head)
        await offload.on_thread(importlib.import_module, MODULES[path])
        self.of(MODULES[path])
        return await self._by_path[path](request)


def _template(head: RequestHead) -> bytes:
    """Return the key in `MODULES` of a head's route: the same for all versions of a model."""
    route = head.route
    return _OF_MODEL + route[route.rindex(b"/") :] if head.model else route


_MAKERS: Final[Mapping[str, Callable[[Any, DirectCalls], Mapping[str, Handler]]]] = {
    TEXT: lambda module, calls: module.handlers(calls.context),
    GENERATION: lambda module, calls: module.handlers(calls.context, calls.streams),
    EXTENSION: lambda module, calls: module.handlers(calls.context, calls.streams),
}
