"""A repository in a store in memory: what is looked at, fetched and kept, and what failures do."""

import asyncio
import hashlib
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from remote_fixtures import PLACE, Shop

from modserve.core.errors import Code, ModserveError
from modserve.core.loading import Listing
from modserve.repository.local import LocalRepository
from modserve.repository.remote.failures import unreadable
from modserve.repository.scanning import repositories_at

DOWN = unreadable(PLACE, "the store cannot be reached", transient=True)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path / "cache")
    made.put("m/config.pbtxt", b"config of m")
    made.put("m/labels.txt", b"labels")
    made.put("m/1/model.onnx", b"one")
    made.put("m/2/model.onnx", b"two")
    made.put("n/1/model.onnx", b"n")
    return made


async def look(shop: Shop, *names: str) -> dict[str, Listing]:
    return dict(await shop.repository.look(names or None))


def contents(shop: Shop) -> set[bytes]:
    return {path.read_bytes() for path in (shop.transfer.cache.root / "content").iterdir()}


def down(shop: Shop) -> None:
    """From now on there is no server."""
    shop.failure = DOWN
    shop.repository._source._store = None  # type: ignore[attr-defined]


def up(shop: Shop) -> None:
    shop.failure = None


async def test_a_look(shop: Shop) -> None:
    assert str(shop.repository) == "s3://bucket/models"
    assert set(await shop.repository.names()) == {"m", "n"}
    listings = await look(shop)
    assert set(listings) == {"m", "n"}
    m = listings["m"]
    assert (m.versions, m.content, str(m.path)) == ((1, 2), b"config of m", "s3://bucket/models/m")
    assert listings["n"].content is None
    assert contents(shop) == {b"config of m"}
    assert set(await look(shop, "n", "none", "../m", "..")) == {"n"}


async def test_the_names_in_the_folders_of_versions(shop: Shop) -> None:
    shop.put("m/2/weights/part", b"x")
    m = (await look(shop))["m"]
    assert m.filenames == [frozenset({"model.onnx"}), frozenset({"model.onnx", "weights", "weights/part"})]


