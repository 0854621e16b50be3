"""axe-core, the accessibility checker, in a page that Debian's Chromium shows."""

from typing import Any

import pytest
from node_packages import NoPackagesError, node_modules
from selenium import webdriver

_RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"], rules: {"target-size": {enabled: true}}}).then(
  (result) => done({violations: result.violations, passes: result.passes.length}), (error) => done(String(error)));
"""


def script() -> str:
    """The checker's source."""
    try:
        return (node_modules("axe") / "axe-core" / "axe.min.js").read_text("utf-8")
    except NoPackagesError as error:
        pytest.skip(str(error))


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
