"""What the documentation page fills in succeeds when it is sent as it is, for models of every kind."""

import json
from collections.abc import Iterator

import pytest
from open_server import OpenServer
from repositories import (
    CONFIG_TYPES,
    EXAMPLES,
    write_accumulator,
    write_identity,
    write_sequence_echo,
    write_text_keeper,
)
from server_process import ServerProcess
from wire import http

PATHS = {
    "infer": "/v2/models/{}/infer",
    "infer_stream": "/v2/models/{}/infer_stream",
    "generate": "/v2/models/{}/generate",
    "generate_stream": "/v2/models/{}/generate_stream",
    "predict": "/v1/models/{}:predict",
}


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory, open_server: OpenServer) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    for datatype in CONFIG_TYPES:
        write_identity(repository, f"identity {datatype}", datatype)
    write_sequence_echo(repository, "sequence", "direct { }")
    write_sequence_echo(repository, "named", "oldest { }", id_type="BYTES")
    write_accumulator(repository, "sum", "direct { }")
    write_text_keeper(repository, "keeper")
    with open_server.host(EXAMPLES, repository) as running:
        yield running


def test_every_example_of_every_model(varied: ServerProcess) -> None:
    index = http(varied.http_port, "POST", "/v2/repository/index", b'{"ready": true}').json
    names = {entry["name"] for entry in index}
    assert len(names) == len(CONFIG_TYPES) + 9
    calls = 0
    for name in names:
        quoted = name.replace(" ", "%20")
        bodies = http(varied.http_port, "GET", f"/docs/examples/{quoted}").json
        bodies.pop("note")
        assert bodies
        for call, body in bodies.items():
            answer = http(varied.http_port, "POST", PATHS[call].format(quoted), json.dumps(body).encode())
            assert answer.status == 200, f"{name}, {call}: {answer.body!r}"
            assert b'"error"' not in answer.body, f"{name}, {call}: {answer.body!r}"
            calls += 1
    assert calls > 4 * len(names)