async def test_only_the_version_that_is_fetched_is_downloaded(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    m = (await look(shop))["m"]
    with caplog.at_level(logging.INFO):
        lease = await shop.repository.fetch(m, 2)
    assert "model 'm', version 2: downloading 2 files, 9 bytes, from 's3://bucket/models'" in caplog.messages
    assert contents(shop) == {b"config of m", b"labels", b"two"}
    files = {str(path.relative_to(lease.path)) for path in lease.path.rglob("*") if path.is_file()}
    assert files == {"config.pbtxt", "labels.txt", "2/model.onnx"}
    assert lease.path.name == "m"
    other = await shop.repository.fetch(m, 2)
    assert other.path != lease.path
    await lease.release()
    assert (lease.path.exists(), other.path.exists()) == (False, True)
    await other.release()
    assert contents(shop) == {b"config of m", b"labels", b"two"}


async def test_what_is_here_is_not_fetched_again(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    lease = await shop.repository.fetch((await look(shop))["m"], 1)
    await lease.release()
    shop.repository = shop.another()
    m = (await look(shop))["m"]
    with caplog.at_level(logging.INFO):
        lease = await shop.repository.fetch(m, 1)
    assert caplog.messages == []
    await lease.release()


async def test_what_is_alike_and_what_is_not(shop: Shop) -> None:
    before = await look(shop)
    same = await look(shop)
    assert {name: listing.marks for name, listing in same.items()} == {
        name: each.marks for name, each in before.items()
    }
    shop.put("m/2/model.onnx", b"TWO")
    shop.put("n/config.pbtxt", b"new")
    now = await look(shop)
    assert now["m"].mark(1) == before["m"].mark(1)
    assert now["m"].mark(2) != before["m"].mark(2)
    assert now["n"].mark(1) != before["n"].mark(1)
    assert now["n"].content == b"new"


async def test_what_is_old_goes_when_nobody_serves_it(shop: Shop) -> None:
    lease = await shop.repository.fetch((await look(shop))["m"], 1)
    shop.put("m/1/model.onnx", b"ONE")
    shop.delete("n/1/model.onnx")
    now = await look(shop)
    assert set(now) == {"m"}
    newer = await shop.repository.fetch(now["m"], 1)
    assert (lease.path / "1" / "model.onnx").read_bytes() == b"one"
    assert (newer.path / "1" / "model.onnx").read_bytes() == b"ONE"
    await lease.release()
    assert contents(shop) == {b"config of m", b"labels", b"ONE"}
    await newer.release()


async def test_a_file_that_is_gone_before_it_is_fetched(shop: Shop) -> None:
    m = (await look(shop))["m"]
    shop.delete("m/2/model.onnx")
    with pytest.raises(ModserveError, match=r"cannot download 'm/2/model.onnx' from .*: it no longer exists"):
        await shop.repository.fetch(m, 2)
    await (await shop.repository.fetch(m, 1)).release()


async def test_a_download_that_failed_is_tried_again_later(shop: Shop) -> None:
    m = (await look(shop))["m"]
    down(shop)
    for count in (1, 2):
        with pytest.raises(ModserveError):
            await shop.repository.fetch(m, 2)
        up(shop)
        assert (await look(shop))["m"].mark(2) == m.mark(2)
        shop.clock.now += 10 * count
        again = (await look(shop))["m"]
        assert (again.mark(1), again.mark(2) == m.mark(2)) == (m.mark(1), False)
        assert (await look(shop))["m"].mark(2) == again.mark(2)
        m = again
        down(shop)
    up(shop)
    lease = await shop.repository.fetch(m, 2)
    assert (lease.path / "2" / "model.onnx").read_bytes() == b"two"
    await lease.release()


async def test_a_repository_that_cannot_be_read(shop: Shop) -> None:
    down(shop)
    with pytest.raises(ModserveError) as caught:
        await shop.repository.names()
    with pytest.raises(ModserveError) as caught:
        await look(shop)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == "cannot read model repository 's3://bucket/models': the store cannot be reached"
    up(shop)
    assert set(await shop.repository.names()) == {"m", "n"}


async def test_the_names_during_an_outage(shop: Shop) -> None:
    await look(shop)
    shop.clock.now += 5
    down(shop)
    opened = shop.opened
    assert set(await shop.repository.names()) == {"m", "n"}
    assert set(await shop.repository.names()) == {"m", "n"}
    assert shop.opened == opened + 1  # one attempt, and then a pause
    shop.clock.now += 20
    up(shop)
    shop.put("o/1/model", b"o")
    assert set(await shop.repository.names()) == {"m", "n", "o"}


async def test_a_named_configuration(shop: Shop) -> None:
    """--model-config-name"""
    shop.put("m/config.pbtxt", b"usual")
    shop.put("m/configs/fast.pbtxt", b"fast")
    shop.put("n/config.pbtxt", b"usual")
    looked = await shop.another("fast").look()
    assert [(each.config_file, each.content) for each in looked.values()] == [
        ("configs/fast.pbtxt", b"fast"),
        ("config.pbtxt", b"usual"),
    ]


async def test_a_configuration_that_cannot_be_had(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await look(shop)
    shop.put("m/config.pbtxt", b"another config")
    shop.put("o/config.pbtxt", b"config of o")
    whole = shop.repository._source.bring

    async def fails(*args: object) -> str:
        raise unreadable(PLACE, "the transfer was interrupted", transient=True)

    monkeypatch.setattr(shop.repository._source, "bring", fails)
    during = await look(shop)
    assert during["m"] is before["m"]
    assert isinstance(during["o"].content, ModserveError)
    monkeypatch.setattr(shop.repository._source, "bring", whole)
    after = await look(shop)
    assert (after["m"].content, after["o"].content) == (b"another config", b"config of o")
    shop.clock.now += 11
    assert (await look(shop))["o"].mark(1) != during["o"].mark(1)


async def test_one_model_with_a_key_that_is_a_trick(shop: Shop) -> None:
    shop.put("n/a\\b", b"x")
    listings = await look(shop)
    assert isinstance(failure := listings["n"].content, ModserveError)
    assert "has a backslash or a control character; rename or delete it" in failure.message
    assert listings["m"].content == b"config of m"


async def test_a_configuration_that_is_too_large(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modserve.repository.remote.repository.MOST_CONFIG_BYTES", 3)
    failure = (await look(shop))["m"].content
    assert isinstance(failure, ModserveError)
    assert "'m/config.pbtxt' has 11 bytes" in failure.message


async def test_remarks(shop: Shop) -> None:
    shop.put("model.onnx", b"x")
    shop.put("__MACOSX/m/1/._model.onnx", b"x")
    assert "__MACOSX" not in await look(shop)
    assert await shop.repository.remarks() == [
        "'s3://bucket/models/__MACOSX' is ignored: it is of an archive made on macOS, not a model",
        "'s3://bucket/models/model.onnx' is ignored: a model is a folder, such as 'NAME/1/model.onnx'",
    ]


async def test_special_names(shop: Shop) -> None:
    for name in ("with space", "ü+%41&=?#", "a:b"):
        shop.put(f"{name}/1/model x%2F.onnx", name.encode())
        m = (await look(shop, name))[name]
        lease = await shop.repository.fetch(m, 1)
        assert (lease.path / "1" / "model x%2F.onnx").read_bytes() == name.encode()
        await lease.release()


async def test_the_digest_that_an_uploader_has_left(shop: Shop) -> None:
    shop.put("m/1/model.onnx", b"one", sha256=hashlib.sha256(b"one").hexdigest())
    shop.put("m/2/model.onnx", b"two", sha256="0" * 64)
    m = (await look(shop))["m"]
    await (await shop.repository.fetch(m, 1)).release()
    with pytest.raises(ModserveError, match="but its metadata says 0000"):
        await shop.repository.fetch(m, 2)


async def test_a_cancelled_fetch_leaves_nothing(shop: Shop) -> None:
    m = (await look(shop))["m"]
    task = asyncio.create_task(shop.repository.fetch(m, 2))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    lease = await shop.repository.fetch(m, 2)
    await lease.release()
    assert not any((shop.transfer.cache.root / "models").iterdir())


async def test_processes_share_a_cache(shop: Shop) -> None:
    other = shop.another()
    leases = await asyncio.gather(
        shop.repository.fetch((await look(shop))["m"], 1), other.fetch((await other.look())["m"], 1)
    )
    one, two = (os.stat(lease.path / "1" / "model.onnx").st_ino for lease in leases)
    assert one == two
    for lease in leases:
        await lease.release()


def test_places(tmp_path: Path) -> None:
    local, remote, *rest = repositories_at([tmp_path, PLACE, tmp_path / "..", PLACE, Path(tmp_path)], str(tmp_path))
    assert isinstance(local, LocalRepository)
    assert str(remote) == "s3://bucket/models"
    assert [str(each) for each in rest] == [f"{tmp_path}/.."]


def test_nothing_is_imported_for_repositories_at() -> None:
    code = (
        "import sys, modserve.process.app, modserve.cli; from modserve.repository.scanning import repositories_at; "
        "from pathlib import Path; repositories_at([Path('x')]); "
        "print([name for name in sys.modules if name.startswith(('obstore', 'boto', 'modserve.repository.remote'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
