"""axe-core, the accessibility checker, in a page that Debian's Chromium shows."""

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

PACKAGE = "axe-core@4.14.1"
_PLACE = Path(__file__).resolve().parents[2] / "build" / "axe"

_RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"], rules: {"target-size": {enabled: true}}}).then(
  (result) => done({violations: result.violations, passes: result.passes.length}), (error) => done(String(error)));
"""


def script() -> str:
    """The checker's source, from npm's registry; kept in build/, where it is there for the next run."""
    source = _PLACE / "node_modules" / "axe-core" / "axe.min.js"
    if not source.exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed")
        _PLACE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_PLACE.parent) as folder:  # files of tests run side by side
            command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder, PACKAGE]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            except subprocess.TimeoutExpired:
                pytest.skip("npm's registry does not answer")
            if done.returncode:
                pytest.skip(f"npm's registry cannot be reached: {done.stderr[-200:]}")
            with suppress(OSError):  # another was first
                (Path(folder) / "node_modules").rename(_PLACE / "node_modules")
    return source.read_text("utf-8")


def violations(browser: webdriver.Chrome) -> list[str]:
    """What breaks a rule in the page as it stands, each with the rule, the element and what is wrong."""
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": script()})  # which no policy of the page forbids
    result: Any = browser.execute_async_script(_RUN)
    assert isinstance(result, dict), result
    assert result["passes"] > 10, "the checker looked at something"
    return [
        f"{rule['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for rule in result["violations"]
        for node in rule["nodes"]
    ]
