"""The console at an admin port of a server with keys: the key is in the page's memory, and nowhere else."""

import json
from collections.abc import Iterator

import pytest
from chromium import SECONDS, chromium, until
from console_page import row_of, sent, text_of
from repositories import EXAMPLES
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from server_here import serving_here
from server_process import Server
from wire import HOST, Ask, binary_request, http, infer_path

KEY = "0nly-in-memory-7f3a9c"
WRONG = "wr0ng-key-000-1b2c3d"

KEPT = """
const [done] = arguments;
(async () => {
  const held = [location.href, document.cookie];
  held.push(JSON.stringify({ ...localStorage }), JSON.stringify({ ...sessionStorage }));
  held.push(document.documentElement.outerHTML, JSON.stringify(history.state), window.name);
  held.push(...[...document.querySelectorAll("input, textarea, select")].map((field) => field.value));
  held.push(...(await indexedDB.databases()).map((database) => database.name));
  held.push(...performance.getEntries().map((entry) => entry.name));
  done(held.join("\\n"));
})();
"""
"""All places of a page in which something outlives a reload, or a script of the page could read it later."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = [f"--admin-address={HOST}:0", "--model-control-mode=explicit", "--load-model=simple"]
    with serving_here(EXAMPLES, options=options, environment={"MODSERVE_API_KEY": KEY}) as running:
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("browser")) as running:
        running.set_script_timeout(SECONDS)
        yield running


def type_key(browser: webdriver.Chrome, key: str) -> None:
    until(lambda: browser.find_element(By.ID, "secrets").is_displayed())
    browser.find_element(By.CSS_SELECTOR, "#secret-fields input").send_keys(key, Keys.ENTER)


def opened(browser: webdriver.Chrome, server: Server) -> None:
    browser.get("about:blank")
    browser.get(f"http://{HOST}:{server.admin_port}/")


def test_the_key_is_asked_for_and_kept_nowhere(server: Server, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    until(lambda: text_of(browser, "#live") == "not allowed")
    assert "this call needs a key" in text_of(browser, "#notice")
    type_key(browser, WRONG)
    until(lambda: "the key is not known" in text_of(browser, "#notice"))
    type_key(browser, KEY)
    until(lambda: text_of(browser, "#live") == "connected")
    until(lambda: browser.find_element(By.ID, "log").is_displayed())
    assert len(browser.find_elements(By.CSS_SELECTOR, "#secret-fields input")) == 1

    row_of(browser, "simple").find_element(By.TAG_NAME, "button").click()
    assert "OUTPUT0" in sent(browser).text
    browser.find_element(By.CSS_SELECTOR, '[data-verb="unload"]').click()
    browser.switch_to.alert.accept()
    until(lambda: not ready(server))
    browser.find_element(By.CSS_SELECTOR, '[data-verb="load"]').click()
    until(lambda: ready(server))

    held = browser.execute_async_script(KEPT)
    assert "simple" in held  # or nothing was read
    assert KEY not in held
    assert WRONG not in held
    browser.refresh()
    until(lambda: text_of(browser, "#live") == "not allowed")
    assert browser.find_element(By.CSS_SELECTOR, "#secret-fields input").get_attribute("value") == ""
    assert KEY not in server.log


def ready(server: Server) -> bool:
    path, headers = "/v2/models/simple/ready", {"x-api-key": KEY}
    return http(server.http_port, "GET", path, headers=headers).status == 200


def test_clients_get_nothing_of_it(server: Server, browser: webdriver.Chrome) -> None:
    headers = {"x-api-key": KEY}
    for path in ("/console", "/console/events", "/docs", "/openapi.json", "/metrics", "/v2/logging"):
        answer = http(server.http_port, "GET", path, headers=headers)
        assert (answer.status, answer.json) == (404, {"error": "Not Found"}), path
    assert http(server.admin_port, "GET", "/metrics").status == 401
    assert b"modserve_build_info" in http(server.admin_port, "GET", "/metrics", headers=headers).body
    browser.get(f"http://{HOST}:{server.http_port}/")
    assert json.loads(browser.find_element(By.TAG_NAME, "body").text) == {"status": "alive"}
    body, binary = binary_request(Ask())
    assert http(server.http_port, "POST", infer_path("simple"), body, {**binary, **headers}).status == 200
