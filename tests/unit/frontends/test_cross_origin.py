"""Pages of other origins: what a browser is told, on every way an answer can take."""

from pathlib import Path
from typing import Any

import pytest
from puppet_server import JSON_BODY, MAX_JSON, Answer, infer, request, stage

from modserve.frontends.http.wire import cors
from modserve.settings import HttpSettings

PAGE = "https://page.example:8443"
OTHER = "https://other.example"
EXPOSED = "Inference-Header-Content-Length, Retry-After, Server-Timing, X-Request-ID"
ANY = {"access-control-allow-origin": "*", "access-control-expose-headers": EXPOSED}
ECHO = {"access-control-allow-origin": PAGE, "access-control-expose-headers": EXPOSED, "vary": "Origin"}
PREFLIGHT = {"access-control-allow-methods": "GET, HEAD, POST, DELETE, OPTIONS", "access-control-max-age": "600"}
ASKING = [(b"access-control-request-method", b"POST"), (b"access-control-request-headers", b"content-type,x-a")]


def told(answer: Answer) -> dict[str, str]:
    return {
        name: value for name, value in answer.headers.items() if name == "vary" or name.startswith("access-control-")
    }


@pytest.mark.parametrize(
    ("origins", "method", "headers", "expected"),
    [
        ((), b"POST", [(b"origin", PAGE.encode())], {}),
        (("*",), b"POST", [], ANY),
        (("*",), b"POST", [(b"origin", PAGE.encode())], ANY),
        ((PAGE, OTHER), b"POST", [(b"origin", PAGE.encode())], ECHO),
        ((PAGE,), b"POST", [(b"origin", b"https://PAGE.example:8443")], {**ECHO, "access-control-allow-origin": PAGE}),
        ((PAGE,), b"POST", [(b"origin", b"https://page.example")], {"vary": "Origin"}),
        ((PAGE,), b"POST", [], {"vary": "Origin"}),
        ((PAGE,), b"OPTIONS", [(b"origin", PAGE.encode())], ECHO),
        (
            (PAGE,),
            b"OPTIONS",
            [(b"origin", PAGE.encode()), *ASKING],
            {**ECHO, **PREFLIGHT, "access-control-allow-headers": "content-type,x-a"},
        ),
        ((PAGE,), b"OPTIONS", [(b"origin", OTHER.encode()), *ASKING], {"vary": "Origin"}),
        (("*",), b"OPTIONS", [(b"origin", PAGE.encode()), ASKING[0]], {**ANY, **PREFLIGHT}),
    ],
    ids=[
        "off",
        "any, no page",
        "any",
        "one of two",
        "other case",
        "another port",
        "no page",
        "no preflight",
        "preflight",
        "preflight of another",
        "preflight, any",
    ],
)
def test_the_header_lines(
    origins: tuple[str, ...], method: bytes, headers: list[tuple[bytes, bytes]], expected: dict[str, str]
) -> None:
    lines = cors.header_block(frozenset(origins), method, headers).decode().split("\r\n")
    assert lines.pop() == ""
    found = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert {name: value.lower() for name, value in found.items()} == {
        name: value.lower() for name, value in expected.items()
    }


@pytest.mark.parametrize("origins", [(), (PAGE,)], ids=["none", "another"])
async def test_a_refused_preflight_is_logged_once_for_each_origin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, origins: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cors, "_logged", set[bytes]())
    options = HttpSettings(max_json=MAX_JSON, cors_allow_origin=frozenset(origins))
    preflight: dict[str, Any] = {"Access_Control_Request_Method": "POST"}
    async with stage(tmp_path, None, options=options) as on:
        client = on.connect()
        asked = [
            (OTHER, preflight),
            (OTHER, preflight),
            ("https://third.example", preflight),
            ("https://fourth.example", {}),
        ]
        for count, (origin, headers) in enumerate(asked, 1):
            client.send(request("OPTIONS", "/v2", Origin=origin, **headers))
            await client.receive(count)
    logged = [record.getMessage() for record in caplog.records if record.name == cors.__name__]
    assert [text.partition(" may not call this server")[0] for text in logged] == [
        f"pages of {OTHER}",
        "pages of https://third.example",
    ]
    assert logged[0].endswith(f"--http-cors-allow-origin={OTHER} lets them")


@pytest.mark.parametrize(("origins", "expected"), [(("*",), ANY), ((PAGE, OTHER), ECHO)], ids=["any", "listed"])
async def test_every_answer_carries_them(tmp_path: Path, origins: tuple[str, ...], expected: dict[str, str]) -> None:
    options = HttpSettings(max_json=MAX_JSON, cors_allow_origin=frozenset(origins))
    async with stage(tmp_path, None, options=options) as on:
        client = on.connect()
        sent = [
            infer(Origin=PAGE),
            infer(Origin=PAGE),  # its head is remembered by now
            infer(b"{", Origin=PAGE),
            infer(Origin=PAGE, Content_Encoding="br"),
            request("GET", "/v2", Origin=PAGE),
            request("GET", "/nowhere", Origin=PAGE),
            request("GET", "/v2/models/simple/infer", Origin=PAGE),
            infer(b" " * (MAX_JSON + 1), Origin=PAGE),
        ]
        for count, each in enumerate(sent, 1):
            client.send(each)
            await client.receive(count)
        assert [answer.status for answer in client.answers] == [200, 200, 400, 501, 200, 404, 405, 400]
        assert [told(answer) for answer in client.answers] == [expected] * len(sent)


async def test_what_a_remembered_head_says_is_for_its_own_origin(tmp_path: Path) -> None:
    async with stage(
        tmp_path, options=HttpSettings(max_json=MAX_JSON, cors_allow_origin=frozenset({PAGE, OTHER}))
    ) as on:
        client = on.connect()
        for count, origin in enumerate((PAGE, OTHER, PAGE, OTHER), 1):
            client.send(infer(Origin=origin))
            assert told((await client.receive(count))[-1])["access-control-allow-origin"] == origin
        client.send(infer(JSON_BODY))
        assert told((await client.receive(5))[-1]) == {"vary": "Origin"}


async def test_a_preflight_is_answered(tmp_path: Path) -> None:
    async with stage(
        tmp_path, None, options=HttpSettings(max_json=MAX_JSON, cors_allow_origin=frozenset({PAGE}))
    ) as on:
        client = on.connect()
        path = "/v2/models/simple/infer"
        client.send(request("OPTIONS", path, Origin=PAGE, Access_Control_Request_Method="POST"))
        (answer,) = await client.receive()
        assert (answer.status, answer.body, answer.headers["allow"]) == (200, b"", "POST, OPTIONS")
        assert told(answer) == {**ECHO, **PREFLIGHT}


def test_refused_origins_in_the_log_are_few_and_short(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cors, "_logged", set[bytes]())
    monkeypatch.setattr(cors, "_MOST_LOGGED", 2)
    for origin in (b"https://" + b"a" * 193, b"https://" + b"a" * 192, b"https://b.example", b"https://c.example"):
        headers = [(b"origin", origin), (b"access-control-request-method", b"POST")]
        cors.header_block(frozenset(), b"OPTIONS", headers)
    assert [record.getMessage().split()[2] for record in caplog.records] == [
        f"https://{'a' * 192}",
        "https://b.example",
    ]
