"""Pages of strangers in a real browser: what they order is not done, and by names of their own they read nothing."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from chromium import SECONDS, chromium
from repositories import EXAMPLES
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from server_here import serving_here
from server_process import Server
from wire import HOST, Ask, binary_request, http, infer_path

STRANGER, FRIEND, NAME = "evil.test", "friend.test", "models.test"
"""All of them lead to this machine, in this browser."""

SEND = """
const [address, method, body, headers, mode, done] = arguments;
fetch(address, {method, body: method === "GET" ? undefined : body, headers, mode, credentials: "omit"})
  .then(async (response) => done([response.status, await response.text()]), (error) => done([0, String(error)]));
"""


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>page</title>")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def page_server() -> Iterator[int]:
    server = ThreadingHTTPServer((HOST, 0), _Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def pages() -> Iterator[int]:
    """The port of a server with an empty page, whatever it is called."""
    with page_server() as port:
        yield port


@pytest.fixture(scope="module")
def server(pages: int) -> Iterator[Server]:
    options = [
        "--model-control-mode=explicit",
        f"--http-cors-allow-origin=http://{FRIEND}:{pages}",
        f"--http-allow-host={NAME}",
    ]
    with serving_here(EXAMPLES, options=options) as running:
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    folder = tmp_path_factory.mktemp("browser")
    # It is the server that is tested: newer browsers ask their users before a page reaches private addresses.
    rules = "--host-resolver-rules=MAP *.test 127.0.0.1"
    local = "--disable-features=LocalNetworkAccessChecks,PrivateNetworkAccessSendPreflights,HttpsUpgrades"
    with chromium(folder, rules, local) as running:
        running.set_script_timeout(SECONDS)
        yield running


def send(
    browser: webdriver.Chrome,
    address: str,
    method: str = "POST",
    body: str = "{}",
    headers: dict[str, str] | None = None,
    mode: str = "cors",
) -> tuple[int, str]:
    """What a page's script gets to see of a request: 0 for nothing."""
    status, text = browser.execute_async_script(SEND, address, method, body, headers or {}, mode)
    return status, text


def loaded(server: Server) -> bool:
    index = http(server.http_port, "POST", "/v2/repository/index", b"{}").json
    return any(entry["name"] == "simple" and entry.get("state") == "READY" for entry in index)


@pytest.mark.parametrize("host", ["localhost", HOST])
def test_a_stranger_s_page_orders_nothing(browser: webdriver.Chrome, server: Server, pages: int, host: str) -> None:
    """The requests are such as need no preflight, so that the browser sends them."""
    browser.get(f"http://{STRANGER}:{pages}/")
    there = f"http://{host}:{server.http_port}"
    before = http(server.http_port, "GET", "/v2/logging").json
    for mode in ("no-cors", "cors"):
        send(browser, f"{there}/v2/repository/models/simple/load", mode=mode)
        send(browser, f"{there}/v2/logging", body=json.dumps({"log_info": not before["log_info"]}), mode=mode)
    assert not loaded(server)
    assert http(server.http_port, "GET", "/v2/logging").json == before


def test_a_stranger_s_page_unloads_nothing(browser: webdriver.Chrome, server: Server, pages: int) -> None:
    path = "/v2/repository/models/simple"
    assert http(server.http_port, "POST", f"{path}/load", b"{}").status == 200
    browser.get(f"http://{STRANGER}:{pages}/")
    for mode in ("no-cors", "cors"):
        send(browser, f"http://localhost:{server.http_port}{path}/unload", mode=mode)
    assert loaded(server)
    assert http(server.http_port, "POST", f"{path}/unload", b"{}").status == 200
    assert not loaded(server)


def test_another_port_of_this_machine_is_another_origin(browser: webdriver.Chrome, server: Server, pages: int) -> None:
    browser.get(f"http://localhost:{pages}/")
    send(browser, f"http://localhost:{server.http_port}/v2/repository/models/simple/load", mode="no-cors")
    assert not loaded(server)


