"""Other names for calls: what a platform's request becomes before anything is read from it."""

import gzip
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from puppet_server import (
    BINARY_ANSWER,
    BINARY_ANSWER_HEADER,
    BINARY_BODY,
    BINARY_HEADER,
    JSON_ANSWER,
    JSON_BODY,
    Answer,
    PuppetLoader,
    Stage,
    request,
    server_over,
    stage,
)
from starlette.routing import Route

from modserve.core.errors import internal
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.rest.deferred import expand
from modserve.frontends.http.wire.head import HeadLines
from modserve.frontends.http.wire.platform_paths import PlatformPaths
from modserve.protocol.restricted import http_restrictions
from modserve.server.local import LocalServer
from modserve.settings import HttpSettings, PlatformRoutes

TYPE = "application/vnd.test.binary+json;json-header-size="
FIXED = PlatformRoutes("/ping", "/invocations", TYPE, model="simple", model_variable="MODEL", registry="/nowhere")
OWN_FORM = b'{"instances":[{"INPUT0":[1,2],"INPUT1":[10,10]}]}'


@pytest.fixture
async def fixed(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path, None, options=HttpSettings(routes=FIXED)) as opened:
        yield opened


async def ask(opened: Stage, *requests: bytes) -> list[Answer]:
    client = opened.connect()
    client.send(*requests)
    return await client.receive(len(requests))


async def test_an_inference_by_the_platforms_path(fixed: Stage) -> None:
    answers = await ask(fixed, request(target="/invocations?x=1", body=JSON_BODY, Content_Type="application/json"))
    assert [(answer.status, answer.body) for answer in answers] == [(200, JSON_ANSWER)]
    (invoked,) = await ask(fixed, request(target="/models/simple/invoke", body=JSON_BODY))
    assert (invoked.status, invoked.body) == (200, JSON_ANSWER)


async def test_heads_with_different_types_are_different(fixed: Stage) -> None:
    """Only the type says how long the JSON is."""
    long = request(target="/invocations", body=BINARY_BODY, Content_Type=TYPE + str(len(BINARY_HEADER)))
    wrong = request(target="/invocations", body=BINARY_BODY, Content_Type=TYPE + "7")
    usual = request(body=BINARY_BODY, Inference_Header_Content_Length=str(len(BINARY_HEADER)))
    for _ in range(3):
        (answer,) = await ask(fixed, long)
        assert (answer.status, answer.body) == (200, BINARY_ANSWER)
        assert answer.headers["content-type"] == TYPE + str(len(BINARY_ANSWER_HEADER))
        (refused,) = await ask(fixed, wrong)
        assert refused.status == 400
        (same,) = await ask(fixed, usual)
        assert same.headers["content-type"] == "application/octet-stream"
        assert same.headers["inference-header-content-length"] == str(len(BINARY_ANSWER_HEADER))


async def test_the_length_in_the_type_counts(fixed: Stage) -> None:
    both = request(
        target="/invocations",
        body=BINARY_BODY,
        Inference_Header_Content_Length="3",
        Content_Type=TYPE + str(len(BINARY_HEADER)),
    )
    (answer,) = await ask(fixed, both)
    assert (answer.status, answer.body) == (200, BINARY_ANSWER)


def renamed(server: LocalServer, routes: PlatformRoutes, target: bytes, **headers: bytes) -> tuple[bytes | None, bytes]:
    """The method and the target of a POST."""
    lines = HeadLines()
    lines.target = target
    lines.headers = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    method = PlatformPaths(routes, server).rename(b"POST", lines)
    return method, lines.target


@pytest.fixture
def server(tmp_path: Path) -> LocalServer:
    return server_over(tmp_path, PuppetLoader())


def test_a_prediction_may_be_a_generation(server: LocalServer) -> None:
    routes = replace(FIXED, model="a b/c", call="generate_stream")
    target = b"/v2/models/a%20b%2Fc/generate_stream?x=1"
    assert renamed(server, routes, b"/invocations?x=1") == (b"POST", target)
    assert renamed(server, routes, b"/models/a%20b/invoke") == (b"POST", b"/v2/models/a%20b/infer")
    for other in (b"/invocations/", b"/models/m/invoke/x", b"/v2/models/simple/infer", b"/"):
        assert renamed(server, routes, other) == (None, other)


@pytest.mark.parametrize(
    ("other", "method"),
    [
        (b"v2/models/m/infer", b"POST"),
        (b"v2/models/m/versions/2/generate?x", b"POST"),
        (b"v2/repository/index", b"POST"),
        (b"v2/repository/models/m/unload", b"POST"),
        (b"v2/systemsharedmemory/region/r/unregister", b"POST"),
        (b"v1/models/m:predict", b"POST"),
        (b"v1/models/m:predict?x", b"POST"),
        (b"v1/chat/completions", b"POST"),
        (b"v1/models", b"GET"),
        (b"v1/models/m", b"GET"),
        (b"v2", b"GET"),
        (b"v2/health/live", b"GET"),
        (b"v2/health/drain", b"GET"),
        (b"v2/models/m/config", b"GET"),
        (b"metrics", b"GET"),
    ],
)
def test_a_redirection_has_the_method_of_its_call(server: LocalServer, other: bytes, method: bytes) -> None:
    routes = replace(FIXED, redirect_header="x-redirect")
    assert renamed(server, routes, b"/invocations", x_redirect=other) == (method, b"/" + other)
    assert renamed(server, routes, b"/invocations", x_redirect=b"/" + other) == (method, b"/" + other)


