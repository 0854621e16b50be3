"""Routes that FastAPI makes at their first request, and routes of features that are imported then.

It looks through the parameters of a handler when a route is added: half a millisecond and 30 kB each, of which most
servers need few. Only the path is compiled before that. The first route with parameters takes 15 ms and 1.5 MB more,
once: FastAPI imports ``pydantic.v1`` then, to refuse its models.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from fastapi import APIRouter
from starlette.routing import BaseRoute, Match, compile_path
from starlette.types import Receive, Scope, Send


class DeferredRoute(BaseRoute):
    """Stands for the route that `make` returns, at the same place in the order of routes."""

    def __init__(self, path: str, make: Callable[[], BaseRoute]) -> None:
        self.path = path
        self._make = make
        self._pattern = compile_path(path)[0]

    @cached_property
    def made(self) -> BaseRoute:
        """The route itself. Threads that ask at the same time may get two that are alike."""
        return self._make()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """What the route itself says of a path that looks like its own."""
        if self._pattern.match(scope["path"]) is None:
            return Match.NONE, {}
        return self.made.matches(scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.made.handle(scope, receive, send)


_ROUTE = "modserve.route"
"""The key of a request's scope that has its route among those of a feature."""


class DeferredFeature(BaseRoute):
    """Stands for the routes that `make` returns, at `path` and below it; what they need is imported with the first."""

    def __init__(self, path: str, make: Callable[[], APIRouter]) -> None:
        self.path = path
        self._make = make

    @cached_property
    def routes(self) -> Sequence[BaseRoute]:
        return self._make().routes

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """What the first of its routes says that matches, as in a router."""
        best: tuple[Match, Scope] = Match.NONE, {}
        if scope["path"] == self.path or scope["path"].startswith(f"{self.path}/"):
            for route in self.routes:
                match, child = route.matches(scope)
                if match.value > best[0].value:
                    best = match, {**child, _ROUTE: route}
        return best

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope[_ROUTE].handle(scope, receive, send)


class DeferringRouter(APIRouter):
    """A router for the paths of an application that is mounted nowhere: `root_path` is empty."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._options = options

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """As FastAPI's, which `router.get` and its like end in."""

        def make() -> BaseRoute:
            router = APIRouter(**self._options)
            router.add_api_route(path, endpoint, **options)
            return router.routes[0]

        self.routes.append(DeferredRoute(self.prefix + path, make))


def made(routes: Sequence[BaseRoute]) -> list[BaseRoute]:
    """All routes as FastAPI knows them, which describes no others."""
    return [
        route.made if isinstance(route, DeferredRoute) else route
        for each in routes
        for route in (each.routes if isinstance(each, DeferredFeature) else [each])
    ]
