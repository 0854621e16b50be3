"""Wrong requests get the protocol's status and text, over both protocols, and the server goes on serving.

One server in this process gets all of `bad_requests_table`.
"""

from collections import Counter
from collections.abc import Iterator

import pytest
from repositories import CONFIG_TYPES, EXAMPLES, write_identity

from bad_requests import CHECKS, Wires, wired
from bad_requests_table import OPTIONS, TABLES
from modserve.settings import from_command_line
from modserve.testing.serving import serve


@pytest.fixture(scope="module")
def wires(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wires]:
    repository = tmp_path_factory.mktemp("identities")
    for datatype in CONFIG_TYPES:
        write_identity(repository, f"identity_{datatype}", datatype)
    options = [*OPTIONS, f"--model-repository={EXAMPLES}", f"--model-repository={repository}"]
    with (
        serve(from_command_line(options, {}).settings) as serving,
        wired(serving.ports.http or 0, serving.ports.grpc or 0) as wires,
    ):
        yield wires


@pytest.mark.parametrize("name", CHECKS)
def test_row(wires: Wires, name: str) -> None:
    CHECKS[name](wires)


def test_the_table_is_large_and_says_each_thing_once() -> None:
    requests = [repr(row.request) for table in TABLES for row in table.values()]
    assert len(requests) >= 150
    assert [each for each, count in Counter(requests).items() if count > 1] == []
