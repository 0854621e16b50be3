"""axe-core, the accessibility checker, in a page that Debian's Chromium shows."""

from collections.abc import Sequence
from typing import Any

import pytest
from chromium import DESKTOP, PHONE, look
from node_packages import NoPackagesError, node_modules
from selenium import webdriver

_RUN = """
const [only, done] = arguments;
const options = {resultTypes: ["violations"], rules: {"target-size": {enabled: true}}};
axe.run(document, only.length ? {...options, runOnly: only} : options).then(
  (result) => done({violations: result.violations, passes: result.passes.length}), (error) => done(String(error)));
"""
COLOURS = ("color-contrast", "link-in-text-block")
"""The rules about colours: all else of a page is the same in the other scheme."""


def script() -> str:
    """The checker's source."""
    try:
        return (node_modules("axe") / "axe-core" / "axe.min.js").read_text("utf-8")
    except NoPackagesError as error:
        pytest.skip(str(error))


def violations(browser: webdriver.Chrome, only: Sequence[str] = ()) -> list[str]:
    """What breaks a rule in the page as it stands, each with the rule, the element and what is wrong.

    `only`: the names of the rules, if not all count.
    """
    if not browser.execute_script("return 'axe' in window"):  # it stays as long as the page
        browser.execute_cdp_cmd("Runtime.evaluate", {"expression": script()})  # which no policy of the page forbids
    result: Any = browser.execute_async_script(_RUN, list(only))
    assert isinstance(result, dict), result
    assert result["passes"] > (0 if only else 10), "the checker looked at something"
    return [
        f"{rule['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for rule in result["violations"]
        for node in rule["nodes"]
    ]


def violations_in_every_look(browser: webdriver.Chrome) -> list[str]:
    """`violations` of the page as it stands, on a phone's screen and a desktop's, light and dark; light in the end.

    Only colours depend on the scheme, so that the dark pages are checked by the rules about colours.
    """
    broken = []
    for size in (PHONE, DESKTOP):
        for scheme, only in (("dark", COLOURS), ("light", ())):
            look(browser, scheme, size)
            broken += [f"{scheme}, {size}: {each}" for each in violations(browser, only)]
    return broken
