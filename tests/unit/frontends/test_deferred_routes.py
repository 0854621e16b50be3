"""Routes that are made at their first request."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from modserve.frontends.http.rest.deferred import DeferredRoutes, DeferringRouter, expand


def asking(path: str, method: str = "GET") -> dict[str, object]:
    return {"type": "http", "path": path, "root_path": "", "method": method, "headers": []}


def routes() -> DeferringRouter:
    router = DeferringRouter(prefix="/v2")

    @router.get("/models/{model}")
    async def model(model: str) -> Response:
        return Response(model)

    @router.post("/models/{model}/infer", name="inference")
    async def infer(request: Request, model: str) -> Response:
        return Response(model)

    return router


def is_made(route: object) -> bool:
    return "made" in vars(route)


def test_a_route_is_made_when_a_path_is_its_own_and_once() -> None:
    first, second = routes().routes
    assert first.matches(asking("/v2/models")) == (Match.NONE, {})
    assert not is_made(first)
    match, found = first.matches(asking("/v2/models/a"))
    assert (match, found["path_params"]) == (Match.FULL, {"model": "a"})
    assert isinstance(first, DeferredRoutes)
    assert first.made is first.made
    assert not is_made(second)


def test_another_method_is_half_a_match_as_with_the_route_itself() -> None:
    assert routes().routes[1].matches(asking("/v2/models/a/infer"))[0] is Match.PARTIAL


def test_all_are_made_with_what_their_router_and_they_say() -> None:
    first, second = expand(routes().routes)
    assert [getattr(each, "path", "") for each in (first, second)] == ["/v2/models/{model}", "/v2/models/{model}/infer"]
    assert getattr(second, "name", "") == "inference"
    assert getattr(second, "methods", None) == {"POST"}
    assert expand([first, second]) == [first, second]
