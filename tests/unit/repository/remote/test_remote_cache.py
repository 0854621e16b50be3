"""The cache of files: what is there, who writes it, and what goes when."""

import hashlib
import os
import stat
from pathlib import Path

import pytest

from modserve.core.errors import ModserveError
from modserve.repository.remote.cache import Claim, DownloadCache, default_directory, source_of


@pytest.fixture
def cache(tmp_path: Path) -> DownloadCache:
    return DownloadCache(tmp_path / "a" / "cache")


def put(cache: DownloadCache, source: str, content: bytes) -> str:
    claim = cache.claim(source)
    assert claim is not None
    claim.write(content)
    digest = cache.keep(source, claim)
    claim.close()
    return digest


def contents(cache: DownloadCache) -> set[str]:
    return {path.name for path in (cache.root / "content").iterdir()}


def test_a_file(cache: DownloadCache) -> None:
    assert cache.find("s") is None
    digest = put(cache, "s", b"abc")
    assert digest == hashlib.sha256(b"abc").hexdigest()
    assert (cache.find("s"), cache.find("s", 3), cache.find("s", 4)) == (digest, digest, None)
    assert cache.content(digest).read_bytes() == b"abc"
    assert stat.S_IMODE(cache.content(digest).stat().st_mode) == 0o444
    assert stat.S_IMODE(cache.root.stat().st_mode) == 0o700
    assert list((cache.root / "incoming").iterdir()) == []


def test_the_same_content_twice_is_there_once(cache: DownloadCache) -> None:
    assert put(cache, "s", b"abc") == put(cache, "t", b"abc")
    assert len(contents(cache)) == 1


def test_a_download_is_not_there_before_it_is_whole(cache: DownloadCache) -> None:
    claim = cache.claim("s")
    assert claim is not None
    claim.write(b"ab")
    assert cache.find("s") is None
    claim.close()
    assert cache.find("s") is None
    assert contents(cache) == set()


def test_one_at_a_time_downloads_a_file(cache: DownloadCache) -> None:
    first = cache.claim("s")
    assert first is not None
    assert DownloadCache(cache.root).claim("s") is None
    assert cache.claim("t") is not None
    first.close()
    first.close()
    assert cache.claim("s") is not None


def test_what_is_here_is_not_downloaded(cache: DownloadCache) -> None:
    digest = put(cache, "s", b"abc")
    assert cache.take("s", 3) == digest
    claim = cache.take("t", 3)
    assert isinstance(claim, Claim)
    assert cache.take("t", 3) is None
    claim.close()