def test_a_stranger_s_form_orders_nothing(browser: webdriver.Chrome, server: Server, pages: int) -> None:
    browser.get(f"http://{STRANGER}:{pages}/")
    browser.execute_script(
        """
        const form = document.createElement("form");
        form.method = "post"; form.enctype = "text/plain"; form.action = arguments[0];
        document.body.append(form); form.submit();
        """,
        f"http://localhost:{server.http_port}/v2/repository/models/simple/load",
    )
    WebDriverWait(browser, SECONDS).until(lambda browser: "may not call this server" in browser.page_source)
    assert not loaded(server)


ORDERED = {"Content-Type": "text/plain"}
READ: list[tuple[str, str, dict[str, str]]] = [
    ("GET", "/v2", {}),
    ("GET", "/metrics", {}),
    ("GET", "/v2/logging", {"Accept-Language": "*"}),
    ("GET", "/v2/repository/index", {"Accept-Language": ""}),
    ("GET", "/v2", {"User-Agent": "curl", "X-Forwarded-Host": "localhost", "X-Forwarded-Proto": "https"}),
    ("GET", "/v2", {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Host": "localhost"}),
    ("POST", "/v2/repository/index", ORDERED),
    ("POST", "/v2/repository/models/simple/load", ORDERED),
    ("POST", "/v2/repository/models/simple/load", {**ORDERED, "Origin": "http://localhost"}),
]


@pytest.mark.parametrize(("method", "path", "headers"), READ)
def test_a_name_that_was_made_to_lead_here_reads_nothing(
    browser: webdriver.Chrome, server: Server, method: str, path: str, headers: dict[str, str]
) -> None:
    """DNS rebinding: the browser takes this server for the stranger's own."""
    browser.get(f"http://{STRANGER}:{server.http_port}/")
    assert f"--http-allow-host={STRANGER}" in browser.page_source
    status, text = send(browser, path, method, headers=headers)
    assert (status, "--http-allow-host" in text) == (403, True)
    assert not loaded(server)


def test_nor_does_it_read_the_metrics_port(browser: webdriver.Chrome, server: Server) -> None:
    browser.get(f"http://{STRANGER}:{server.metrics_port}/metrics")
    assert f"--http-allow-host={STRANGER}" in browser.page_source
    browser.get(f"http://localhost:{server.metrics_port}/metrics")
    assert "modserve_build_info" in browser.page_source or "nv_" in browser.page_source


@pytest.mark.parametrize("host", ["localhost", HOST, NAME])
def test_the_server_s_own_pages_order(browser: webdriver.Chrome, server: Server, host: str) -> None:
    browser.get(f"http://{host}:{server.http_port}/")
    WebDriverWait(browser, SECONDS).until(lambda browser: browser.find_elements(By.CSS_SELECTOR, "body[data-ready]"))
    status, text = send(browser, "/v2/repository/index")
    assert (status, json.loads(text)[0].keys() >= {"name"}) == (200, True)


def test_a_page_that_is_let_in_reads_and_orders(browser: webdriver.Chrome, server: Server, pages: int) -> None:
    browser.get(f"http://{FRIEND}:{pages}/")
    there = f"http://localhost:{server.http_port}"
    for action in ("load", "unload"):
        headers = {"Content-Type": "application/json"}  # which needs a preflight
        assert send(browser, f"{there}/v2/repository/models/simple/{action}", headers=headers) == (200, "")
        assert loaded(server) is (action == "load")


def test_who_is_no_browser_notices_nothing(server: Server) -> None:
    """Whatever the name is by which it calls."""
    body, headers = binary_request(Ask())
    http(server.http_port, "POST", "/v2/repository/models/simple/load", b"{}")
    for host in (STRANGER, "modserve.default.svc.cluster.local:8000", "models.example.com"):
        answer = http(server.http_port, "POST", infer_path("simple"), body, {**headers, "Host": host})
        assert answer.status == 200
        assert http(server.http_port, "GET", "/v2/health/ready", headers={"Host": host}).status == 200
        assert http(server.metrics_port, "GET", "/metrics", headers={"Host": host}).status == 200
    http(server.http_port, "POST", "/v2/repository/models/simple/unload", b"{}")
