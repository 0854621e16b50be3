"""The page of all calls, in a real browser: what is asked of the server, and what a person sees. Debian's Chromium."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from chromium import SECONDS, asked_of, chromium, log
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait
from server_process import ServerProcess


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("browser")) as running:
        yield running


def opened_call(browser: webdriver.Chrome, path: str, method: str) -> WebElement:
    """The form of a call, filled in with an example."""
    place = f'details[data-path="{path}"][data-method="{method}"]'
    call = WebDriverWait(browser, SECONDS).until(lambda page: page.find_element(By.CSS_SELECTOR, place))
    call.find_element(By.TAG_NAME, "summary").click()
    WebDriverWait(browser, SECONDS).until(lambda _: call.find_elements(By.TAG_NAME, "button"))
    return call


def sent(browser: webdriver.Chrome, call: WebElement) -> tuple[str, str]:
    """Press the button; the line of the status, and the response, as the page shows them."""
    call.find_element(By.TAG_NAME, "button").click()
    place = '[aria-live="polite"]'

    def ended(_: webdriver.Chrome) -> WebElement | None:
        results = call.find_elements(By.CSS_SELECTOR, f"{place} > p")
        return results[0] if results and results[0].text not in ("", "…") else None

    status = WebDriverWait(browser, SECONDS).until(ended)
    assert status is not None, "until returns what is true"
    return status.text, call.find_elements(By.CSS_SELECTOR, f"{place} > pre")[-1].text


def test_an_inference_is_sent_as_it_stands_and_nobody_else_is_asked(
    server: ServerProcess, browser: webdriver.Chrome
) -> None:
    browser.get(f"http://127.0.0.1:{server.http_port}/docs")
    call = opened_call(browser, "/v2/models/{model}/infer", "post")
    model = call.find_element(By.TAG_NAME, "input")
    model.clear()
    model.send_keys("simple\t")
    body = call.find_element(By.TAG_NAME, "textarea")
    WebDriverWait(browser, SECONDS).until(lambda _: "INPUT1" in (body.get_attribute("value") or ""))
    inputs = {each["name"]: each["data"] for each in json.loads(body.get_attribute("value") or "")["inputs"]}
    status, text = sent(browser, call)
    assert status.startswith("200 OK")
    outputs = {each["name"]: each["data"] for each in json.loads(text)["outputs"]}
    assert outputs["OUTPUT0"] == [a + b for a, b in zip(inputs["INPUT0"], inputs["INPUT1"], strict=True)]
    addresses = asked_of(browser)
    assert any(address.endswith("/v2/models/simple/infer") for address in addresses)
    assert {urlsplit(address).netloc for address in addresses} == {f"127.0.0.1:{server.http_port}"}
    assert [entry for entry in log(browser, "browser") if entry["level"] == "SEVERE"] == []


def test_a_mistake_is_shown_with_its_reason(server: ServerProcess, browser: webdriver.Chrome) -> None:
    browser.get(f"http://127.0.0.1:{server.http_port}/docs")
    call = opened_call(browser, "/v2/models/{model}/ready", "get")
    model = call.find_element(By.TAG_NAME, "input")
    model.clear()
    model.send_keys("<b>nosuch</b>\t")
    status, text = sent(browser, call)
    assert status.startswith("404")
    assert "<b>nosuch</b>" in text, "what comes from outside is text, not markup"


def test_calls_are_found_by_a_part_of_their_path(
    server: ServerProcess, browser: webdriver.Chrome, tmp_path: Path
) -> None:
    browser.get(f"http://127.0.0.1:{server.http_port}/docs")
    opened_call(browser, "/v2/health/live", "get")
    browser.find_element(By.ID, "filter").send_keys("statistics")
    assert not browser.find_element(By.CSS_SELECTOR, 'details[data-path="/v2/health/live"]').is_displayed()
    picture = tmp_path / "docs.png"
    assert browser.save_screenshot(str(picture))
    assert picture.stat().st_size > 10_000
