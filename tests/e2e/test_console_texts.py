"""The chat and the box of texts on the pages of models, in a real browser: with programs, and with real models."""

import re
import shutil
from collections.abc import Iterator

import pytest
from axe import violations_in_every_look
from chromium import DESKTOP, PHONE, asked_of, log, press, screen, shown, until
from console_page import opened, text_of
from minilm_folder import classifier, minilm, ranker, tagger
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from server_process import ServerProcess, serving
from text_models import FUNCTIONS, write_metered, write_speaker
from wire import http

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("desktop")]

HOSTILE = "<img src=x onerror=document.title='hacked'><b>bold</b>"
PACED = FUNCTIONS.replace("    while True:\n", '    while True:\n        __import__("time").sleep(0.003)\n')
"""The model without an end says 300 words a second: at full speed it reaches the page's limit before a slow browser has
pressed a button."""
FUNCTION_NAMES = ("shout", "recite", "endless", "add")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("texts")
    write_speaker(folder / "models")
    write_speaker(folder / "models", "raw", None)
    write_speaker(folder / "models", "hurt", "{{ broken")
    write_metered(folder / "models")
    first = write_speaker(folder / "models", "twice")
    shutil.copytree(first, first.with_name("2"))
    with (first.parent / "config.pbtxt").open("a") as config:
        config.write("version_policy { all { } }\n")
    functions = folder / "functions.py"
    assert PACED != FUNCTIONS
    functions.write_text(PACED)
    models = [f"minilm={minilm()}", f"ranker={ranker()}", f"classifier={classifier()}", f"tagger={tagger()}"]
    models += [f"{functions}:{name}" for name in FUNCTION_NAMES]
    with serving(folder / "models", options=models) as running:
        yield running


def opened_box(browser: webdriver.Chrome, server: ServerProcess, model: str) -> None:
    opened(browser, server, model)
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "#detail .text-place > *"))


def say(browser: webdriver.Chrome, text: str) -> None:
    """Type a message and press the enter key."""
    field = browser.find_element(By.CSS_SELECTOR, ".chat > form > textarea")
    field.clear()
    field.send_keys(text, Keys.ENTER)


def turns(browser: webdriver.Chrome) -> list[str]:
    return shown(browser, ".turn .words")


def status(browser: webdriver.Chrome) -> str:
    return text_of(browser, ".figures")


def over(browser: webdriver.Chrome) -> bool:
    """Whether the model has said everything, or will not."""
    (button,) = browser.find_elements(By.CSS_SELECTOR, ".chat button[type=submit]")
    return button.text == "Send"


def press_button(browser: webdriver.Chrome, xpath: str) -> None:
    """By the enter key: while a text grows, a button may have moved when a click reaches its place."""
    browser.find_element(By.XPATH, xpath).send_keys(Keys.ENTER)


def canceled(server: ServerProcess, model: str) -> int:
    page = http(server.metrics_port, "GET", "/metrics").body.decode()
    pattern = rf'nv_inference_request_failure\{{model="{model}",reason="CANCELED",version="1"\}} (\d+)'
    counts = re.findall(pattern, page)
    return int(counts[0]) if counts else 0


