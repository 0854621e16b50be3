"""Which worker has a sequence."""

import logging
from collections import Counter

import pytest

from modserve.pb import inference as pb
from modserve.workers.changing import text_of, with_note
from modserve.workers.client import PeerGoneError, parse
from modserve.workers.journal import Subject, http_subject, rpc_subject
from modserve.workers.place import Place
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
    ("path", "subject"),
    [
        ("/v2/repository/models/a/load", Subject("model", "a", "load")),
        ("/v2/repository/somewhere/models/a/unload", Subject("model", "a", "unload")),
        ("/v2/repository/models/a\udc2fb/load", Subject("model", "a/b", "load")),
        ("/v2/logging", Subject("log", "", "")),
        ("/v2/trace/setting", Subject("trace", "", "")),
        ("/v2/models/m/trace/setting", Subject("trace", "m", "")),
        ("/v2/models/m/routing", Subject("routing", "m", "")),
        ("/v2/systemsharedmemory/region/r/register", Subject("system", "r", "register")),
        ("/v2/cudasharedmemory/unregister", Subject("cuda", "", "unregister")),
        ("/v2/systemsharedmemory/status", None),
        ("/v2/models/m/infer", None),
        ("/v2/repository/index", None),
    ],
)
def test_what_a_path_changes(path: str, subject: Subject | None) -> None:
    assert http_subject(path) == subject


def test_what_an_rpc_changes() -> None:
    service = "/inference.GRPCInferenceService/"
    load = pb.RepositoryModelLoadRequest(model_name="a")
    assert rpc_subject(f"{service}RepositoryModelLoad", load) == Subject("model", "a", "load")
    assert rpc_subject(f"{service}LogSettings", pb.LogSettingsRequest()) is None
    assert rpc_subject(f"{service}ServerLive", pb.ServerLiveRequest()) is None


def test_a_place_is_written_and_read() -> None:
    text = "1:4:2:/tmp/a:b"
    place = Place.parse(text)
    assert str(place) == text
    assert (place.index, place.count, place.starts, str(place.directory)) == (1, 4, 2, "/tmp/a:b")
    assert not place.is_first


def test_a_response_is_read() -> None:
    reply = parse(b"HTTP/1.1 404 Not Found\r\nContent-Length: 15\r\nX-A: b\r\n\r\n" + b'{"error":"bad"}')
    assert (reply.status, reply.ok, reply.headers["x-a"]) == (404, False, "b")
    assert text_of(reply) == "bad"
    assert text_of(with_note(reply, " (but undone)")) == "bad (but undone)"


@pytest.mark.parametrize(
    "data", [b"", b"HTTP/1.1 200 OK\r\nContent", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"]
)
def test_a_part_of_a_response_is_none(data: bytes) -> None:
    with pytest.raises(PeerGoneError):
        parse(data)


@pytest.mark.parametrize(
    ("name", "said"),
    [("modserve.process.app", "modserve.worker 1.process.app"), ("asyncio", "modserve.worker 1.asyncio")],
)
def test_a_line_says_which_worker_wrote_it(name: str, said: str) -> None:
    record = logging.LogRecord(name, logging.INFO, "", 1, "text", (), None)
    place = Place.parse("1:2:0:/")
    for _ in range(2):
        assert place.name_in_log(record)
        assert record.name == said
