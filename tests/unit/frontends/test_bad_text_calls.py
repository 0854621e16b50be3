"""Wrong calls of texts get a status, and an error in the form of their API; the server goes on serving.

One server in this process gets all of `bad_texts_table`.
"""

from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import pytest
from wire import connect

from bad_texts import CHECKS, write_models
from modserve.settings import from_command_line
from modserve.testing.serving import serve


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HTTPConnection]:
    options = write_models(tmp_path_factory.mktemp("bad"))
    with (
        serve(from_command_line(options, {}).settings) as serving,
        closing(connect(serving.ports.http or 0)) as connection,
    ):
        yield connection


@pytest.mark.parametrize("name", CHECKS)
def test_row(connection: HTTPConnection, name: str) -> None:
    CHECKS[name](connection)
