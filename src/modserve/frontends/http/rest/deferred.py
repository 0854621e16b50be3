"""Routes that are made at their first request, also in modules that are imported then.

FastAPI looks through the parameters of a handler when a route is added: half a millisecond and 30 kB each, of which
most servers need few. Only the path is compiled before that. The first route with parameters takes 15 ms and 1.5 MB
more, once: FastAPI imports ``pydantic.v1`` then, to refuse its models.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from fastapi import APIRouter
from starlette.routing import BaseRoute, Match, compile_path
from starlette.types import Receive, Scope, Send

from modserve.access.permissions import template_of
from modserve.core.errors import internal

_ROUTE = "modserve.route"


class DeferredRoutes(BaseRoute):
    """Stand-in for the routes of some paths that `make` returns, at the same place in the order of routes."""

    def __init__(self, paths: re.Pattern[str], make: Callable[[], Sequence[BaseRoute]], template: str = "") -> None:
        """`template` is that of the only path, in which a name in braces stands for any one part."""
        self.paths = paths
        self.template = template
        self._make = make

    @cached_property
    def made(self) -> Sequence[BaseRoute]:
        """The routes themselves. Threads that ask at the same time may get two that are alike."""
        return self._make()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a path as the routes themselves do; they are made only for a path that looks like one of theirs."""
        best: tuple[Match, Scope] = Match.NONE, {}
        if self.paths.match(scope["path"]) is None:
            return best
        for route in self.made:
            match, matched = route.matches(scope)
            if match.value > best[0].value:
                best = match, {_ROUTE: route, **matched}
        return best

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the route, if permissions, restrictions and the audit log took the path for its own. Raises INTERNAL."""
        route, method = scope[_ROUTE], scope["method"]
        decided = template_of(method, scope["path"])
        if method in route.methods and decided != (route.path_format, scope["path_params"].get("model", "")):
            raise internal(f"the path of the request is not that of the route '{route.path_format}': this is a bug")
        await route.handle(scope, receive, send)


class DeferringRouter(APIRouter):
    """A router for the paths of an application that is mounted nowhere: `root_path` is empty."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._options = options

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Add a route as FastAPI does, for `router.get` and its like, which end in this call."""

        def make() -> Sequence[BaseRoute]:
            router = APIRouter(**self._options)
            router.add_api_route(path, endpoint, **options)
            return router.routes

        paths, template, _ = compile_path(self.prefix + path)
        self.routes.append(DeferredRoutes(paths, make, template))


def expand(routes: Sequence[BaseRoute]) -> list[BaseRoute]:
    """Return all routes in the form FastAPI knows; it describes no others."""
    return [route for each in routes for route in (expand(each.made) if isinstance(each, DeferredRoutes) else [each])]
