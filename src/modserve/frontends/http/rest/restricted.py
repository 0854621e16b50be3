"""Refuses HTTP calls of restricted categories that lack the right header."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.routing import compile_path

from modserve.frontends.http.wire.context import AsgiApp, Message
from modserve.protocol.http.infer_response import encode_message
from modserve.protocol.json.json_text import MIME_JSON
from modserve.protocol.restricted import PATH_CATEGORY, Restriction

FORBIDDEN = 403

_PATTERNS = [
    (compile_path(template)[0], PATH_CATEGORY[template])
    for template in sorted(PATH_CATEGORY, key=lambda template: (template.count("{"), -len(template)))
]
"""Compiled as the application's routes are, so whatever is routed is known here; the special before the general."""


def path_category(path: str) -> str | None:
    """The category of a decoded path; None for one that belongs to no call."""
    return next((category for pattern, category in _PATTERNS if pattern.match(path)), None)


class RestrictedApp:
    """An application behind its restrictions, by category.

    OPTIONS passes: it says what a path can do, does none of it, and browsers ask it without headers of their own.
    """

    def __init__(self, app: AsgiApp, restrictions: Mapping[str, Restriction]) -> None:
        self._app = app
        self._restrictions = restrictions

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] == "http" and scope["method"] != "OPTIONS":
            restriction = self._restrictions.get(path_category(scope["path"]) or "")
            if restriction is not None and not restriction.granted(scope["headers"]):
                body = encode_message(restriction.refusal)
                headers = [(b"content-type", MIME_JSON.encode()), (b"content-length", b"%d" % len(body))]
                await send({"type": "http.response.start", "status": FORBIDDEN, "headers": headers})
                await send({"type": "http.response.body", "body": body})
                return
        await self._app(scope, receive, send)
