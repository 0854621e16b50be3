"""The server most end-to-end tests talk to, started once."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from open_server import OpenServer
from python_models import MODES, PROTOCOLS
from repositories import CONFIG_TYPES, EXAMPLES, ONNX_TYPES, write_identity, write_onnx_identity
from server_process import ServerProcess, serving

from file_seconds import longest_first

if TYPE_CHECKING:
    from selenium import webdriver

MAX_JSON = 200_000


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    longest_first(items, config)


@pytest.fixture(scope="session")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`identity_<type>` and `onnx_<type>` for every datatype, and `scraped`, which one test has for itself."""
    repository = tmp_path_factory.mktemp("identities")
    for datatype in CONFIG_TYPES:
        write_identity(repository, f"identity_{datatype}", datatype)
    for datatype in ONNX_TYPES:
        write_onnx_identity(repository, f"onnx_{datatype}", datatype)
    write_identity(repository, "scraped")
    return repository


@pytest.fixture(scope="session")
def server(identities: Path) -> Iterator[ServerProcess]:
    """Serves the example models and `identities`; takes up to `MAX_JSON` bytes of JSON.

    Whatever the tests send it, its log must be free of errors in the end. Good models let it start with
    ``--exit-on-error``, too.
    """
    options = [f"--http-max-input-size={MAX_JSON}", "--exit-on-error=true"]
    with serving(EXAMPLES, identities, options=options) as running:
        yield running


@pytest.fixture(scope="session")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenServer]:
    """Hosts the models of tests that need no server of their own; its cache is for models that ask for it."""
    options = ["--cache-config=local,size=1000000", "--allow-client-shm=true"]
    with OpenServer.opened(tmp_path_factory.mktemp("open"), options) as server:
        yield server


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """How a model of `python_models.write_python` runs."""
    return str(request.param)


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[webdriver.Chrome]":
    from chromium import chromium

    with chromium(tmp_path_factory.mktemp("browser"), "--window-size=1280,1000", "--hide-scrollbars") as running:
        yield running


@pytest.fixture
def desktop(browser: "webdriver.Chrome") -> None:
    """The browser has the screen of a desktop at the beginning of the test."""
    from chromium import DESKTOP, screen

    screen(browser, *DESKTOP)
