"""Middleware for all paths of the application: HEAD, OPTIONS, the allowed methods, and restricted calls.

The path that a client is likely to have meant, for one that no route has.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fastapi import Request, Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Send

from modserve.access.permissions import SLASH, template_of
from modserve.core.errors import ModserveError
from modserve.frontends.http.error_forms import encode_message
from modserve.frontends.http.wire.context import AsgiApp, Message
from modserve.protocol.json.json_text import MIME_JSON
from modserve.protocol.restricted import METHOD_CATEGORY, PATH_CATEGORY, Restriction

from .deferred import DeferredRoutes

_LONGEST, _MOST_SEGMENTS, _LIKELY = 300, 10, 0.6
_PARAMETER = re.compile(r"\(\?P<.*?\)")


def near_path(path: str, routes: Sequence[BaseRoute]) -> str:
    """Return a known path that differs from `path` in one word, in its case, or in slashes; empty if there is none."""
    if len(path) > _LONGEST or path.count("/") > _MOST_SEGMENTS:
        return ""
    patterns = [route.paths for route in routes if isinstance(route, DeferredRoutes)]
    words = _words(patterns)
    variants = ((each, place) for each, place in _variants(path, words) if each != path)
    return next((each for each, place in variants if any(_has(one, each, place) for one in patterns)), "")


def _has(pattern: re.Pattern[str], path: str, place: int) -> bool:
    """True if the routes have the path, and at this place, if it is above 0, no parameter: names are the client's."""
    match = pattern.fullmatch(path)
    return match is not None and not any(start <= place < end for start, end in match.regs[1:] if place > 0)


def _words(patterns: Iterable[re.Pattern[str]]) -> list[str]:
    """Return the words of paths that are no parameters."""
    segments = (_PARAMETER.sub("", each.pattern).strip("^$").split("/") for each in patterns)
    return sorted({word for words in segments for word in words if re.fullmatch(r"\w+", word)})


def _variants(path: str, words: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield other spellings, the most likely ones first, with the place of the other word; 0 if none differs."""
    stripped = f"/{path.strip('/')}"
    for whole in dict.fromkeys((stripped, f"/v2{stripped}")):
        yield whole, 0
        segments = whole.split("/")
        for index in range(len(segments) - 1, 0, -1):
            for word in difflib.get_close_matches(segments[index].lower(), words, 3, _LIKELY):
                before = "/".join(segments[:index]) + "/"
                yield before + "/".join((word, *segments[index + 1 :])), len(before)


_ASTERISK = "*"
_METHODS = ("GET", "POST", "DELETE")
"""Methods of the application's paths, besides HEAD and OPTIONS."""


async def with_slashes(request: Request) -> None:
    """Give path parameters their slashes back before the handler sees them: a dependency."""
    if SLASH in request.scope["path"]:
        request.scope["path_params"] = {
            name: value.replace(SLASH, "/") if isinstance(value, str) else value
            for name, value in request.path_params.items()
        }


def list_methods(scope: Any) -> list[str]:
    """Return the methods of the path that `scope` asks for; none if there is no such path."""
    routes: Iterable[BaseRoute] = scope["app"].routes
    methods = [
        method
        for method in _METHODS
        if scope["path"] == _ASTERISK
        or any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    if not methods:
        return []
    return [*methods, "HEAD", "OPTIONS"] if "GET" in methods else [*methods, "OPTIONS"]


class AnyMethod:
    """An application that responds to HEAD as to GET, without the body, and to OPTIONS with the methods of the path."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        method = scope["method"] if scope["type"] == "http" else None
        if method == "HEAD":
            await self._app({**scope, "method": "GET"}, receive, _without_body(send))
        elif method == "OPTIONS" and (methods := _list_methods(scope)):
            await Response(headers={"Allow": ", ".join(methods)})(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _list_methods(scope: Any) -> list[str]:
    try:
        return list_methods(scope)
    except ModserveError:  # a path that is none, about which the application has more to say
        return []


def _without_body(send: Send) -> Send:
    async def send_head(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return send_head


def path_category(method: str, path: str, hidden: Collection[str] = ()) -> str | None:
    """Return the category of a call to a decoded path; None for one that belongs to no call, or a `hidden` template."""
    template, _ = template_of(method, path)
    return None if template in hidden else METHOD_CATEGORY.get((method, template)) or PATH_CATEGORY.get(template)


class RestrictedApp:
    """An application behind its restrictions, by category. It has no paths of the `hidden` templates.

    OPTIONS passes: it says what a path can do, does none of it, and browsers ask it without headers of their own.
    """

    def __init__(self, app: AsgiApp, restrictions: Mapping[str, Restriction], hidden: Collection[str] = ()) -> None:
        self._app = app
        self._hidden = hidden
        self._restrictions = restrictions

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] != "OPTIONS":
            category = path_category(scope["method"], scope["path"], self._hidden)
            restriction = self._restrictions.get(category or "")
            if restriction is not None and not restriction.granted(scope["headers"]):
                body = encode_message(scope["path"], restriction.refusal, 403)
                await Response(body, 403, media_type=MIME_JSON)(scope, receive, send)
                return
        await self._app(scope, receive, send)
