"""Which worker has a sequence."""

import logging
import os
import pickle
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from modserve.core.configuration.log_settings import LogFormat
from modserve.core.configuration.trace_settings import TraceLevel
from modserve.core.errors import Code, MemoryExhaustedError, ModserveError, OverloadedError, invalid
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.core.tensors.shared_memory import CudaRegion, SystemRegion
from modserve.protocol.failures import DeadlinePassedError
from modserve.routing.router import RouteRollback
from modserve.workers import pickles
from modserve.workers.identity import WorkerIdentity
from modserve.workers.journal import ServerChange
from modserve.workers.peers import PeerLostError, content
from modserve.workers.sequences import owner


def test_everybody_knows_the_same_owner() -> None:
    assert [owner("m", id, 4) for id in (1, 2, 3, "1", "a")] == [owner("m", id, 4) for id in (1, 2, 3, "1", "a")]
    assert owner("m", 7, 1) == 0


def test_sequences_are_spread() -> None:
    counts = Counter(owner("m", id, 4) for id in range(1000))
    assert sorted(counts) == [0, 1, 2, 3]
    assert min(counts.values()) > 150


def test_a_text_is_another_sequence_than_its_number() -> None:
    assert any(owner("m", id, 16) != owner("m", str(id), 16) for id in range(100))


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        (ServerChange("load_model", ("a", None, None)), ("model", "a")),
        (ServerChange("unload_model", ("a", False)), ("model", "a")),
        (ServerChange("change_log_settings", ({},)), ("log", "")),
        (ServerChange("change_trace_settings", ({}, "")), ("trace", "")),
        (ServerChange("change_trace_settings", ({}, "m")), ("trace", "m")),
        (ServerChange("set_routing", ("m", None)), ("routing", "m")),
        (ServerChange("register_region", (SystemRegion("r", "k", 0, 1), b"")), ("system region", "r")),
        (ServerChange("unregister_region", (CudaRegion, "")), ("cuda region", "")),
    ],
)
def test_what_a_change_is_about(change: ServerChange, subject: tuple[str, str]) -> None:
    assert change.subject == subject
    assert pickles.loads(pickles.dumps(change)) == change


def test_an_identity_is_written_and_read() -> None:
    text = "1:4:2:/tmp/a:b"
    identity = WorkerIdentity.parse(text)
    assert str(identity) == text
    assert (identity.index, identity.count, identity.starts, str(identity.directory)) == (1, 4, 2, "/tmp/a:b")
    assert not identity.is_first


@pytest.mark.parametrize(
    "value",
    [
        {"level": TraceLevel.TIMESTAMPS | TraceLevel.TENSORS, "rate": None, "format": LogFormat.JSON},
        [IndexEntry("a", 1, LifecycleState.READY, ""), IndexEntry("b\udc2f", None, LifecycleState.UNKNOWN, "why", 3)],
        ({"1/model.onnx": b"\x00\xff"}, 2**80, 1.5, (True, None)),
        RouteRollback("m", 2, "it failed", {"split": {"1": 9}}),
    ],
)
def test_values_come_as_they_were(value: object) -> None:
    assert pickles.loads(pickles.dumps(value)) == value


@pytest.mark.parametrize(
    "error",
    [invalid("no"), OverloadedError("later", 7, too_many=True), MemoryExhaustedError("full"), DeadlinePassedError()],
)
def test_errors_come_as_what_they_say(error: ModserveError) -> None:
    copy = pickles.loads(pickles.dumps(pickles.portable_error(error)))
    assert (copy.code, copy.message) == (error.code, error.message)
    assert getattr(copy, "too_many", False) == getattr(error, "too_many", False)


@pytest.mark.parametrize("value", [os.system, Path("/"), Fraction(1, 2)])
def test_values_of_other_types_are_refused(value: object) -> None:
    with pytest.raises(pickle.UnpicklingError, match="workers do not send each other"):
        pickles.loads(pickle.dumps(value))


def test_a_response_is_read() -> None:
    assert content(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-A: b\r\n\r\nabc") == b"abc"


def test_a_call_that_a_worker_does_not_take_is_a_failure() -> None:
    with pytest.raises(ModserveError, match="refused another worker's call with status 503: full") as raised:
        content(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nfull")
    assert raised.value.code is Code.UNAVAILABLE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
        b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=["nothing", "no head", "a part", "about to end"],
)
def test_a_worker_that_has_gone_has_no_response(data: bytes) -> None:
    with pytest.raises(PeerLostError):
        content(data)


@pytest.mark.parametrize(
    ("name", "said"),
    [("modserve.process.app", "modserve.worker 1.process.app"), ("asyncio", "modserve.worker 1.asyncio")],
)
def test_a_line_says_which_worker_wrote_it(name: str, said: str) -> None:
    record = logging.LogRecord(name, logging.INFO, "", 1, "text", (), None)
    identity = WorkerIdentity.parse("1:2:0:/")
    for _ in range(2):
        assert identity.name_in_log(record)
        assert record.name == said
