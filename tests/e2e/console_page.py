"""The live console in a browser: opening it, and what tests read in it and press."""

import json
from urllib.parse import urlencode

from chromium import until
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from server_process import Server
from wire import HOST


def opened(browser: webdriver.Chrome, server: Server, model: str = "", version: str = "1") -> webdriver.Chrome:
    """The console, with figures; with the section of a model, if one is named."""
    browser.get("about:blank")
    place = f"#{urlencode({'model': model, 'version': version})}" if model else ""
    browser.get(f"http://{HOST}:{server.http_port}/{place}")
    until(lambda: browser.find_elements(By.CSS_SELECTOR, "body[data-ready]"))
    if model:
        until(lambda: browser.find_elements(By.CSS_SELECTOR, "#detail .request, #detail [data-verb]"))
    return browser


_ROW = """return [...document.querySelectorAll("#rows tr")].find(
    (row) => row.querySelector("button")?.textContent === arguments[0]);"""


def text_of(browser: webdriver.Chrome, selector: str) -> str:
    return browser.find_element(By.CSS_SELECTOR, selector).text


def row_of(browser: webdriver.Chrome, name: str) -> WebElement:
    row: WebElement = browser.execute_script(_ROW, name)
    return row


def text_of_row(browser: webdriver.Chrome, name: str) -> str:
    """With the row of its reason below it. In one step: the row may be another one the next moment."""
    row = f"(() => {{ {_ROW} }})()".replace("arguments[0]", json.dumps(name))
    script = f"const row = {row}; return [row, row?.nextSibling?.matches('.why') && row.nextSibling]"
    text: str = browser.execute_script(f"{script}.map((each) => each?.innerText || '').join(' ')")
    return text


def sent(browser: webdriver.Chrome) -> WebElement:
    """Press the button of the form; the result, when it is complete."""
    button = "#detail .request button[type=submit]"
    until(lambda: browser.find_elements(By.CSS_SELECTOR, button))
    browser.find_element(By.CSS_SELECTOR, button).click()
    until(lambda: text_of(browser, "#detail .request .result > p") not in ("", "…"))
    return browser.find_element(By.CSS_SELECTOR, "#detail .request .result")
