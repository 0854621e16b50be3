"""A file of keys that changes while the server runs."""

import asyncio
import os
from pathlib import Path

import pytest

from modserve.access import watched_file
from modserve.access.authority import AccessControl
from modserve.access.credentials import of_headers
from modserve.access.key_file import AccessFile, digest
from modserve.access.watched_file import WatchedFile
from modserve.core.errors import ModserveError
from modserve.core.runtime import failures as failure_counts


def content(*names: str) -> str:
    rows = [f"  - {{name: {each}, sha256: {digest(each)}, scopes: {{'*': [read]}}}}\n" for each in names]
    return "keys:\n" + "".join(rows)


def names(file: AccessFile | None) -> list[str] | None:
    return None if file is None else [key.identity.name for key in file.keys.values()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "keys.yaml"
    file.write_text(content("alice"))
    return file


def replaced(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


def look(file: WatchedFile) -> list[str] | None:
    """Two looks: at the first, whoever writes the file may not be done."""
    assert file.look() is None
    return names(file.look())


def test_a_change_is_read_when_it_has_settled(path: Path) -> None:
    file = WatchedFile(path)
    assert names(file.content) == ["alice"]
    assert look(file) is None
    replaced(path, content("bob"))
    assert look(file) == ["bob"]
    assert look(file) is None


def test_what_cannot_be_used_is_told_once_and_the_old_keys_stay(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = WatchedFile(path)
    for broken in ("keys: [", "", content("alice")[:60]):
        caplog.clear()
        path.write_text(broken)
        assert look(file) is None
        assert look(file) is None
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert caplog.records[0].getMessage().endswith("; the previous keys stay in use")
        assert names(file.content) == ["alice"]
    path.write_text(content("bob"))
    assert look(file) == ["bob"]


UNREADABLE = [
    "keys: [{name: a, expires: 2030-02-30}]",
    "keys: [{name: a, expires: 2030-01-01T25:00:00Z}]",
    "keys: [{name: a, expires: 2030-01-01T10:00:00+99:00}]",
    "keys: [{name: a, expires: !!timestamp soon}]",
    "keys: [{name: a, expires: !!int x}]",
    "keys: [{name: a, revoked: !!bool x}]",
    "keys: [{name: a, expires: " + "9" * 5000 + "}]",
    "keys: [{name: a, tenant: 0x" + "f" * 5000 + "}]",
    "tenants: {a: {weight: 1" + "0" * 400 + "}}",
    "tenants: {2030-02-30: {}}",
    "jwt: [{algorithms: [[]]}]",
    "jwt: [{leeway_seconds: 1" + "0" * 400 + "}]",
    '{"keys": ' + "9" * 5000 + "}",
    '{"keys": ' + "[" * 200_000,
]


@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: text[:50])
def test_no_text_ends_the_watch(path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    file = WatchedFile(path)
    replaced(path, text)
    assert look(file) is None
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert str(path) in caplog.text
    replaced(path, content("bob"))
    assert look(file) == ["bob"]


def test_an_impossible_date_is_shown_with_its_line(path: Path) -> None:
    path.write_text(f"keys:\n- name: a\n  sha256: {digest('a')}\n  expires: 2030-02-30\n")
    with pytest.raises(ModserveError) as caught:
        WatchedFile(path)
    expected = "line 4: '2030-02-30' is no timestamp, expected a time such as 2030-01-31T12:00:00Z: "
    assert caught.value.message.startswith(f"{path}: {expected}")


async def test_the_watch_goes_on_after_any_exception(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of reading, and of whoever hears of a change: it hears of it again."""
    monkeypatch.setattr(watched_file, "INTERVAL", 0.001)
    reads = [MemoryError("reading"), None, None]
    real, heard, changed = watched_file._read, [], asyncio.Event()

    def read(path: Path) -> object:
        if (error := reads.pop(0)) is not None:
            raise error
        return real(path)

    def on_change(file: AccessFile) -> None:
        heard.append(names(file))
        if len(heard) == 1:
            raise ZeroDivisionError("hearing")
        changed.set()

    file = WatchedFile(path)
    monkeypatch.setattr(failure_counts, "failures", {})
    monkeypatch.setattr(watched_file, "_read", read)
    file.start(on_change)
    replaced(path, content("bob"))
    await asyncio.wait_for(changed.wait(), 30)
    file.stop()
    assert heard == [["bob"], ["bob"]]
    assert failure_counts.failures == {"keys": 2}
    assert "the background task 'keys' failed unexpectedly" in caplog.text


def test_a_file_that_vanishes_and_comes_back(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = WatchedFile(path)
    path.unlink()
    for _ in range(3):
        assert look(file) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot read the file of keys '{path}': No such file or directory; the previous keys stay in use"
    ]
    path.write_text(content("alice"))
    assert look(file) == ["alice"]


def test_a_file_that_cannot_be_used_at_the_start(path: Path) -> None:
    path.write_bytes(b"\xff")
    with pytest.raises(ModserveError, match="cannot read the file of keys"):
        WatchedFile(path)
    path.unlink()
    with pytest.raises(ModserveError, match="No such file or directory"):
        WatchedFile(path)


async def test_a_server_follows_its_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_file, "INTERVAL", 0.001)
    access = AccessControl(str(path), "a-single-key-of-many")
    changed = asyncio.Event()
    replace = access.authority.replace

    def replace_and_say(file: AccessFile) -> None:
        replace(file)
        changed.set()

    monkeypatch.setattr(access.authority, "replace", replace_and_say)
    access.start()
    replaced(path, content("bob"))
    await asyncio.wait_for(changed.wait(), 30)
    access.stop()

    def known(secret: bytes) -> bool:
        return access.authority.recognise(of_headers([(b"x-api-key", secret)])) is not None

    assert [known(secret) for secret in (b"alice", b"bob", b"a-single-key-of-many")] == [False, True, True]


@pytest.mark.parametrize("secret", ["short", "with a space in it, though long", "ümläute-are-no-header"])
def test_a_single_key_that_is_none(secret: str) -> None:
    with pytest.raises(ModserveError, match="MODSERVE_API_KEY has") as raised:
        AccessControl("", secret)
    assert secret not in raised.value.message