def test_a_file_that_comes_while_it_is_claimed(cache: DownloadCache, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cache.claim

    def late(source: str) -> Claim | None:
        put(DownloadCache(cache.root), source, b"abc")
        return whole(source)

    monkeypatch.setattr(cache, "claim", late)
    assert cache.take("s", 3) == hashlib.sha256(b"abc").hexdigest()
    assert list((cache.root / "incoming").iterdir()) == []


def test_a_download_goes_on_where_another_ended(cache: DownloadCache) -> None:
    first = cache.claim("s")
    assert first is not None
    first.write(b"ab")
    first.close()
    first.write(b"nothing")  # by a thread that comes late
    second = cache.claim("s")
    assert second is not None
    assert second.size == 2
    second.write(b"c")
    assert second.md5 == hashlib.md5(b"abc").hexdigest()
    assert cache.keep("s", second) == hashlib.sha256(b"abc").hexdigest()
    second.close()


def test_a_download_begins_again(cache: DownloadCache) -> None:
    claim = cache.claim("s")
    assert claim is not None
    claim.write(b"wrong")
    claim.restart()
    assert claim.size == 0
    claim.write(b"abc")
    assert cache.content(cache.keep("s", claim)).read_bytes() == b"abc"
    claim.close()


def test_a_file_that_lost_its_end_is_not_there(cache: DownloadCache) -> None:
    path = cache.content(put(cache, "s", b"abc"))
    path.chmod(0o644)
    os.truncate(path, 1)
    assert cache.find("s") is None


def test_a_directory_of_a_model(cache: DownloadCache) -> None:
    one, two = put(cache, "s", b"abc"), put(cache, "t", b"def")
    placed = cache.place("m", {"config.pbtxt": one, "1/model": two, "1/copy": two, "2": "", "1": ""})
    assert placed is not None
    assert placed.path.name == "m"
    files = {str(path.relative_to(placed.path)) for path in placed.path.rglob("*")}
    assert files == {"config.pbtxt", "1", "1/model", "1/copy", "2"}
    assert (placed.path / "1" / "model").read_bytes() == b"def"
    assert os.stat(placed.path / "1" / "model").st_ino == cache.content(two).stat().st_ino
    placed.remove()
    assert not placed.path.exists()
    assert contents(cache) == {one, two}


def test_who_comes_while_a_download_becomes_a_content(cache: DownloadCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process does not download it again."""
    other = DownloadCache(cache.root)
    seen: list[object] = []
    move = Claim.move_to

    def move_to(claim: Claim, place: Path) -> None:
        seen.append(other.take("s", 3))
        move(claim, place)
        seen.append(other.take("s", 3))

    monkeypatch.setattr(Claim, "move_to", move_to)
    digest = put(cache, "s", b"abc")
    assert seen == [None, digest]


def test_a_model_that_writes_to_its_files(cache: DownloadCache) -> None:
    """As root, whom permissions do not stop."""
    digest = put(cache, "s", b"abc")
    placed = cache.place("m", {"1/model": digest})
    assert placed is not None
    path = placed.path / "1" / "model"
    path.chmod(0o644)
    path.write_bytes(b"xyz")
    assert cache.find("s") is None
    assert put(cache, "s", b"abc") == digest
    assert cache.find("s") == digest
    assert cache.content(digest).read_bytes() == b"abc"
    assert path.read_bytes() == b"xyz"
    placed.remove()


def test_a_directory_without_hard_links(cache: DownloadCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*paths: Path) -> None:
        raise PermissionError("no links here")

    digest = put(cache, "s", b"abc")
    monkeypatch.setattr(os, "link", link)
    placed = cache.place("m", {"1/model": digest})
    assert placed is not None
    assert (placed.path / "1" / "model").read_bytes() == b"abc"
    placed.remove()


def test_a_directory_of_what_is_gone(cache: DownloadCache) -> None:
    assert cache.place("m", {"1/model": "0" * 64}) is None
    assert list((cache.root / "models").iterdir()) == []


def test_what_is_needed_stays(cache: DownloadCache) -> None:
    one, two, three = put(cache, "s", b"1"), put(cache, "t", b"2"), put(cache, "u", b"3")
    assert cache.refer("s3://b", "m", ["s"])
    assert not cache.refer("s3://b", "m", ["s"])
    placed = cache.place("m", {"1/model": two})
    assert placed is not None
    DownloadCache(cache.root).clean()  # of another process
    assert contents(cache) == {one, two}
    assert (cache.find("t"), cache.find("u"), three in contents(cache)) == (None, None, False)
    assert (placed.path / "1" / "model").read_bytes() == b"2"
    placed.remove()
    cache.clean()
    assert contents(cache) == {one}
    cache.refer("s3://b", "m", [])
    cache.clean()
    assert contents(cache) == set()


def test_models_that_are_gone(cache: DownloadCache) -> None:
    for name in ("m", "n"):
        put(cache, name, name.encode())
        cache.refer("s3://b", name, [name])
    cache.refer("s3://c", "n", ["n"])
    assert cache.forget_others("s3://b", ["m"])
    assert not cache.forget_others("s3://b", ["m"])
    cache.clean()
    assert len(contents(cache)) == 2
    cache.forget_others("s3://c", [])
    cache.clean()
    assert len(contents(cache)) == 1


def test_a_repository_that_nobody_reads_any_more(cache: DownloadCache) -> None:
    put(cache, "s", b"1")
    cache.refer("s3://b", "m", ["s"])
    (reference,) = (cache.root / "references").glob("*/*")
    os.utime(reference, (0, 0))
    cache.clean()
    assert contents(cache) == set()


def test_what_a_process_left_that_died(cache: DownloadCache) -> None:
    digest = put(cache, "s", b"1")
    placed = cache.place("m", {"1/model": digest})
    claim = cache.claim("t")
    assert placed is not None
    assert claim is not None
    claim.write(b"half")
    cache.clean()
    assert placed.path.exists()
    assert (cache.root / "incoming" / "t").exists()
    os.close(placed._lock)
    claim.close()
    cache.clean()
    assert not placed.path.exists()
    assert list((cache.root / "incoming").iterdir()) == []


def test_contents_from_elsewhere(cache: DownloadCache) -> None:
    digest, size = cache.add([b"ab", b"c"])
    assert (digest, size) == (hashlib.sha256(b"abc").hexdigest(), 3)
    assert cache.find(source_of(digest), 3) == digest
    cache.remember("archive", digest, 3)
    assert cache.find("archive") == digest
    with pytest.raises(ValueError, match="broken"):
        cache.add(int(block).to_bytes(1, "big") for block in ("1", "broken"))
    assert list((cache.root / "incoming").iterdir()) == []


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModserveError, match="--repository-cache-dir names another folder"):
        DownloadCache(tmp_path / "file").clean()


def test_the_default_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "modserve" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_directory() == tmp_path / ".cache" / "modserve" / "models"