def test_a_conversation_with_figures_and_history(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened_box(browser, server, "speaker")
    asked_of(browser)
    say(browser, "hello big world")
    until(lambda: over(browser) and len(turns(browser)) == 2)
    assert turns(browser) == ["hello big world", "<user> hello big world <bos>"]
    assert re.fullmatch(r"first token after [\d.]+ m?s, 5 tokens, prompt of 5(, [\d,.]+ tokens/s)?", status(browser))
    say(browser, "and you")
    until(lambda: over(browser) and len(turns(browser)) == 4)
    whole = "<user> hello big world <assistant> <user> hello big world <bos> <user> and you <bos>"
    assert turns(browser)[3] == whole
    opened(browser, server)
    browser.execute_script("location.hash = 'model=minilm&version=1'")
    until(lambda: browser.find_elements(By.CSS_SELECTOR, ".texts"))
    assert next(address for address in asked_of(browser) if "/v1/" in address).endswith("/v1/chat/completions")
    assert [entry for entry in log(browser, "browser") if entry["level"] == "SEVERE"] == []


def test_a_thought_is_apart(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened_box(browser, server, "speaker")
    say(browser, "SAY:<think> hm </think> yes")
    until(lambda: over(browser) and len(turns(browser)) == 3)
    assert turns(browser)[1:] == ["hm", "yes <bos>"]
    assert shown(browser, ".turn .words.soft") == ["hm"]


def test_a_conversation_lasts_until_a_new_one_begins(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened_box(browser, server, "speaker")
    say(browser, "remember me")
    until(lambda: over(browser) and len(turns(browser)) == 2)
    for model, place in (("shout", ".chat"), ("speaker", ".turn")):
        browser.execute_script("location.hash = arguments[0]", f"model={model}&version=1")
        until(lambda place=place, model=model: model in text_of(browser, "#detail-title") and shown(browser, place))  # type: ignore[misc]
    assert turns(browser)[0] == "remember me"
    browser.find_element(By.XPATH, "//button[text()='New chat']").click()
    assert turns(browser) == []
    say(browser, "hello")
    until(lambda: over(browser) and len(turns(browser)) == 2)
    assert turns(browser)[1] == "<user> hello <bos>"


def test_settings_reach_the_model(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened_box(browser, server, "speaker")
    browser.find_element(By.CSS_SELECTOR, ".chat summary").click()
    values = {"system": "be brief", "temperature": "0.5", "max_tokens": "40"}
    for name, value in values.items():
        browser.find_element(By.CSS_SELECTOR, f'[data-setting="{name}"]').send_keys(value)
    say(browser, "PARAMETERS")
    until(lambda: over(browser) and len(turns(browser)) == 2)
    assert turns(browser)[1] == '{"max_tokens": 40, "temperature": 0.5, "top_p": 0.9}'
    browser.find_element(By.CSS_SELECTOR, '[data-setting="max_tokens"]').send_keys(Keys.BACKSPACE, Keys.BACKSPACE)
    say(browser, "PARAMETERS")
    until(lambda: over(browser) and len(turns(browser)) == 4)
    assert turns(browser)[3] == '{"max_tokens": 1024, "temperature": 0.5, "top_p": 0.9}', "what suits the model"
    browser.find_element(By.XPATH, "//button[text()='New chat']").click()
    say(browser, "hello")
    until(lambda: over(browser) and len(turns(browser)) == 2)
    assert turns(browser)[1] == "<system> be brief <user> hello <bos>"
    opened_box(browser, server, "shout")
    assert browser.find_elements(By.CSS_SELECTOR, '[data-setting="temperature"]') == [], "it takes none"


def test_what_a_model_says_is_text(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened_box(browser, server, "speaker")
    say(browser, f"SAY:{HOSTILE}")
    until(lambda: over(browser) and len(turns(browser)) == 2)
    assert turns(browser)[1].startswith(HOSTILE)
    assert browser.find_elements(By.CSS_SELECTOR, "#detail img, .turn b") == []
    opened_box(browser, server, "minilm")
    write_texts(browser, [HOSTILE, "another"])
    assert HOSTILE in text_of(browser, ".matrix")
    opened_box(browser, server, "tagger")
    write_texts(browser, [HOSTILE])
    assert "<img" in text_of(browser, ".marked")
    assert browser.find_elements(By.CSS_SELECTOR, "#detail img, #detail b") == []
    assert browser.title == "modserve"


def test_stopping_cancels_on_the_server(server: ServerProcess, browser: webdriver.Chrome) -> None:
    before = canceled(server, "endless")
    opened_box(browser, server, "endless")
    say(browser, "on and on")
    until(lambda: len(turns(browser)) == 2 and len(turns(browser)[1]) > 50)
    press_button(browser, "//form[ancestor::*[contains(@class, 'chat')]]//button[@type='submit']")
    until(lambda: canceled(server, "endless") == before + 1)
    until(lambda: re.fullmatch(r"stopped, first token after .*, [\d,]+ pieces, [\d,.]+ pieces/s", status(browser)))
    assert turns(browser)[1].startswith("on and on on and on")
    say(browser, "again")
    until(lambda: len(turns(browser)) == 4 and len(turns(browser)[3]) > 50)
    press_button(browser, "//section[@id='detail']//button[text()='Close']")
    until(lambda: canceled(server, "endless") == before + 2)
    opened_box(browser, server, "endless")
    say(browser, "once more")
    until(lambda: len(turns(browser)) == 2 and len(turns(browser)[1]) > 50)
    press_button(browser, "//button[text()='New chat']")
    until(lambda: canceled(server, "endless") == before + 3)
    assert turns(browser) == []


def test_a_text_without_an_end_is_stopped(server: ServerProcess, browser: webdriver.Chrome) -> None:
    before = canceled(server, "endless")
    opened_box(browser, server, "endless")
    say(browser, "x" * 2000)
    until(lambda: "longer than 200,000 characters" in status(browser))
    until(lambda: canceled(server, "endless") == before + 1)


def test_errors_are_messages(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened_box(browser, server, "speaker")
    say(browser, "FAIL:2 three four")
    until(lambda: "the speaker has lost its voice" in status(browser))
    assert turns(browser)[1] == "<user> FAIL:2 ", "what came before stays"
    browser.find_element(By.CSS_SELECTOR, ".chat summary").click()
    browser.find_element(By.CSS_SELECTOR, '[data-setting="temperature"]').send_keys("-1")
    browser.execute_script("document.querySelector('.chat form').noValidate = true")
    say(browser, "too cold")
    until(lambda: "temperature" in status(browser))
    assert len(turns(browser)) == 2
    assert browser.find_element(By.CSS_SELECTOR, ".chat > form > textarea").get_property("value") == "too cold"
    opened_box(browser, server, "hurt")
    assert "chat template" in text_of(browser, ".text-place .notice")


def test_texts_of_a_model_without_a_template_are_continued(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened_box(browser, server, "raw")
    assert text_of(browser, ".chat h3") == "Continue a text"
    say(browser, "hello big world")
    until(lambda: over(browser) and len(turns(browser)) == 2)
    assert turns(browser)[1] == "hello big world"


def test_functions_chat_and_models_of_tensors_do_not(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened_box(browser, server, "shout")
    say(browser, "hello")
    until(lambda: over(browser) and len(turns(browser)) == 2)
    assert turns(browser)[1] == "HELLO"
    assert re.fullmatch(r"first token after [\d.]+ m?s, 1 piece", status(browser))
    opened(browser, server, "add")
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "#detail [data-input]"))
    assert browser.find_elements(By.CSS_SELECTOR, ".text-place > *") == []


def test_an_older_version_says_where_texts_go(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened(browser, server, "twice", "1")
    until(lambda: shown(browser, ".text-place .notice") == ["Calls of texts go to version 2 of this model."])
    opened(browser, server, "twice", "2")
    until(lambda: shown(browser, ".chat"))


def test_an_answer_is_copied(server: ServerProcess, browser: webdriver.Chrome) -> None:
    permissions = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.execute_cdp_cmd("Browser.grantPermissions", permissions)
    opened_box(browser, server, "speaker")
    say(browser, "copy that")
    until(lambda: over(browser) and len(turns(browser)) == 2)
    button = browser.find_elements(By.CSS_SELECTOR, ".turn button")[1]
    button.click()
    until(lambda: button.text == "Copied")
    script = "const done = arguments[0]; navigator.clipboard.readText().then(done, (error) => done(String(error)))"
    assert browser.execute_async_script(script).rstrip() == turns(browser)[1]


def legend(browser: webdriver.Chrome, title: str) -> str:
    """Of a chart of the model."""
    (chart,) = [each for each in shown(browser, "#detail .chart") if each.startswith(f"{title}\n")]
    return chart.split("\n", 1)[1]


def test_tokens_are_in_the_charts(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened_box(browser, server, "metered")
    say(browser, "hello")
    until(lambda: "tokens generated 7" in text_of(browser, "#detail .facts").replace("\n", " "))
    until(lambda: "25 %" in legend(browser, "KV cache"))
    assert "2 running\n1 waiting" in legend(browser, "Running / waiting outputs")
    for title in ("Time to first token", "Time between tokens"):
        until(lambda title=title: browser.execute_script(LINE, title))  # type: ignore[misc]
    assert browser.execute_script(LINE, "Tokens per second")


def test_responses_are_in_the_charts_of_other_models(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened_box(browser, server, "speaker")
    say(browser, "one two three")
    for title in ("Time to first response", "Time between responses"):
        until(lambda title=title: browser.execute_script(LINE, title))  # type: ignore[misc]
    assert "Tokens per second" not in text_of(browser, "#detail .tiles")
    opened(browser, server, "add")
    until(lambda: shown(browser, "#detail .chart"))
    assert "Time" not in text_of(browser, "#detail .tiles")


LINE = """return [...document.querySelectorAll("#detail .chart")].filter(
    (each) => each.querySelector("figcaption span").textContent === arguments[0]
    && each.querySelector("path.line.a").getAttribute("d").startsWith("M")).length"""
"""Whether the chart with this title has a line."""


# Texts


def write_texts(browser: webdriver.Chrome, texts: list[str], query: str | None = None) -> None:
    """Fill in the form and send it; returns with the result."""
    for name, text in (("query", query), ("texts", "\n".join(texts))):
        if text is not None:
            field = browser.find_element(By.CSS_SELECTOR, f'[data-text="{name}"]')
            field.clear()
            field.send_keys(text)
    browser.find_element(By.CSS_SELECTOR, ".texts button[type=submit]").click()
    until(lambda: text_of(browser, ".texts .result > p") not in ("", "…"))


def ranks(browser: webdriver.Chrome) -> list[str]:
    return shown(browser, ".ranks td.text")


def test_embeddings_are_compared(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened_box(browser, server, "minilm")
    log(browser, "browser")  # what others have left there
    write_texts(browser, ["A man plays guitar", "Someone strums an instrument", "Stocks fell today"])
    until(lambda: shown(browser, ".matrix tbody tr"))
    rows = [re.findall(r"-?\d\.\d\d", row) for row in shown(browser, ".matrix tbody tr")]
    assert [len(row) for row in rows] == [3, 3, 3]
    assert [rows[each][each] for each in range(3)] == ["1.00"] * 3
    assert float(rows[0][1]) > 0.5 > float(rows[0][2])
    cells = browser.find_elements(By.CSS_SELECTOR, ".matrix tbody tr:first-child td")
    assert len({cell.value_of_css_property("background-color") for cell in cells}) == 3, "the darker, the more alike"
    assert [entry for entry in log(browser, "browser") if entry["level"] == "SEVERE"] == []
    assert ranks(browser)[0] == "1 A man plays guitar\n2 Someone strums an instrument"
    assert "384 dimensions" in text_of(browser, ".texts .result > p")
    write_texts(browser, ["Stocks fell today", "Someone strums an instrument"], "music")
    until(lambda: ranks(browser) == ["Someone strums an instrument", "Stocks fell today"])


def test_texts_are_ranked_and_labelled(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened_box(browser, server, "ranker")
    write_texts(browser, ["one", "two", "three"], "which?")
    until(lambda: sorted(ranks(browser)) == ["one", "three", "two"])
    scores = [float(text) for text in shown(browser, ".ranks .score")]
    assert scores == sorted(scores, reverse=True)
    opened_box(browser, server, "classifier")
    write_texts(browser, ["good", "bad"])
    until(lambda: shown(browser, ".texts .result h4") == ["good", "bad"])
    assert sorted(ranks(browser)) == ["label 0", "label 0", "label 1", "label 1", "label 2", "label 2"]
    opened_box(browser, server, "tagger")
    write_texts(browser, ["😀 Anna lives in Paris"])
    until(lambda: [mark.split()[0] for mark in shown(browser, "mark")] == ["Anna", "Paris"])


def test_mistakes_in_texts_are_messages(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened_box(browser, server, "ranker")
    write_texts(browser, ["one"], "")
    assert text_of(browser, ".texts .result > p") == "A query is missing."
    opened_box(browser, server, "minilm")
    write_texts(browser, [" "])
    assert text_of(browser, ".texts .result > p") == "There are no texts."


# For all


def test_no_rule_of_axe_is_broken(server: ServerProcess, browser: webdriver.Chrome) -> None:
    opened_box(browser, server, "speaker")
    browser.find_element(By.CSS_SELECTOR, ".chat summary").click()
    for text in ("hello", "FAIL:2 some words", *["and on"] * 8):
        count = len(turns(browser))
        say(browser, text)
        until(lambda count=count: over(browser) and len(turns(browser)) == count + 2)  # type: ignore[misc]
    assert violations_in_every_look(browser) == []
    for model, query in (
        ("minilm", None),
        ("minilm", "music"),
        ("ranker", "which?"),
        ("classifier", None),
        ("tagger", None),
    ):
        opened_box(browser, server, model)
        write_texts(
            browser, ["Anna plays the guitar in Paris", "Someone strums an instrument", "Stocks fell"] * 5, query
        )
        until(lambda: browser.find_elements(By.CSS_SELECTOR, ".ranks, .marked"))
        assert violations_in_every_look(browser) == [], (model, query)
        for size in (PHONE, DESKTOP):
            screen(browser, *size)
            assert browser.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_chat_by_keyboard_on_a_phone(server: ServerProcess, browser: webdriver.Chrome) -> None:
    screen(browser, *PHONE)
    opened_box(browser, server, "speaker")
    for _ in range(60):
        press(browser, Keys.TAB)
        if browser.switch_to.active_element.accessible_name == "Message":
            break
    browser.switch_to.active_element.send_keys("one", Keys.SHIFT, Keys.ENTER, Keys.NULL, "two")
    assert browser.switch_to.active_element.get_property("value") == "one\ntwo"
    press(browser, Keys.ENTER)
    until(lambda: over(browser) and len(turns(browser)) == 2)
    assert turns(browser)[0] == "one\ntwo"
    assert browser.switch_to.active_element.accessible_name == "Message"
    press(browser, Keys.TAB)
    assert browser.switch_to.active_element.text == "Send"
    press(browser, Keys.TAB, Keys.ENTER)
    assert turns(browser) == []
    assert browser.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0
