"""The API explorer in a real browser: what is asked of the server, and what a person sees. Debian's Chromium."""

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe import violations_in_every_look
from chromium import SECONDS, asked_of, log, press, screen, shown, until
from repositories import EXAMPLES
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select
from server_here import serving_here
from server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("desktop")


def opened(browser: webdriver.Chrome, server: ServerProcess) -> None:
    """The page, with the programs of its first model."""
    browser.get(f"http://127.0.0.1:{server.http_port}/docs")
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "body[data-ready] #snippet pre"))


def unfold(browser: webdriver.Chrome) -> None:
    """Open every call, and every schema in it."""
    browser.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    until(lambda: browser.execute_script("return !document.querySelector('.call:not(:has(form))')"))
    browser.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")


def opened_call(browser: webdriver.Chrome, path: str, method: str) -> WebElement:
    """The form of a call, filled in with an example."""
    place = f'details[data-path="{path}"][data-method="{method}"]'
    (call,) = until(lambda: browser.find_elements(By.CSS_SELECTOR, place))
    call.find_element(By.TAG_NAME, "summary").click()
    until(lambda: call.find_elements(By.TAG_NAME, "button"))
    return call


def sent(browser: webdriver.Chrome, call: WebElement) -> tuple[str, str]:
    """Press the button; the line of the status, and the response, as the page shows them."""
    call.find_element(By.CSS_SELECTOR, "button[type=submit]").click()
    place = '[aria-live="polite"]'

    def ended() -> WebElement | None:
        results = call.find_elements(By.CSS_SELECTOR, f"{place} > p")
        return results[0] if results and results[0].text not in ("", "…") else None

    status = until(ended)
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
    until(lambda: "INPUT1" in (body.get_attribute("value") or ""))
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


