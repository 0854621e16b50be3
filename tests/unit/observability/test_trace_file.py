"""Trace files stay JSON arrays, also when the disk is full or slow."""

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from trace_builders import AtOnce

from modserve.observability import trace_file
from modserve.observability.trace_file import JsonArray, TraceFiles, TraceOutput, Writer


def full_after(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk on which no file gets longer than `size`; the first write that does not fit writes a part."""
    write = os.pwrite

    def limited(file: int, data: bytes, position: int) -> int:
        room = size - position
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:room], position)

    monkeypatch.setattr(os, "pwrite", limited)


def test_elements_are_added(tmp_path: Path) -> None:
    path = tmp_path / "a"
    array = JsonArray(str(path))
    assert not array.end
    assert not path.exists()
    array.append([b"1", b",2"])
    assert path.read_bytes() == b"[1,2]"
    array.append([b"3"])
    assert path.read_bytes() == b"[1,2,\n3]"
    assert b"".join(array.elements()) == b"1,2,\n3"
    array.close()


def test_a_full_disk_takes_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    array = JsonArray(str(path))
    array.append([b"12345"])
    with monkeypatch.context() as patch:
        full_after(12, patch)
        with pytest.raises(OSError, match="No space left"):
            array.append([b"6" * 10])
    assert path.read_bytes() == b"[12345]"
    array.append([b"7"])
    assert json.loads(path.read_bytes()) == [12345, 7]
    array.close()


def test_what_can_not_be_written_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = TraceFiles(str(tmp_path / "a"))
    output = TraceOutput(files, indexed=False, keep=False)
    writer = AtOnce()
    with monkeypatch.context() as patch:
        full_after(0, patch)
        for _ in range(3):
            writer.put(lambda: output.append(b"1"))
    assert writer.dropped == 3
    assert [record.message for record in caplog.records] == [
        "a trace cannot be written, and is left out: [Errno 28] No space left on device"
    ]
    writer.put(lambda: output.append(b"2"))
    assert json.loads((tmp_path / "a").read_bytes()) == [2]
    with monkeypatch.context() as patch:
        full_after(0, patch)
        writer.put(lambda: output.append(b"3"))
    assert len(caplog.records) == 2
    files.close()


def test_a_directory_that_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = TraceFiles(str(tmp_path / "nosuch" / "a"))
    output = TraceOutput(files, indexed=True, keep=False)
    writer = AtOnce()
    writer.put(lambda: output.append(b"1"))
    writer.put(output.end)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "No such file or directory" in caplog.text


def names(path: Path) -> dict[str, Any]:
    return {file.name: json.loads(file.read_bytes()) for file in path.iterdir()}


def test_indexed_files(tmp_path: Path) -> None:
    files = TraceFiles(str(tmp_path / "a"))
    kept, merged = (TraceOutput(files, indexed=True, keep=keep) for keep in (True, False))
    kept.append(b"1")
    kept.finish()
    kept.append(b"2")
    kept.end()
    merged.append(b"3")
    merged.finish()
    merged.append(b"4")
    merged.end()
    assert names(tmp_path) == {"a": [4], "a.0": [1], "a.1": [2], "a.2": [3]}
    merged.append(b"5")
    merged.end()
    assert names(tmp_path)["a"] == [4, 5]
    kept.append(b"6")
    kept.end()
    assert sorted(names(tmp_path)) == ["a", "a.0", "a.1", "a.2", "a.3"]
    files.close()


def test_a_file_that_will_have_an_index_has_its_name_from_the_first_trace_on(tmp_path: Path) -> None:
    files = TraceFiles(str(tmp_path / "a"))
    output = TraceOutput(files, indexed=True, keep=False)
    output.append(b"1")
    assert names(tmp_path) == {"a": [1]}
    output.append(b"2")
    output.finish()
    assert names(tmp_path) == {"a.0": [1, 2]}
    output.append(b"3")
    assert names(tmp_path) == {"a": [3], "a.0": [1, 2]}
    output.end()
    output.append(b"4")
    output.end()
    assert names(tmp_path) == {"a": [3, 4], "a.0": [1, 2]}
    files.close()


def test_two_files_that_will_have_an_index(tmp_path: Path) -> None:
    files = TraceFiles(str(tmp_path / "a"))
    first, second, always = (TraceOutput(files, indexed=limited, keep=False) for limited in (True, True, False))
    first.append(b"1")
    second.append(b"2")
    assert names(tmp_path) == {"a": [1], "a.0": [2]}
    second.end()
    assert names(tmp_path) == {"a": [2], "a.1": [1]}
    first.append(b"3")
    always.append(b"4")
    assert names(tmp_path) == {"a": [2, 4], "a.1": [1, 3]}
    first.end()
    assert names(tmp_path) == {"a": [2, 4, 1, 3]}
    files.close()


def test_the_name_is_free_for_traces_without_an_index(tmp_path: Path) -> None:
    files = TraceFiles(str(tmp_path / "a"))
    limited, always = (TraceOutput(files, indexed=each, keep=False) for each in (True, False))
    limited.append(b"1")
    always.append(b"2")
    limited.append(b"3")
    assert names(tmp_path) == {"a": [2], "a.0": [1, 3]}
    limited.finish()
    assert names(tmp_path) == {"a": [2], "a.0": [1, 3]}
    files.close()


def test_a_slow_disk_costs_traces_not_memory(caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer()
    go, done = threading.Event(), []
    writer.put(lambda: done.append(go.wait(30)), trace_file.MOST_PENDING + 1)
    for _ in range(2):
        writer.put(lambda: done.append(False), 1)
    assert [record.message for record in caplog.records] == [
        f"traces are left out because {trace_file.MOST_PENDING} bytes of them wait to be written"
    ]
    go.set()
    writer.close()
    assert (done, writer.dropped) == ([True], 2)
