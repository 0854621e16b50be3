"""Wrong requests to a server process, of each kind some: `tests/unit/frontends/test_bad_requests.py` has them all."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from repositories import EXAMPLES
from server_process import serving
from wire import assert_serving

from bad_requests import CHECKS, LOG_CHECKS, Wires, wired
from bad_requests_table import OPTIONS

SAMPLE = (
    "HTTP: unknown model",
    "HTTP: BYTES cut in a length",
    "HTTP: a huge dimension",
    "HTTP: truncated JSON",
    "HTTP: out of range",
    "HTTP: gzip that grows too much",
    "HTTP: infer_stream: missing input",
    "HTTP: generate: two responses",
    "HTTP: v1: no base64",
    "HTTP: the restricted header is wrong",
    "HTTP: load: a file outside",
    "HTTP: region: a key that is a path",
    "framing: a TLS hello",
    "framing: JSON too long, in chunks that go on",
    "framing: trailers without end",
    "gRPC: unknown model",
    "gRPC: a message cut",
    "gRPC: contents in two fields",
    "gRPC: statistics without the header",
    "stream: bytes that are no message",
)


@pytest.fixture(scope="module")
def wires(identities: Path) -> Iterator[Wires]:
    with (
        serving(EXAMPLES, identities, options=OPTIONS) as running,
        wired(running.http_port, running.grpc_port) as wires,
    ):
        yield wires
        assert_serving(running)
        assert running.running


@pytest.mark.parametrize(
    "check", [*(CHECKS[name] for name in SAMPLE), *LOG_CHECKS.values()], ids=[*SAMPLE, *LOG_CHECKS]
)
def test_row(wires: Wires, check: Callable[[Wires], None]) -> None:
    check(wires)
