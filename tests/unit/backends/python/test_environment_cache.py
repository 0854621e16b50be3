"""Environments are made once, whoever asks for them, and go when nobody needs them."""

import errno
import fcntl
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from modserve.backends.python import environment_cache as cache
from modserve.core.errors import Code, ModserveError


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """As if another process had been here."""
    yield
    end_of_process()


def end_of_process() -> None:
    for lock in cache._in_use.values():
        os.close(lock)
    cache._in_use.clear()


class Maker:
    def __init__(self, content: str = "made") -> None:
        self.content = content
        self.calls = 0

    def __call__(self, place: Path, lock: int) -> None:
        assert list(place.iterdir()) == []
        entry = place.parent
        with entry.with_name(f"{entry.name}.make").open("r+") as another, pytest.raises(BlockingIOError):
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.calls += 1
        (place / "file").write_text(self.content)


def source(tmp_path: Path, name: str = "source") -> Path:
    path = tmp_path / name
    path.touch()
    return path


def made(directory: Path, key: str, path: Path, make: cache.Make) -> Path:
    return cache.environment(directory, key, path, make, "model 'm'")


def test_it_is_made_once(tmp_path: Path) -> None:
    maker, path = Maker(), source(tmp_path)
    place = made(tmp_path, "k", path, maker)
    assert (place / "file").read_text() == "made"
    assert made(tmp_path, "k", path, maker) == place
    end_of_process()
    assert made(tmp_path, "k", path, maker) == place
    assert maker.calls == 1
    assert len(cache._in_use) == 1


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(place: Path, lock: int) -> None:
        (place / "file").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        made(tmp_path, "k", source(tmp_path), fail)
    assert not (tmp_path / "k").exists()
    assert cache._in_use == {}
    maker = Maker()
    made(tmp_path, "k", source(tmp_path), maker)
    assert maker.calls == 1


def test_a_full_disk(tmp_path: Path) -> None:
    def fail(place: Path, lock: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ModserveError) as caught:
        made(tmp_path, "k", source(tmp_path), fail)
    assert caught.value.code is Code.UNAVAILABLE
    text = f"an environment cannot be made in '{tmp_path}': No space left on device; "
    assert caught.value.message.startswith(text)
    assert "MiB are free there; --backend-config=python,environment-directory=… names another" in caught.value.message


def test_what_a_killed_server_left(tmp_path: Path) -> None:
    left = tmp_path / "k" / "environment"
    left.mkdir(parents=True)
    (left / "half").touch()
    (tmp_path / "k" / "complete.json.new").touch()
    other = tmp_path / "other" / "environment"
    other.mkdir(parents=True)
    (tmp_path / "other.use").touch()
    maker = Maker()
    place = made(tmp_path, "k", source(tmp_path), maker)
    assert [path.name for path in place.iterdir()] == ["file"]
    assert not (tmp_path / "other").exists()


def test_what_was_removed_by_hand_is_made_again(tmp_path: Path) -> None:
    maker, path = Maker(), source(tmp_path)
    made(tmp_path, "k", path, maker)
    (tmp_path / "k" / "complete.json").unlink()
    made(tmp_path, "k", path, maker)
    assert maker.calls == 2


def test_one_makes_and_the_others_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    waiting = threading.Barrier(3, timeout=20)
    maker, path = Maker(), source(tmp_path)

    def slow(place: Path, lock: int) -> None:
        waiting.wait()
        maker(place, lock)

    places: list[Path] = []

    def wait(record: logging.LogRecord) -> bool:
        if ": waiting for another load" in record.getMessage():
            waiting.wait()
        return True

    def load() -> None:
        places.append(made(tmp_path, "k", path, slow))

    threads = [threading.Thread(target=load) for _ in range(3)]
    cache._log.addFilter(wait)
    try:
        with caplog.at_level("INFO"):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
    finally:
        cache._log.removeFilter(wait)
    assert maker.calls == 1
    assert places == [tmp_path / "k" / "environment"] * 3


def test_former_states_of_a_source_go(tmp_path: Path) -> None:
    path = source(tmp_path)
    made(tmp_path, "old", path, Maker())
    made(tmp_path, "foreign", source(tmp_path, "elsewhere"), Maker())
    end_of_process()
    made(tmp_path, "new", path, Maker())
    assert not (tmp_path / "old").exists()
    assert (tmp_path / "foreign" / "complete.json").exists()


def test_former_states_that_are_in_use_stay(tmp_path: Path) -> None:
    path = source(tmp_path)
    made(tmp_path, "old", path, Maker())
    made(tmp_path, "new", path, Maker())
    assert (tmp_path / "old" / "complete.json").exists()
    end_of_process()
    made(tmp_path, "newer", path, Maker())
    assert not (tmp_path / "old").exists()
    assert not (tmp_path / "new").exists()


def test_environments_of_files_that_are_gone_go(tmp_path: Path) -> None:
    path = source(tmp_path, "gone")
    made(tmp_path, "old", path, Maker())
    end_of_process()
    path.unlink()
    made(tmp_path, "new", source(tmp_path), Maker())
    assert not (tmp_path / "old").exists()
    assert json.loads((tmp_path / "new" / "complete.json").read_text()) == {"source": str(tmp_path / "source")}


def test_the_directory_that_the_option_names(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    assert cache.directory(str(path), {}) == path
    assert path.is_dir()


def test_the_users_cache_directory(tmp_path: Path) -> None:
    variables = {"XDG_CACHE_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path / "home")}
    assert cache.directory(None, variables) == tmp_path / "xdg" / "modserve" / "environments"
    variables["XDG_CACHE_HOME"] = "relative, which the specification says to ignore"
    assert cache.directory(None, variables) == tmp_path / "home" / ".cache" / "modserve" / "environments"


def test_a_user_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    private = tmp_path / f"modserve-{os.geteuid()}"
    assert cache.directory(None, {"HOME": "/proc"}) == private / "environments"
    assert private.stat().st_mode & 0o777 == 0o700
    private.chmod(0o777)
    with pytest.raises(ModserveError, match=f"others may write to '{private}'"):
        cache.directory(None, {})


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModserveError) as caught:
        cache.directory(str(tmp_path / "file" / "inside"), {})
    assert caught.value.code is Code.UNAVAILABLE
    assert "Not a directory" in caught.value.message
