"""Debian's Chromium without a screen, driven by selenium."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver

SECONDS = 30.0
"""In which what the browser is to show is there."""

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
