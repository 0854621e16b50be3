"""The paths by which SageMaker and Vertex AI call a container: other names for calls that there are anyway.

A head is renamed before anything is read from it. Limits, keys, metrics, traces and the application see the call that
it stands for.
"""

import re
import zlib
from typing import Final
from urllib.parse import quote_from_bytes, unquote

from modserve.access.permissions import need_of
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors.tensor import Buffer
from modserve.protocol.failures import NoModelMemoryError, is_memory_failure
from modserve.protocol.http import infer_request
from modserve.protocol.http.infer_response import Body
from modserve.protocol.http.request_head import RequestHead
from modserve.server import Server
from modserve.settings import PlatformRoutes

from .head import HeadLines, RefusedRequestError
from .responses import binary_head

_CONTENT_TYPE: Final = b"content-type"
_HEADER_LENGTH: Final = infer_request.HEADER_LENGTH.encode()
_INVOKE: Final = re.compile(rb"/models/([^/?#]+)/invoke(?=\?|\Z)")
_POSTED: Final = re.compile(r"/v2/.*/(load|unload|index|(un)?register)")
"""Calls to which Vertex AI's redirection stays a POST, besides inferences; the others are read."""
_FORM: Final = re.compile(rb'"(instances|inputs)"\s*:')
_BEGINNING: Final = 64 * 1024
"""Bytes of a body in which its form shows."""
_ANY_CODING: Final = 32 + zlib.MAX_WBITS


def _is_posted(target: bytes) -> bool:
    path = unquote(target.partition(b"?")[0].decode("latin-1"))
    return need_of("POST", path)[0].kind == "infer" or _POSTED.fullmatch(path) is not None


class PlatformPaths:
    """Paths of `routes`, for the calls of `server`."""

    def __init__(self, routes: PlatformRoutes, server: Server) -> None:
        self._routes = routes
        self._server = server
        self._health = routes.health.encode()
        self._predict = routes.predict.encode()
        self._type = routes.binary_type.encode()
        self._redirect = routes.redirect_header.encode()
        self.binary_head = binary_head(self._type + b"%d\r\n")

    def has(self, target: bytes) -> bool:
        """True if the target may be one of the platform's."""
        path = target.partition(b"?")[0]
        return path in (self._health, self._predict) or _INVOKE.match(path) is not None

    def rename(self, method: bytes, lines: HeadLines) -> bytes | None:
        """Give a platform's request the target and headers of the call it stands for, and return that one's method.

        None if it is none of the platform's. Raises RefusedRequestError if its model cannot be identified.
        """
        path, mark, query = lines.target.partition(b"?")
        routes = self._routes
        if path == self._health:
            lines.target = b"/v2/health/ready" + mark + query
            return method
        if path == self._predict:
            other = next((value for name, value in lines.headers if name == self._redirect), b"")
            if other and method == b"POST":
                lines.target = b"/" + other.lstrip(b"/")
                method = b"POST" if _is_posted(lines.target) else b"GET"
            else:
                model = quote_from_bytes(self._model().encode(), "").encode()
                lines.target = b"/v2/models/%b/%b%b%b" % (model, routes.call.encode(), mark, query)
        elif routes.registry and (match := _INVOKE.match(path)):
            lines.target = b"/v2/models/%b/infer%b%b" % (match[1], mark, query)
        else:
            return None
        for name, value in lines.headers:
            if name == _CONTENT_TYPE and value.startswith(self._type):
                lines.headers = [each for each in lines.headers if each[0] != _HEADER_LENGTH]
                lines.headers.append((_HEADER_LENGTH, value[len(self._type) :]))
                break
        return method

    def _model(self) -> str:
        if self._routes.model:
            return self._routes.model
        names = self._server.model_names()
        if len(names) == 1:
            return next(iter(names))
        if not names:
            raise RefusedRequestError(503, f"there is no model to take {self._routes.predict}")
        raise RefusedRequestError(
            400,
            f"{self._routes.predict} names no model, and there are {len(names)}: set {self._routes.model_variable} to "
            "the name of the one that takes it",
        )

    def by_body(self, head: RequestHead, body: Buffer) -> RequestHead:
        """Return the head of a renamed request, now that its body has come: that may be one of v1."""
        if not self._routes.instances or head.header_length is not None or not head.model or head.route:
            return head
        first = bytes(body[:_BEGINNING])
        if head.content_encoding is not None:
            try:
                first = zlib.decompressobj(_ANY_CODING).decompress(first, _BEGINNING)
            except zlib.error:
                return head
        form = _FORM.search(first)
        if form is None or form[1] != b"instances":
            return head
        path = head.target.partition(b"?")[0].removesuffix(b"/infer").replace(b"/v2/", b"/v1/", 1)
        known = RequestHead(b"POST", path + b":predict", head.version, head.headers, head.as_sent, head.keep_alive)
        known.old, known.cors, known.report_format = head.old, head.cors, head.report_format
        return known

    def spell_outcome(self, outcome: Body | ModserveError) -> Body | ModserveError:
        """Return the outcome of an inference. SageMaker unloads models when it hears of failures for want of memory."""
        if self._routes.registry and isinstance(outcome, ModserveError) and is_memory_failure(outcome):
            return NoModelMemoryError(Code.UNAVAILABLE, outcome.message)
        return outcome
