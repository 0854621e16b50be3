"""What browsers may do: strangers' pages give no orders and do not read by names of their own."""

import socket
from pathlib import Path

import pytest
from puppet_server import JSON_BODY, MAX_JSON, Client, infer, request, stage

from modserve.frontends import browsers
from modserve.frontends.browsers import name_refusal, order_refusal
from modserve.settings import HttpSettings

OWN = "models.example:8000"
PAGE = "https://page.example"
FOREIGN = {"origin": PAGE}


def order(marks: dict[str, str], method: str = "POST", allowed: set[str] = frozenset(), secure: bool = False) -> str:  # type: ignore[assignment]
    sent = {name.encode(): value.encode() for name, value in marks.items()}
    return order_refusal(method.encode(), OWN.encode(), sent, allowed, secure)


@pytest.mark.parametrize(
    "marks",
    [
        {},
        {"accept-language": "en"},
        {"sec-fetch-mode": "cors", "accept-language": "*"},  # node.js
        {"x-forwarded-host": "page.example"},
        {"origin": f"http://{OWN}"},
        {"origin": f"https://{OWN}"},  # a proxy in front may have ended TLS
        {"origin": "HTTP://MODELS.example:8000"},
        {"origin": PAGE, "sec-fetch-site": "same-origin"},  # a proxy in front has changed the host
        {"origin": PAGE, "sec-fetch-site": "none"},
        {"sec-fetch-site": "same-origin"},
        {"origin": PAGE, "x-forwarded-host": "page.example"},
        {"origin": PAGE, "x-forwarded-host": "other.example, page.example:443"},
    ],
)
def test_orders_that_are_no_strangers(marks: dict[str, str]) -> None:
    assert order(marks) == ""


@pytest.mark.parametrize(
    "marks",
    [
        {"origin": PAGE},
        {"origin": PAGE, "sec-fetch-site": "cross-site"},
        {"origin": "http://models.example:3000", "sec-fetch-site": "same-site"},
        {"origin": "http://models.example"},
        {"origin": "http://models.example:8000.page.example"},
        {"origin": "models.example:8000"},
        {"origin": "file://models.example:8000"},
        {"origin": "null"},
        {"origin": ""},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "something new"},
        {"origin": PAGE, "x-forwarded-host": ""},
        {"origin": PAGE, "sec-fetch-site": "cross-site", "x-forwarded-host": "page.example"},
    ],
)
def test_orders_of_strangers(marks: dict[str, str]) -> None:
    assert "may not call this server; --http-cors-allow-origin=" in order(marks)
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "get"):
        assert order(marks, method)
    for method in ("GET", "HEAD", "OPTIONS"):
        assert order(marks, method) == ""
    assert order(marks, allowed={"*"}) == ""


def test_the_texts() -> None:
    assert order(FOREIGN) == (
        "a page of 'https://page.example' may not call this server; "
        "--http-cors-allow-origin=https://page.example allows it"
    )
    assert order({"sec-fetch-site": "cross-site"}) == (
        "pages of other sites may not call this server; --http-cors-allow-origin=ORIGIN allows it"
    )
    assert len(order({"origin": "x" * 10_000})) < 400


def test_origins_that_are_let_in() -> None:
    marks = {"origin": PAGE, "sec-fetch-site": "cross-site"}
    assert order(marks, allowed={PAGE}) == ""
    assert order(marks, allowed={"https://other.example"})
    assert order({"origin": "null"}, allowed={"null"}) == ""


def test_over_tls_the_scheme_counts() -> None:
    assert order({"origin": f"http://{OWN}"}, secure=True)
    assert order({"origin": f"https://{OWN}"}, secure=True) == ""


@pytest.mark.parametrize(
    ("host", "origin"),
    [("a.b", "http://a.b:80"), ("a.b:80", "http://a.b"), ("a.b", "https://a.b"), ("a.b:443", "https://a.b")],
)
def test_default_ports(host: str, origin: str) -> None:
    assert order_refusal(b"POST", host.encode(), {b"origin": origin.encode()}, (), False) == ""


