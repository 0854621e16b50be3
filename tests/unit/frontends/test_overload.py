"""Deadlines in headers, and requests refused for overload, on every way in."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from puppet_server import JSON_BODY, Answer, Stage, request, stage

from modserve.core.errors import OverloadedError

ROUTES = {
    "/v2/models/simple/infer": JSON_BODY,
    "/v2/models/simple/versions/3/infer?x=1": JSON_BODY,
    "/v2/models/simple/infer_stream": JSON_BODY,
    "/v2/models/simple/generate": b'{"INPUT0":[1,2],"INPUT1":[3,4]}',
    "/v2/models/simple/generate_stream": b'{"INPUT0":[1,2],"INPUT1":[3,4]}',
    "/v1/models/simple:predict": b'{"instances":[{"INPUT0":[1,2],"INPUT1":[3,4]}]}',
}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path, app=None) as made:
        yield made


async def ask(on: Stage, path: str, **headers: str) -> Answer:
    client = on.connect()
    client.send(request("POST", path, ROUTES[path], **headers))
    (answer,) = await client.receive()
    return answer


async def test_a_header_sets_the_deadline(site: Stage) -> None:
    for path in ROUTES:
        before_ns = time.monotonic_ns()
        assert (await ask(site, path, X_Request_Timeout_Ms="60000", Grpc_Timeout="2M")).status == 200, path
        deadline_ns = site.simple.submitted[-1].deadline_ns
        assert before_ns + 60 * 10**9 <= deadline_ns <= time.monotonic_ns() + 60 * 10**9, path
        assert (await ask(site, path)).status == 200, path
        assert site.simple.submitted[-1].deadline_ns == 0, path
    assert len(site.simple.submitted) == 2 * len(ROUTES)


async def test_a_header_that_says_no_time(site: Stage) -> None:
    expected = "invalid value 'soon' for the header 'x-request-timeout-ms', expected milliseconds, as a number above 0"
    for path in ROUTES:
        answer = await ask(site, path, X_Request_Timeout_Ms="soon")
        assert (answer.status, json.loads(answer.body)) == (400, {"error": expected}), path
    assert site.simple.submitted == []


OVERLOADS = (
    (OverloadedError("busy", 1_200_000_000, too_many=True), 429, "2"),
    (OverloadedError("busy", 1), 503, "1"),
    (OverloadedError("busy"), 503, None),
)


async def test_an_overload(site: Stage) -> None:
    for error, status, retry_after in OVERLOADS:
        refuse = Mock(side_effect=error)
        site.simple.submit = refuse  # type: ignore[method-assign]
        for path in ROUTES:
            answer = await ask(site, path)
            assert (answer.status, answer.headers.get("retry-after")) == (status, retry_after), path
            assert json.loads(answer.body) == {"error": "busy"}
        assert refuse.call_count == len(ROUTES)


async def test_each_request_has_its_own_deadline(site: Stage) -> None:
    path = next(iter(ROUTES))
    client = site.connect()
    for count in (1, 2):
        client.send(request("POST", path, ROUTES[path], X_Request_Timeout_Ms="60000"))
        assert len(await client.receive(count)) == count
    first, second = site.simple.submitted
    assert 0 < first.deadline_ns < second.deadline_ns
