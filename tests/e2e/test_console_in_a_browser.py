"""The live console in a real browser: what a person sees and does, and what hostile names and texts do not do."""

import hashlib
import json
import os
import re
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe import violations
from chromium import SECONDS, asked_of, emulate_scheme, log, until
from console_page import opened, row_of, sent, text_of, text_of_row
from repositories import EXAMPLES, write_accumulator, write_identity
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from server_here import serving_here
from server_process import ServerProcess, free_port, serving
from wire import HOST, Answer, Ask, assert_serving, binary_request, http, infer_path

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=document.title='hacked'>"
NAMES = (HOSTILE, "__proto__", "\"'`${1}&lt;", "‮drowssap", "a b%2f?#&=+", "x" * 200)
KEY = "s3cret"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    for name in NAMES:
        write_identity(repository, name)
    write_identity(repository, "texts", "BYTES")
    write_identity(repository, "cached", extra="response_cache { enable: true }")
    write_accumulator(repository, "sum", "direct { }", "max_sequence_idle_microseconds: 600000000")
    write_identity(repository, "waiting")
    pictures = repository / "pictures"
    (pictures / "1").mkdir(parents=True)
    tensors = '[ { name: "%s" data_type: TYPE_UINT8 dims: [ 16, 12, 3 ] } ]'
    (pictures / "config.pbtxt").write_text(
        f'backend: "identity"\nmax_batch_size: 4\ninput {tensors % "INPUT0"}\noutput {tensors % "OUTPUT0"}\n'
    )
    broken = repository / "broken"
    (broken / "1").mkdir(parents=True)
    (broken / "config.pbtxt").write_text('backend: "<script>document.title = 1</script>"\n')
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    options = ["--model-control-mode=explicit", "--cache-config=local,size=1000000", "--console=true"]
    options += [f"--load-model={name}" for name in (*NAMES, "texts", "cached", "sum", "pictures", "broken", "simple")]
    with serving(EXAMPLES, repository, options=options, errors=["broken"]) as running:
        yield running


def facts_of(browser: webdriver.Chrome) -> str:
    """Of the model whose section is open."""
    return text_of(browser, "#detail .facts").replace("\n", " ")


def infer(server: ServerProcess, model: str = "simple", times: int = 1) -> Answer:
    body = json.dumps(http(server.http_port, "GET", f"/docs/examples/{model}").json["infer"]).encode()
    return [http(server.http_port, "POST", f"/v2/models/{model}/infer", body) for _ in range(times)][-1]


