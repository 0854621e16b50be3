"""Debian's Chromium without a screen, driven by selenium: what tests of all pages read in it and press."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains

T = TypeVar("T")

SECONDS = 30.0
"""In which what the browser is to show is there."""

DESKTOP, PHONE = (1280, 1000), (390, 844)

_OPTIONS = (
    "--headless",
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    # What a browser looks up by itself has nothing to do with the page.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # One process shows all pages, which are those of the tests' own servers: a new one costs more than the page.
    "--process-per-site",
    "--disable-site-isolation-trials",
    "--disable-features=SpareRendererForSitePerProcess,BackForwardCache,IsolateOrigins,site-per-process",
)


@contextmanager
def chromium(folder: Path, *more: str) -> Iterator[webdriver.Chrome]:
    """A browser that keeps what it keeps in `folder`."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert program is not None, "this test needs Debian's package chromium"
    assert driver is not None, "this test needs Debian's package chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in (*_OPTIONS, *more, f"--user-data-dir={folder}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    running = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        yield running
    finally:
        running.quit()


def log(browser: webdriver.Chrome, kind: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = browser.get_log(kind)  # type: ignore[no-untyped-call]
    return entries


def asked_of(browser: webdriver.Chrome) -> list[str]:
    """The addresses that were looked up over the network since the last time; not the browser's own pages."""
    messages = [json.loads(entry["message"])["message"] for entry in log(browser, "performance")]
    addresses = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [address for address in addresses if urlsplit(address).scheme in ("http", "https", "ws", "wss")]


def emulate_scheme(browser: webdriver.Chrome, scheme: str) -> None:
    """Let the system prefer ``light`` or ``dark``."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def screen(browser: webdriver.Chrome, width: int, height: int) -> None:
    """Let the page believe that it is on a screen of this size; windows have a least one."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def look(browser: webdriver.Chrome, scheme: str, size: tuple[int, int]) -> None:
    screen(browser, *size)
    emulate_scheme(browser, scheme)


def until(fact: Callable[[], T]) -> T:
    """What `fact` returns, as soon as that is true. Elements that it reads may be replaced in the meantime."""
    deadline = time.monotonic() + SECONDS
    while True:
        with suppress(StaleElementReferenceException):
            if value := fact():
                return value
        assert time.monotonic() < deadline, f"not true within {SECONDS} s"
        time.sleep(0.05)


def press(browser: webdriver.Chrome, *keys: str) -> None:
    ActionChains(browser).send_keys(*keys).perform()


_SHOWN = """return [...document.querySelectorAll(arguments[0])].map((each) =>
    each.checkVisibility({visibilityProperty: true})
        ? each.innerText.replaceAll("\\t", " ").replace(/^\\n+|\\n+$/g, "") : "");"""


def shown(browser: webdriver.Chrome, selector: str) -> list[str]:
    """The texts of the elements as they are seen. One call of the browser, however many elements there are."""
    texts: list[str] = browser.execute_script(_SHOWN, selector)
    return texts