def test_inference_is_first(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    headings = [heading.lower() for heading in shown(browser, "h2")]
    assert headings[:6] == ["call a model", "inference", "text", "health", "metadata", "statistics"]
    assert headings[6:] == [
        "model repository",
        "routing",
        "logging",
        "trace",
        "shared memory",
        "kserve v1, tensorflow serving",
    ]
    assert shown(browser, ".call .path")[0] == "/v2/models/{model}/infer"


def test_a_model_is_shown_with_its_tensors(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    call = opened_call(browser, "/v2/models/{model}/infer", "post")
    Select(browser.find_element(By.ID, "name")).select_by_visible_text("digits")
    until(lambda: "image input FP32 [-1, 64]" in shown(browser, "#tensors tbody tr"))
    assert "label output INT64 [-1, 1]" in shown(browser, "#tensors tbody tr")
    until(lambda: '"image"' in shown(browser, "#snippet pre")[0])
    document = browser.find_element(By.ID, "document").get_attribute("href")
    assert document == f"http://127.0.0.1:{server.http_port}/v2/models/digits/openapi.json"
    body = call.find_element(By.TAG_NAME, "textarea")
    until(lambda: '"image"' in (body.get_attribute("value") or ""))
    status, text = sent(browser, call)
    assert status.startswith("200 OK")
    assert json.loads(text)["model_name"] == "digits"


@pytest.mark.parametrize("client", ["curl", "Python", "tritonclient"])
def test_a_program_is_copied_and_calls_this_server(
    server: ServerProcess, browser: webdriver.Chrome, client: str
) -> None:
    opened(browser, server)
    permissions = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.execute_cdp_cmd("Browser.grantPermissions", permissions)
    (tab,) = [tab for tab in browser.find_elements(By.CSS_SELECTOR, "[role=tab]") if tab.text == client]
    tab.click()
    browser.find_element(By.CSS_SELECTOR, "#snippet button").click()
    until(lambda: shown(browser, "#snippet button") == ["Copied"])
    script = "const done = arguments[0]; navigator.clipboard.readText().then(done, (error) => done(String(error)))"
    text = browser.execute_async_script(script)
    assert text.strip() == shown(browser, "#snippet pre")[0].strip()
    command = ["sh", "-c", f"{text} -sS"] if client == "curl" else [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("[1,2,3,4" if client == "curl" else "[[ 1  2  3  4") in done.stdout


def test_texts_are_text_and_calls_are_of_use(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    unfold(browser)
    text = browser.find_element(By.TAG_NAME, "body").text
    assert "`" not in text
    assert "Refused" not in text
    assert "unload_dependents" in shown(browser, "code")
    schemas = browser.find_elements(By.CSS_SELECTOR, ".call .schema pre")
    assert len(schemas) == len(browser.find_elements(By.CSS_SELECTOR, ".call"))
    infer = browser.find_element(By.CSS_SELECTOR, '[data-path="/v2/models/{model}/infer"] .schema pre').text
    for line in ("request: InferenceRequestBody", "inputs: [TensorData]", "datatype: string", "503  Not ready"):
        assert line in infer


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_overlaps_or_scrolls_sideways(server: ServerProcess, browser: webdriver.Chrome, width: int) -> None:
    screen(browser, width, 900)
    opened(browser, server)
    unfold(browser)
    gaps = browser.execute_script(
        "return [...document.querySelectorAll('.call > summary')].map((each) => {"
        " const range = document.createRange(); range.selectNodeContents(each.querySelector('.method'));"
        " return each.querySelector('.path').getBoundingClientRect().left - range.getBoundingClientRect().right; })"
    )
    assert len(gaps) > 50
    assert min(gaps) >= 4
    assert browser.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.slow
def test_no_rule_of_axe_is_broken(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    assert violations_in_every_look(browser) == []
    for path, method in (("/v2/models/{model}/infer", "post"), ("/v2/models/{model}/routing", "delete")):
        call = opened_call(browser, path, method)
        call.find_element(By.CSS_SELECTOR, ".schema summary").click()
        sent(browser, call)
    assert violations_in_every_look(browser) == []


def test_an_inference_by_keyboard_alone(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    press(browser, Keys.TAB)
    names: list[str] = []
    while browser.switch_to.active_element.get_attribute("role") != "tab":
        assert len(names) < 10, names
        names.append(browser.switch_to.active_element.accessible_name)
        press(browser, Keys.TAB)
    assert names[0] == "Skip to the calls"
    assert names[-2:] == ["Model", "OpenAPI of this model"]
    press(browser, Keys.ARROW_RIGHT)
    assert browser.switch_to.active_element.text == "Python"
    assert "modserve.connect" in shown(browser, "#snippet pre")[0]
    press(browser, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert browser.switch_to.active_element.text == "tritonclient"
    while (
        browser.switch_to.active_element.tag_name != "summary" or "infer" not in browser.switch_to.active_element.text
    ):
        press(browser, Keys.TAB)
    press(browser, Keys.ENTER)
    call = browser.find_element(By.CSS_SELECTOR, '[data-path="/v2/models/{model}/infer"]')
    until(lambda: call.find_elements(By.TAG_NAME, "textarea"))
    body = call.find_element(By.TAG_NAME, "textarea")
    until(lambda: "INPUT1" in (body.get_attribute("value") or ""))
    while browser.switch_to.active_element.text != "Send":
        press(browser, Keys.TAB)
    press(browser, Keys.ENTER)
    until(lambda: any(text.startswith("200 OK") for text in shown(browser, '[aria-live="polite"] > p')))


def test_restricted_calls_say_so_until_the_header_is_there(browser: webdriver.Chrome) -> None:
    options = ["--http-restricted-api=metadata,model-repository,inference:admin-key=secret"]
    with serving_here(EXAMPLES, options=options) as restricted:
        browser.get(f"http://127.0.0.1:{restricted.http_port}/docs")
        note = "This API is restricted, expecting header 'admin-key'"
        until(lambda: shown(browser, "#model-note") == [note])
        browser.find_element(By.CSS_SELECTOR, "#settings summary").click()
        browser.find_element(By.ID, "header-name").send_keys("admin-key")
        browser.find_element(By.ID, "header-value").send_keys("secret\t")
        until(lambda: browser.find_elements(By.CSS_SELECTOR, "#snippet pre"))
        call = opened_call(browser, "/v2/models/{model}/infer", "post")
        body = call.find_element(By.TAG_NAME, "textarea")
        until(lambda: "INPUT1" in (body.get_attribute("value") or ""))
        assert sent(browser, call)[0].startswith("200 OK")