def png(width: int, height: int, colour: tuple[int, int, int]) -> bytes:
    """A picture of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(colour) * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_requests_are_seen_as_they_come_and_nobody_else_is_asked(
    server: ServerProcess, browser: webdriver.Chrome
) -> None:
    opened(browser, server)
    cell = row_of(browser, "simple").find_elements(By.TAG_NAME, "td")[4]
    seen = False
    deadline = time.monotonic() + SECONDS
    while not seen and time.monotonic() < deadline:
        infer(server, times=20)
        seen = cell.text not in ("0", "–")
    assert seen
    assert text_of(browser, "#live") == "connected"
    assert text_of(browser, "#phase") in ("server ready", "server not ready: 1 of 12 versions")
    tile = browser.find_element(By.CSS_SELECTOR, "#tiles .chart path.line.a").get_attribute("d") or ""
    assert tile.startswith("M"), "the chart has a line"
    addresses = asked_of(browser)
    assert any(address.endswith("/console/events") for address in addresses)
    assert {urlsplit(address).netloc for address in addresses} == {f"{HOST}:{server.http_port}"}
    assert [entry for entry in log(browser, "browser") if entry["level"] == "SEVERE"] == []


def test_hostile_names_and_reasons_are_text(server: ServerProcess, browser: webdriver.Chrome) -> None:
    http(server.http_port, "GET", "/v2/models/%3Cscript%3Edocument.title%3D2%3C%2Fscript%3E")
    for name in NAMES:
        opened(browser, server, name)
        row_of(browser, name)
        assert browser.find_element(By.ID, "detail-title").get_property("textContent") == f"{name} – version 1"
        assert "OUTPUT0" in sent(browser).text
    opened(browser, server, "broken", "")
    assert "<script>document.title" in text_of(browser, "#rows")
    until(lambda: "<script>document.title=2" in text_of(browser, "#failures"))
    assert text_of(browser, "#rows tr").startswith("broken"), "failed versions come first"
    assert text_of(browser, "#model-count").endswith(" READY, 1 failed")
    for place in (".why td", "#detail .notice"):
        element = browser.find_element(By.CSS_SELECTOR, place)
        assert element.value_of_css_property("white-space-collapse") == "preserve", "a caret stays below its column"
        assert "monospace" in element.value_of_css_property("font-family")
    assert browser.title == "modserve"
    assert browser.find_elements(By.CSS_SELECTOR, "#rows img, #detail img, #failures script") == []
    width = browser.execute_script("return document.documentElement.scrollWidth - innerWidth")
    assert width <= 0, "long names do not widen the page"


def test_a_request_is_made_of_the_metadata_and_a_mistake_is_explained(
    server: ServerProcess, browser: webdriver.Chrome
) -> None:
    opened(browser, server, "simple")
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "#detail [data-input]"))
    result = sent(browser)
    assert result.text.startswith("200 in ")
    assert "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16" in result.text
    size = browser.find_element(By.CSS_SELECTOR, '[data-input="INPUT0"] input[aria-label^="Shape"]')
    size.clear()
    size.send_keys("1, 15")
    assert "16" in sent(browser).text
    assert "200" not in text_of(browser, "#detail .request .result > p")


def test_texts_and_pictures_are_shown_as_such(server: ServerProcess, browser: webdriver.Chrome, tmp_path: Path) -> None:
    opened(browser, server, "texts")
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "#detail [data-input]"))
    field = browser.find_element(By.CSS_SELECTOR, "[data-input] textarea")
    field.clear()
    field.send_keys("Grüße <b>from</b> 東京")
    assert "Grüße <b>from</b> 東京" in sent(browser).text
    picture = tmp_path / "red.png"
    picture.write_bytes(png(12, 16, (200, 10, 20)))
    Select(browser.find_element(By.CSS_SELECTOR, "[data-input] select")).select_by_value("file")
    browser.find_element(By.CSS_SELECTOR, "[data-input] input[type=file]").send_keys(str(picture))
    image = sent(browser).find_element(By.TAG_NAME, "img")
    until(lambda: image.get_property("naturalWidth") == 12)
    opened(browser, server, "pictures")
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "#detail [data-input]"))
    Select(browser.find_element(By.CSS_SELECTOR, "[data-input] select")).select_by_value("picture")
    browser.find_element(By.CSS_SELECTOR, "[data-input] input[type=file]").send_keys(str(picture))
    canvas = sent(browser).find_element(By.TAG_NAME, "canvas")
    script = "return [...arguments[0].getContext('2d').getImageData(3, 3, 1, 1).data]"
    pixel = browser.execute_script(script, canvas)
    assert [abs(a - b) <= 2 for a, b in zip(pixel, (200, 10, 20, 255), strict=True)] == [True] * 4


def test_a_stream_of_responses(server: ServerProcess, browser: webdriver.Chrome) -> None:
    assert http(server.http_port, "POST", "/v2/repository/models/repeat/load", b"{}").status == 200
    opened(browser, server, "repeat")
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "#detail [data-input]"))
    result = sent(browser)
    until(lambda: "responses in" in result.text)


def test_models_are_loaded_and_unloaded(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    until(lambda: "not loaded" in text_of_row(browser, "waiting"))
    row_of(browser, "waiting").find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    until(lambda: browser.find_elements(By.CSS_SELECTOR, '[data-verb="load"]'))
    browser.find_element(By.CSS_SELECTOR, '[data-verb="load"]').click()
    until(lambda: "READY" in text_of_row(browser, "waiting"))
    row_of(browser, "waiting").find_element(By.TAG_NAME, "button").click()
    until(lambda: browser.find_elements(By.CSS_SELECTOR, '[data-verb="unload"]:enabled'))
    browser.find_element(By.CSS_SELECTOR, '[data-verb="unload"]').click()
    browser.switch_to.alert.accept()
    until(lambda: "unloaded" in text_of_row(browser, "waiting"))


def test_caches_and_sequences_are_shown(server: ServerProcess, browser: webdriver.Chrome) -> None:
    infer(server, "cached", 3)
    opened(browser, server, "cached")
    until(lambda: "cache hits 2" in facts_of(browser))

    def add(**parameters: object) -> None:
        inputs = [{"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}]
        body = json.dumps({"parameters": {"sequence_id": 9, **parameters}, "inputs": inputs}).encode()
        assert http(server.http_port, "POST", "/v2/models/sum/infer", body).status == 200

    add(sequence_start=True)
    opened(browser, server, "sum")
    until(lambda: "open sequences 1" in facts_of(browser))
    assert browser.find_elements(By.CSS_SELECTOR, "#detail .bars meter")
    parts = text_of(browser, "#detail .columns").replace("\n", " ")
    assert re.search(r"Parts of the mean time queue \S+ ms input \S+ ms infer \S+ ms output \S+ ms", parts)
    add(sequence_end=True)
    until(lambda: "open sequences 0" in facts_of(browser))


def test_the_log_is_changed(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    until(lambda: browser.find_element(By.ID, "log").is_displayed())
    level = browser.find_element(By.ID, "log-verbose")
    for value in ("1", "0"):
        level.clear()
        level.send_keys(value, Keys.ENTER)
        until(lambda: str(http(server.http_port, "GET", "/v2/logging").json["log_verbose_level"]) == value)  # noqa: B023
        until(
            lambda: text_of(browser, "#log-note") == "Applied."
        )  # before that, the response would overwrite what is typed


def test_it_is_used_without_a_mouse(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    skip = browser.switch_to.active_element
    assert skip.text == "Skip to the models"
    head = browser.find_element(By.CSS_SELECTOR, '[data-name="requests"] button')
    head.send_keys(Keys.ENTER)
    assert browser.find_element(By.CSS_SELECTOR, '[data-name="requests"]').get_attribute("aria-sort") == "descending"
    row_of(browser, "simple").find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    until(lambda: browser.switch_to.active_element.get_attribute("id") == "detail-title")
    browser.find_element(By.XPATH, "//section[@id='detail']//button[text()='Close']").send_keys(Keys.ENTER)
    assert browser.switch_to.active_element.text == "simple"
    unnamed = browser.execute_script(
        "return [...document.querySelectorAll('input, select, textarea, button')].filter((each) =>"
        " !each.labels?.length && !each.textContent.trim() && !each.ariaLabel && !each.closest('[hidden]')).length"
    )
    assert unnamed == 0, "every control has a name"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(server: ServerProcess, browser: webdriver.Chrome, scheme: str) -> None:
    emulate_scheme(browser, scheme)
    opened(browser, server)

    def brightness() -> int:
        style = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"
        return int(browser.execute_script(style))

    assert (brightness() > 128) is (scheme == "light")
    other = "dark" if scheme == "light" else "light"
    theme = Select(browser.find_element(By.ID, "theme"))
    theme.select_by_value(other)
    assert (brightness() > 128) is (other == "light")
    opened(browser, server)
    assert (brightness() > 128) is (other == "light"), "it is remembered"
    Select(browser.find_element(By.ID, "theme")).select_by_value("")


def test_pausing_ends_the_stream(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    browser.find_element(By.ID, "pause").click()
    assert text_of(browser, "#live") == "paused"
    descriptors = Path(f"/proc/{server.pid}/fd")
    before = len(os.listdir(descriptors))
    browser.find_element(By.ID, "pause").click()
    until(lambda: text_of(browser, "#live") == "connected")
    assert len(os.listdir(descriptors)) <= before + 3


def test_a_server_that_stops_and_comes_back(repository: Path, browser: webdriver.Chrome) -> None:
    options = ["--model-control-mode=explicit", "--load-model=simple"]
    with serving(EXAMPLES, options=options) as first:
        opened(browser, first)
        port = first.http_port
    until(lambda: text_of(browser, "#live") == "not connected")
    assert "The page tries again" in text_of(browser, "#notice")
    with serving(EXAMPLES, options=[*options, f"--http-port={port}"]) as second:
        until(lambda: text_of(browser, "#live") == "connected")
        assert_serving(second)
        assert not browser.find_element(By.ID, "notice").is_displayed()


def test_behind_restrictions_and_of_two_workers(browser: webdriver.Chrome) -> None:
    options = [
        f"--http-restricted-api=statistics,logging,model-repository,health,metadata,inference:admin-key={KEY}",
        *("--model-control-mode=none", "--workers=2"),
    ]
    with serving(EXAMPLES, options=options) as server:
        for _ in range(6):
            http(server.http_port, "GET", "/v2/models/nosuch", headers={"admin-key": KEY})
        browser.get(f"http://{HOST}:{server.http_port}/console")
        until(lambda: text_of(browser, "#live") == "not allowed")
        assert "expecting header 'admin-key'" in text_of(browser, "#notice")
        assert "need the header 'admin-key'" in text_of(browser, "#log-note")
        assert not browser.find_element(By.ID, "log").is_displayed()
        assert violations(browser) == []
        browser.find_element(By.CSS_SELECTOR, "#secret-fields input").send_keys(KEY, Keys.ENTER)
        until(lambda: text_of(browser, "#live") == "connected")
        until(lambda: browser.find_element(By.ID, "log").is_displayed())
        assert "--model-control-mode=explicit" in text_of(browser, "#control-note")
        row_of(browser, "simple").find_element(By.TAG_NAME, "button").click()
        for _ in range(8):
            assert "OUTPUT0" in sent(browser).text
        until(lambda: "succeeded since load 8" in facts_of(browser))
        assert not browser.find_element(By.CSS_SELECTOR, '[data-verb="load"]').is_enabled()
        assert "this server has none" in text_of(browser, "#action-note")
        assert "workers 2 of 2 serving" in text_of(browser, "#facts").replace("\n", " ")
        until(lambda: browser.find_elements(By.CSS_SELECTOR, "#failure-rows tr"))
        assert "6 HTTP nosuch 404" in text_of(browser, "#failure-rows")


def test_the_pages_lead_to_each_other(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    browser.find_element(By.CSS_SELECTOR, "nav a").click()
    until(lambda: browser.find_element(By.ID, "console").is_displayed())
    browser.find_element(By.ID, "console").click()
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "body[data-ready]"))


def test_two_hundred_models(browser: webdriver.Chrome, tmp_path: Path) -> None:
    for number in range(200):
        write_identity(tmp_path, f"model_{number:03}")
    with serving_here(tmp_path) as server:
        opened(browser, server)
        until(lambda: text_of(browser, "#model-count") == "200 versions, 200 READY")
        browser.find_element(By.ID, "filter").send_keys("_19")
        assert len(browser.find_elements(By.CSS_SELECTOR, "#rows tr")) == 10
        with closing(HTTPConnection(HOST, server.http_port, timeout=SECONDS)) as connection:
            connection.request("GET", "/console/events")
            response = connection.getresponse()
            whole = response.readline() + response.readline()
            assert len(whole) < 250_000
            response.readline()
            assert len(response.readline() + response.readline()) < 2_000, "who is quiet is not written again"


def test_the_table_of_servers(browser: webdriver.Chrome) -> None:
    """This one, and one that is not there."""
    port, nobody = free_port(), free_port()
    own, other = f"http://{HOST}:{port}", f"http://{HOST}:{nobody}"
    options = [f"--http-port={port}", f"--peers={own},{other}", "--model-control-mode=explicit", "--load-model=simple"]
    with serving(EXAMPLES, options=options) as server:
        opened(browser, server)
        until(lambda: text_of(browser, "#peer-rows").startswith(f"{own} ready 1 "))
        assert text_of(browser, "#peer-rows").endswith(f"{other} Connection refused – – –")


def test_the_table_of_tenants(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """The browser sends a key with each call, as a proxy before the server may do."""
    key = {"x-api-key": "console-test-key-5a7c"}
    sha256 = hashlib.sha256(key["x-api-key"].encode()).hexdigest()
    user = {"name": "user", "tenant": "trial", "sha256": sha256, "scopes": {"*": ["infer", "read"]}}
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [user], "tenants": {"trial": {"requests_per_second": 0.001}}}))
    with serving_here(EXAMPLES, options=[f"--auth-file={file}"]) as server:
        browser.execute_cdp_cmd("Network.enable", {})
        browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": key})
        try:
            opened(browser, server)
            assert not browser.find_element(By.ID, "tenants").is_displayed()
            body, headers = binary_request(Ask())
            answers = [http(server.http_port, "POST", infer_path("simple"), body, {**headers, **key}) for _ in range(3)]
            assert [answer.status for answer in answers] == [200, 429, 429]
            until(lambda: text_of(browser, "#tenant-rows").startswith("trial "))
            until(lambda: text_of(browser, "#tenant-rows") == "trial 0 – 0 0 0 2")
        finally:
            browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {}})