def test_a_redirection_reaches_every_call_that_has_one_method(server: LocalServer) -> None:
    """But those that change a server and are no inference, load or region of memory."""
    routes = replace(FIXED, redirect_header="x-redirect")
    methods: dict[str, set[str]] = {}
    for route in expand(create_app(server, HttpSettings()).router.routes):
        if isinstance(route, Route):
            methods.setdefault(route.path_format, set()).update((route.methods or set()) - {"HEAD"})
    served = [(path, *those) for path, those in methods.items() if len(those) == 1 and path != "/v2/health/drain"]
    assert len(served) > 50
    for path, method in served:
        target = re.sub(r"\{\w+\}", "m", path).encode()
        assert renamed(server, routes, b"/invocations", x_redirect=target) == (method.encode(), target)


async def test_a_restriction_holds_for_all_names(tmp_path: Path) -> None:
    restrictions = http_restrictions({"inference": ("opener", "x")})
    async with stage(tmp_path, None, options=HttpSettings(routes=FIXED, restrictions=restrictions)) as opened:
        for value, status in (("", 403), ("x", 200), ("y", 403), ("x", 200)):
            (answer,) = await ask(opened, request(target="/invocations", body=JSON_BODY, opener=value))
            assert answer.status == status


async def test_no_memory_is_507_by_the_platforms_path(tmp_path: Path) -> None:
    async with stage(tmp_path, None, options=HttpSettings(routes=FIXED), automatic=False) as opened:
        for target, status in (("/models/simple/invoke", 507), ("/v2/models/simple/infer", 500)):
            client = opened.connect()
            client.send(request(target=target, body=JSON_BODY))
            opened.simple.submitted[-1].settle(internal("CUDA out of memory. Tried to allocate 2 GiB"))
            (answer,) = await client.receive()
            assert answer.status == status


async def test_without_a_name_the_only_model_is_meant(tmp_path: Path) -> None:
    routes = PlatformRoutes("/ping", "/invocations", TYPE, model_variable="MODEL")
    async with stage(tmp_path, None, options=HttpSettings(routes=routes)) as opened:
        names = opened.server.model_names()
        (answer,) = await ask(opened, request(target="/invocations", body=JSON_BODY))
        assert (answer.status, json.loads(answer.body)["error"]) == (
            400,
            f"/invocations names no model, and there are {len(names)}: set MODEL to the name of the one that takes it",
        )
        (unknown,) = await ask(opened, request(target="/models/simple/invoke", body=JSON_BODY))
        assert unknown.status == 404  # SageMaker's, where it loads models


@pytest.mark.parametrize("body", [OWN_FORM, b'{"parameters":{},\n "instances" : ' + OWN_FORM[13:]])
@pytest.mark.parametrize("packed", [False, True])
async def test_vertex_has_two_forms(tmp_path: Path, body: bytes, packed: bool) -> None:
    routes = PlatformRoutes("/health", "/predict/it", TYPE, instances=True, model="simple")
    coding = {"Content_Encoding": "gzip"} if packed else {}
    async with stage(tmp_path, None, options=HttpSettings(routes=routes)) as opened:
        for _ in range(2):
            sent = (gzip.compress(each, mtime=0) if packed else each for each in (body, JSON_BODY))
            own, v2 = [await ask(opened, request(target="/predict/it", body=each, **coding)) for each in sent]
            assert json.loads(own[0].body) == {"predictions": [{"OUTPUT0": [11, 12], "OUTPUT1": [-9, -8]}]}
            assert v2[0].body == JSON_ANSWER


async def test_a_model_whose_name_begins_like_a_call_has_both_forms(tmp_path: Path) -> None:
    """The first letters of the name are those of the call in its path."""
    routes = PlatformRoutes("/health", "/predict/it", TYPE, instances=True, model="inference")
    async with stage(tmp_path, None, options=HttpSettings(routes=routes)) as opened:
        (answer,) = await ask(opened, request(target="/predict/it?x=/infer", body=OWN_FORM))
        assert (answer.status, json.loads(answer.body)) == (404, {"error": "Model with name inference does not exist."})


async def test_where_there_is_no_platform_its_paths_are_unknown(tmp_path: Path) -> None:
    async with stage(tmp_path, None) as opened:
        for path in ("/invocations", "/models/simple/invoke", "/models"):
            assert [answer.status for answer in await ask(opened, request(target=path, body=JSON_BODY))] == [404]
        assert opened.site.platform is None
