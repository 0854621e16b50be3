"""The live console for all: by keyboard alone, on small screens, to screen readers, and by axe-core's rules."""

from collections.abc import Iterator
from typing import Any

import pytest
from axe import COLOURS, violations, violations_in_every_look
from chromium import DESKTOP, PHONE, look, press, screen, until
from console_page import opened, row_of, sent, text_of
from repositories import EXAMPLES, write_identity
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from server_here import serving_here
from server_process import Server
from wire import http

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("desktop")]

BACKEND = "no_such_engine_with_a_long_name"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    write_identity(repository, "texts", "BYTES")
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "config.pbtxt").write_text(f'backend: "{BACKEND}"\n')
    options = ["--model-control-mode=explicit", "--load-model=*"]
    with serving_here(EXAMPLES, repository, options=options, errors=["broken"]) as running:
        for _ in range(3):
            http(running.http_port, "GET", "/v2/models/nosuch")
        yield running


def top_of(browser: webdriver.Chrome, selector: str) -> float:
    script = "return document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY"
    return float(browser.execute_script(script, selector))


def unfold(browser: webdriver.Chrome) -> None:
    """Show what the section of a model has folded away."""
    browser.execute_script("document.querySelectorAll('#detail details').forEach((each) => { each.open = true; })")


def tree(browser: webdriver.Chrome) -> list[tuple[str, str]]:
    """What a screen reader is told: the role and the name of each part, in order."""
    nodes: list[dict[str, Any]] = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]


def test_no_rule_of_axe_is_broken(server: Server, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "#failure-rows tr"))
    until(lambda: browser.find_element(By.ID, "log").is_displayed())
    assert violations_in_every_look(browser) == []
    for model in ("broken", "texts"):
        opened(browser, server, model, "" if model == "broken" else "1")
        if model != "broken":
            sent(browser)
        unfold(browser)
        assert violations_in_every_look(browser) == [], model


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pointer_is_seen_to_be_over_a_button(server: Server, browser: webdriver.Chrome, scheme: str) -> None:
    look(browser, scheme, DESKTOP)
    opened(browser, server, "texts")
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "#detail .request button[type=submit]"))
    send = browser.find_element(By.CSS_SELECTOR, "#detail .request button[type=submit]")
    usual = send.value_of_css_property("background-color")
    ActionChains(browser).move_to_element(send).perform()
    assert send.value_of_css_property("background-color") != usual
    assert violations(browser, COLOURS) == []


@pytest.mark.parametrize("width", [320, 390, 600, 768, 1024, 1216, 1280])
def test_nothing_scrolls_sideways(server: Server, browser: webdriver.Chrome, width: int) -> None:
    screen(browser, width, 900)
    opened(browser, server, "texts")
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "#failure-rows tr"))
    unfold(browser)
    script = "return [document.documentElement, ...document.querySelectorAll('.wide')].map((each) => "
    script += "each.scrollWidth - each.clientWidth)"
    assert browser.execute_script(script) == [0] * 5
    assert browser.find_element(By.CSS_SELECTOR, ".fewer").is_displayed() is (width < 1248)


