"""Choices are kept on disk under all that they depend on; what is no such choice is as if it were not there."""

import json
import logging
import os
from pathlib import Path

import pytest

from modserve.backends.auto.cache import ChoiceCache
from modserve.backends.auto.candidates import Candidate
from modserve.backends.auto.choice import Choice
from modserve.backends.user_cache import content_digest

CANDIDATES = (Candidate("onnxruntime"), Candidate("openvino", "bf16"))
FACTS = {"content": "abc", "threads": [2, 1], "parameters": {"a": "b"}}
CHOICE = Choice(CANDIDATES[1], "it is fast", ({"backend": "openvino", "seconds": 0.5},), {"batch_size": 8})


def stored(directory: Path) -> Path:
    """The file of `CHOICE`."""
    ChoiceCache(directory).store(FACTS, CHOICE)
    (file,) = directory.iterdir()
    return file


def test_a_choice_comes_back(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "cache"
    stored(directory)
    assert ChoiceCache(directory).load(FACTS, CANDIDATES) == CHOICE


@pytest.mark.parametrize("change", [{"content": "x"}, {"threads": [1, 2]}, {"parameters": {}}])
def test_other_facts_are_another_choice(tmp_path: Path, change: dict[str, object]) -> None:
    stored(tmp_path)
    assert ChoiceCache(tmp_path).load(FACTS | change, CANDIDATES) is None


def test_it_is_stored_anew(tmp_path: Path) -> None:
    stored(tmp_path)
    again = Choice(CANDIDATES[0], "it was noise", (), {})
    ChoiceCache(tmp_path).store(FACTS, again)
    assert ChoiceCache(tmp_path).load(FACTS, CANDIDATES) == again
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ('{"facts": ', "cannot be read"),
        ("\xff", "cannot be read"),
        ("[1]", "it is for something else"),
        ("{}", "holds no choice"),
        (json.dumps({"facts": {"content": "x"}}), "it is for something else"),
        (json.dumps({"facts": FACTS}), "holds no choice"),
        (json.dumps({"facts": FACTS, "choice": "tensorrt fp32"}), "its choice is 'tensorrt fp32'"),
        (json.dumps({"facts": FACTS, "choice": ["a"]}), "which cannot run on this machine"),
        (
            json.dumps({"facts": FACTS, "choice": "openvino bf16", "rows": 3, "details": {}, "reason": ""}),
            "it has no valid table",
        ),
        (
            json.dumps({"facts": FACTS, "choice": "openvino bf16", "rows": [], "details": [], "reason": ""}),
            "it has no reason for its choice",
        ),
    ],
)
def test_files_that_hold_no_choice(tmp_path: Path, text: str, message: str, caplog: pytest.LogCaptureFixture) -> None:
    stored(tmp_path).write_bytes(text.encode("latin-1"))
    assert ChoiceCache(tmp_path).load(FACTS, CANDIDATES) is None
    assert message in caplog.text


def test_a_choice_that_cannot_run_here_any_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored(tmp_path)
    assert ChoiceCache(tmp_path).load(FACTS, CANDIDATES[:1]) is None
    assert "its choice is 'openvino bf16', which cannot run on this machine" in caplog.text


def test_without_a_directory_choices_are_kept_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    memory: dict[str, Choice] = {}
    for number in range(1010):
        ChoiceCache(None, memory).store({**FACTS, "number": number}, CHOICE)
    assert len(memory) == 1000
    assert ChoiceCache(None, memory).load({**FACTS, "number": 1009}, CANDIDATES) == CHOICE
    assert ChoiceCache(None, memory).load({**FACTS, "number": 9}, CANDIDATES) is None
    assert ChoiceCache(None).load({**FACTS, "number": 1009}, CANDIDATES) is None
    assert not caplog.records


def test_a_directory_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = ChoiceCache(tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        cache.store(FACTS, CHOICE)
        assert "cannot be kept" in caplog.text
        assert ChoiceCache(tmp_path / "file").load(FACTS, CANDIDATES) is None
    assert "cannot be read" in caplog.text
    assert cache.load(FACTS, CANDIDATES) == CHOICE, "in memory"


def test_the_content_of_files_and_directories(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for directory in (one, other):
        (directory / "below").mkdir(parents=True)
        (directory / "model.onnx").write_bytes(b"graph")
        (directory / "below" / "weights").write_bytes(b"weights")
    assert content_digest(one) == content_digest(other)
    assert content_digest(one / "model.onnx") == content_digest(other / "model.onnx") != content_digest(one)
    (other / "below" / "weights").write_bytes(b"weighty")
    changed = content_digest(other)
    assert changed != content_digest(one)
    (other / "below" / "weights").rename(other / "below" / "weight")
    assert content_digest(other) not in (changed, content_digest(one))


def test_a_large_file_is_known_by_its_identity(tmp_path: Path) -> None:
    weights, copy = tmp_path / "weights", tmp_path / "copy"
    weights.write_bytes(b"weights")
    copy.write_bytes(b"weights")
    assert content_digest(weights, 7) == content_digest(copy, 7), "no byte too large"
    before = content_digest(weights, 6)
    assert before == content_digest(weights, 6) != content_digest(copy, 6)
    times = weights.stat()
    weights.write_bytes(b"weighty")
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert content_digest(weights, 6) != before, "nothing can set the time of the last change of a file's status"
    os.replace(copy, weights)
    assert content_digest(weights, 6) != before


def test_links_to_directories_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "weights").write_bytes(b"1")
    (tmp_path / "model").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "model" / "linked")
    os.symlink(tmp_path / "model", tmp_path / "model" / "loop")
    before = content_digest(tmp_path / "model")
    (tmp_path / "real" / "weights").write_bytes(b"2")
    assert content_digest(tmp_path / "model") != before