BROWSER = {b"accept-language": b"en"}
STRANGERS = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "a.svc.evil",
    "1.2",
]
OURS = [
    *("localhost", "localhost:8000", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.0.0.1:8000", "10.0.0.7", "[::1]"),
    *("[::1]:8000", "[::ffff:10.0.0.7]:8000", "modserve", "modserve:8000", "modserve.default.svc", "", "printer.local"),
    *("modserve.default.svc.cluster.local:8000", "gpu.internal", "nas.home.arpa"),
]


@pytest.mark.parametrize("marks", [BROWSER, {b"origin": b"http://evil.example"}, {b"accept-language": b""}])
@pytest.mark.parametrize("host", STRANGERS)
def test_names_that_may_be_strangers(host: str, marks: dict[bytes, bytes]) -> None:
    name = host.partition(":")[0]
    assert name_refusal(host.encode(), marks, ()) == (
        f"a browser used the host name '{name}', which may belong to another site: --http-allow-host={name} allows it"
    )
    assert name_refusal(host.encode(), marks, {name}) == ""
    assert name_refusal(host.encode(), marks, {"*"}) == ""


@pytest.mark.parametrize("host", OURS)
def test_names_that_are_no_strangers(host: str) -> None:
    assert name_refusal(host.encode(), BROWSER, ()) == ""


@pytest.mark.parametrize(
    "marks",
    [
        {},
        {b"x-forwarded-host": b"evil.example"},
        {b"sec-fetch-mode": b"cors", b"accept-language": b"*"},  # node.js
        {b"sec-fetch-site": b"same-origin", b"accept-language": b"en", b"origin": b"https://evil.example"},
    ],
    ids=["no browser", "a proxy", "node.js", "what a certificate has shown"],
)
def test_who_needs_no_known_name(marks: dict[bytes, bytes]) -> None:
    assert name_refusal(b"evil.example", marks, ()) == ""


def test_the_names_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsers, "_machine", {"gpu1.corp.example"})
    assert name_refusal(b"GPU1.corp.example:8000", BROWSER, ()) == ""
    assert name_refusal(b"gpu2.corp.example:8000", BROWSER, ())


def test_the_full_name_is_asked_for_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"gpu2"}
    monkeypatch.setattr(browsers, "_machine", names)
    monkeypatch.setattr(socket, "getfqdn", lambda: "GPU2.corp.example")
    browsers.learn_names().join()
    assert names == {"gpu2", "gpu2.corp.example"}


# Over the wire


def refusal(client: Client) -> str:
    answer = client.answers[-1]
    assert (answer.status, answer.headers["connection"]) == (403, "close")
    return answer.body.decode()


@pytest.mark.parametrize(
    "data",
    [
        infer(Origin=PAGE),
        request("POST", "/v2/repository/models/simple/load", b"{}", Origin=PAGE, Content_Type="text/plain"),
        request("POST", "/v2/logging", b"{}", Sec_Fetch_Site="cross-site"),
        request("DELETE", "/v2/models/simple/routing", Origin=PAGE),
        request("POST", "/v2/systemsharedmemory/unregister", Sec_Fetch_Site="same-site"),
        request("GET", "/v2", Accept_Language="en").replace(b"localhost", b"evil.example"),
        infer(Origin="http://evil.example").replace(b"localhost", b"evil.example"),
    ],
)
async def test_refused(tmp_path: Path, data: bytes) -> None:
    async with stage(tmp_path, None) as on:
        client = on.connect()
        client.send(data)
        await client.receive()
        assert "-allow-" in refusal(client)
        assert not on.simple.submitted


@pytest.mark.parametrize("mark", ["Origin", "Sec-Fetch-Site", "Accept-Language"])
async def test_a_head_that_is_known_lets_nobody_in(tmp_path: Path, mark: str) -> None:
    """It is one that a client sends who is no browser; and the one that is refused is not remembered either."""
    marks = {"Origin": PAGE, "Sec-Fetch-Site": "cross-site", "Accept-Language": "en"}
    async with stage(tmp_path) as on:
        usual = infer().replace(b"localhost", b"evil.example")
        marked = usual.replace(b"\r\n\r\n", f"\r\n{mark}: {marks[mark]}\r\n\r\n".encode())
        for data, status in ((usual, 200), (usual, 200), (marked, 403), (usual, 200), (marked, 403)):
            client = on.connect()
            client.send(data)
            assert (await client.receive())[0].status == status


async def test_an_allowed_page_may_ask_again(tmp_path: Path) -> None:
    options = HttpSettings(
        max_json=MAX_JSON, cors_allow_origin=frozenset({PAGE}), allow_host=frozenset({"models.example"})
    )
    async with stage(tmp_path, options=options) as on:
        client = on.connect()
        data = infer(JSON_BODY, Origin=PAGE, Accept_Language="en").replace(b"localhost", b"models.example")
        client.send(data)
        await client.receive()
        client.send(data)
        assert [answer.status for answer in await client.receive(2)] == [200, 200]


async def test_with_tls_the_certificate_has_the_names(tmp_path: Path) -> None:
    async with stage(tmp_path, options=HttpSettings(max_json=MAX_JSON, use_ssl=True)) as on:
        client = on.connect()
        client.send(infer(Accept_Language="en").replace(b"localhost", b"models.example"))
        assert (await client.receive())[0].status == 200
