"""Debian's Chromium without a screen, driven by selenium: what tests of all pages read in it and press."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

T = TypeVar("T")
TestT = TypeVar("TestT", bound=Callable[..., None])

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


_SIZES = pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
_SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])


def in_every_look(test: TestT) -> TestT:
    """Run a test with `size` and `scheme` for `look`: on a desktop's screen and a phone's, light and dark."""
    every: TestT = _SCHEMES(_SIZES(test))
    return every


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


def shown(browser: webdriver.Chrome, selector: str) -> list[str]:
    """The texts of the elements that are seen."""
    return [each.text for each in browser.find_elements(By.CSS_SELECTOR, selector)]