def test_a_reason_is_as_wide_as_the_table_and_whole(server: Server, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    reason = browser.execute_script("return arguments[0].nextSibling.firstChild", row_of(browser, "broken"))
    assert BACKEND in reason.text
    assert reason.size["width"] >= 0.98 * browser.find_element(By.ID, "table").size["width"]
    assert browser.execute_script("return arguments[0].scrollHeight <= arguments[0].offsetHeight", reason)


def test_a_phone_has_the_models_first_and_a_model_above_them(server: Server, browser: webdriver.Chrome) -> None:
    screen(browser, *PHONE)
    opened(browser, server)
    assert top_of(browser, "#rows tr") < PHONE[1] / 2
    assert top_of(browser, "#models") < top_of(browser, "#tiles")
    opened(browser, server, "simple")
    assert top_of(browser, "#detail") < top_of(browser, "#models")
    place = browser.execute_script("return document.getElementById('detail').getBoundingClientRect().top")
    assert 0 <= place < PHONE[1] / 2, "it is in view"
    screen(browser, *DESKTOP)
    until(lambda: top_of(browser, "#tiles") < top_of(browser, "#models"))


def test_a_chart_has_lines_a_scale_and_a_legend(server: Server, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    chart = browser.find_element(By.CSS_SELECTOR, "#tiles .chart")
    until(lambda: [tick.text for tick in chart.find_elements(By.CSS_SELECTOR, ".ticks span")][2:] == ["0"])
    top, half, _ = [float(tick.text) for tick in chart.find_elements(By.CSS_SELECTOR, ".ticks span")]
    assert top == 2 * half > 0
    assert [time.text for time in chart.find_elements(By.CSS_SELECTOR, ".times span")][2] == "now"
    assert len(chart.find_elements(By.CSS_SELECTOR, ".grid")) == 6
    assert chart.text.split("\n")[0] == "Requests per second"
    assert "0/s" in chart.text
    assert "0 failed" in chart.text
    assert [key.get_attribute("class") for key in chart.find_elements(By.TAG_NAME, "i")] == ["key a", "key b"]


def test_the_scale_of_a_chart_ends_at_a_round_number(server: Server, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    values = [0.03, 1, 1.01, 3, 4.1, 7, 10, 99, 1000, 123456]
    # The page's script is no module: its functions are known to what is evaluated.
    tops = f"{values}.map(topOf).map((top) => Number(top.toPrecision(6)))"
    answer = browser.execute_cdp_cmd("Runtime.evaluate", {"expression": tops, "returnByValue": True})
    assert answer["result"]["value"] == [0.04, 1, 2, 4, 5, 10, 10, 100, 1000, 200000]


def focus(browser: webdriver.Chrome) -> tuple[str, str]:
    """The role and the name of what has the focus, which is in view and marked; no name past the end of the page."""
    script = "const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();"
    script += "return [style.outlineStyle, parseFloat(style.outlineWidth), box.bottom > 0 && box.top < innerHeight];"
    element = browser.switch_to.active_element
    if element.tag_name == "body":
        return "", ""
    style, width, in_view = browser.execute_script(script)
    assert (style != "none", width >= 1, in_view) == (True, True, True), element.get_attribute("outerHTML")
    return element.aria_role, element.accessible_name


def walk(browser: webdriver.Chrome, name: str, most: int = 120) -> list[tuple[str, str]]:
    """Press the tab key until what is called so has the focus; what had it on the way."""
    way: list[tuple[str, str]] = []
    while not way or way[-1][1] != name:
        assert len(way) < most, f"{name!r} is not reached: {way}"
        press(browser, Keys.TAB)
        way.append(focus(browser))
    return way


def test_a_request_by_keyboard_alone(server: Server, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    walk(browser, "Skip to the models")
    press(browser, Keys.ENTER)
    way = walk(browser, "texts")
    assert ("searchbox", "Filter") in way
    assert ("button", "requests/s") in way
    press(browser, Keys.ENTER)
    until(lambda: browser.switch_to.active_element.get_attribute("id") == "detail-title")
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "#detail [data-input]"))
    walk(browser, "Data of INPUT0")
    press(browser, " by keyboard")
    walk(browser, "Send")
    press(browser, Keys.ENTER)
    until(lambda: "by keyboard" in text_of(browser, "#detail .request .result"))
    opened(browser, server, "texts")
    walk(browser, "Close")
    press(browser, Keys.ENTER)
    assert focus(browser) == ("button", "texts")


def test_every_control_is_reached_and_none_holds_the_focus(server: Server, browser: webdriver.Chrome) -> None:
    opened(browser, server, "texts")
    until(lambda: browser.find_element(By.ID, "log").is_displayed())
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "#detail [data-input]"))
    controls = "a, button:enabled, input, select, textarea, summary, [tabindex='0']"
    script = f"return [...document.querySelectorAll(`{controls}`)].filter((each) => each.checkVisibility() && "
    script += "!each.dataset.seen).map((each) => each.outerHTML.slice(0, 99))"
    count = len(browser.execute_script(script))
    assert count > 40
    browser.execute_script("document.addEventListener('focusin', (event) => { event.target.dataset.seen = '1'; })")
    browser.execute_script("getSelection().removeAllRanges(); document.activeElement.blur(); document.body.focus()")
    walk(browser, "Skip to the models")
    for _ in range(count):
        press(browser, Keys.TAB)
    assert browser.execute_script(script) == []


def test_the_points_of_a_chart_are_read_by_keyboard(server: Server, browser: webdriver.Chrome) -> None:
    opened(browser, server)
    chart = browser.find_element(By.CSS_SELECTOR, "#tiles .chart")
    legend = chart.find_element(By.CSS_SELECTOR, ".legend")
    until(lambda: len((chart.find_element(By.CSS_SELECTOR, ".line.a").get_attribute("d") or "").split("L")) > 3)
    walk(browser, chart.find_element(By.TAG_NAME, "svg").accessible_name)
    press(browser, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    until(lambda: "s ago:" in legend.text)
    svg = chart.find_element(By.TAG_NAME, "svg")
    assert "seconds ago: " in (svg.get_attribute("aria-valuetext") or "")
    press(browser, Keys.ESCAPE)
    until(lambda: "s ago:" not in legend.text)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_what_a_screen_reader_is_told(server: Server, browser: webdriver.Chrome, size: tuple[int, int]) -> None:
    screen(browser, *size)
    opened(browser, server)
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "#failure-rows tr"))
    parts = tree(browser)
    headings = [name.split(" ")[0] for role, name in parts if role == "heading"]
    order = ["Overview", "Models"] if size == DESKTOP else ["Models", "Overview"]
    assert headings == ["modserve", *order, "Recent", "Log"]
    assert {"banner", "navigation", "main", "status"} <= {role for role, _ in parts}
    columns = [name for role, name in parts if role == "columnheader"]
    assert columns[:2] == (["model", "version"] if size == DESKTOP else ["model", "state"])
    assert columns[-2:] == ["status", "message"]
    assert next(role for role, name in parts if role == "rowheader" and name.startswith("broken"))
    assert any(role == "slider" and name.startswith("Latency, the last three minutes") for role, name in parts)
    assert any(role == "cell" and BACKEND in name for role, name in parts)
