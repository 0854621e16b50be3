"""Fixtures for tests that call a server: ``pytest_plugins = ["modserve.testing.pytest_plugin"]`` in a ``conftest.py``.

pytest does not load this plugin automatically: it would then rewrite the assertions of all of modserve in every test
run where modserve is installed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from modserve.settings import Settings

    from .serving import Serving

_OPTION = "modserve_models"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_OPTION, "model repository or model file of the fixture modserve_server, from the root directory")


@pytest.fixture(scope="session")
def modserve_models(pytestconfig: pytest.Config) -> "str | Path | Settings":
    """Return the models of `modserve_server`: the option ``modserve_models``. Override it to serve others."""
    value = str(pytestconfig.getini(_OPTION))
    if not value:
        raise pytest.UsageError(
            f"modserve_server has nothing to serve: set {_OPTION} in pytest's options, or override this fixture"
        )
    return value if "://" in value else pytestconfig.rootpath / value


@pytest.fixture(scope="session")
def modserve_server(modserve_models: "str | Path | Settings") -> "Iterator[Serving]":
    """Yield a server on free ports, shared by all tests of the session: `modserve.testing.Serving`."""
    from .serving import serve

    with serve(modserve_models) as serving:
        yield serving
