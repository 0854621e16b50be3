"""Versions that were rolled back, of models in a store: kept there, or else in the cache of this machine."""

import json
from pathlib import Path

import obstore
import pytest
from remote_fixtures import PLACE, Shop

from modserve.core.errors import ModserveError
from modserve.core.loading import Listing
from modserve.core.version import RolledBack
from modserve.repository import rollbacks
from modserve.repository.remote.failures import unreadable, unwritten

BAD, SLOW = RolledBack("it is bad", 17), RolledBack("it is slow", 18)
FILE = f"models/m/{rollbacks.FILE}"


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path / "cache")
    for version in (1, 2, 3):
        made.put(f"m/{version}/model.onnx", b"%d" % version)
    return made


def elsewhere(shop: Shop, tmp_path: Path) -> Shop:
    """The same store, on another machine."""
    other = Shop(tmp_path / "another cache")
    other.store = shop.store
    return other


async def look(shop: Shop) -> Listing:
    return (await shop.repository.look())["m"]


def stored(shop: Shop) -> object:
    return json.loads(obstore.get(shop.store, FILE).bytes().to_bytes())


def refuse_to_write(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(path: str, content: bytes) -> None:
        raise unwritten(PLACE, path, "permission denied")

    monkeypatch.setattr(shop.repository._source, "write", refused)


async def test_every_server_of_the_store_reads_what_one_has_written(shop: Shop, tmp_path: Path) -> None:
    before, other = await look(shop), elsewhere(shop, tmp_path)
    assert await shop.repository.keep_rollback(before, 2, BAD) == ""
    assert await other.repository.keep_rollback(before, 3, SLOW) == ""
    assert stored(shop) == {"2": {"reason": "it is bad", "at_ms": 17}, "3": {"reason": "it is slow", "at_ms": 18}}
    for each in (shop, other):
        now = await look(each)
        assert now.rolled_back == {2: BAD, 3: SLOW}
        assert (now.marks, now.versions, now.filenames) == (before.marks, before.versions, before.filenames)
        assert now != before, "or polling would not see it"
    assert await shop.repository.keep_rollback(before, 2, None) == ""
    assert (await look(other)).rolled_back == {3: SLOW}
    assert await other.repository.keep_rollback(before, 0, None) == ""
    assert (await look(shop)).rolled_back == {}
    with pytest.raises(FileNotFoundError):
        obstore.get(shop.store, FILE)
    assert not shop.transfer.cache.rollback_folder(str(PLACE)).exists()


async def test_nothing_is_written_without_a_change(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_to_write(shop, monkeypatch)
    assert await shop.repository.keep_rollback(await look(shop), 0, None) == ""
    assert await shop.repository.keep_rollback(await look(shop), 2, None) == ""


async def test_no_file_of_the_model(shop: Shop) -> None:
    await shop.repository.keep_rollback(await look(shop), 2, BAD)
    lease = await shop.repository.fetch(await look(shop), 1)
    assert [path.name for path in lease.path.iterdir()] == ["1"]
    await lease.release()


async def test_where_the_store_takes_nothing_the_cache_has_it(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_write(shop, monkeypatch)
    listing = await look(shop)
    assert await shop.repository.keep_rollback(listing, 2, BAD) == (
        f"'{PLACE}/m/{rollbacks.FILE}' cannot be written: permission denied: remove '{PLACE}/m/2', or a server without "
        f"the cache '{tmp_path / 'cache'}' takes version 2 for the latest again"
    )
    assert (await look(shop)).rolled_back == {2: BAD}
    shop.repository = shop.another()  # which may write again
    assert (await look(shop)).rolled_back == {2: BAD}
    assert (await look(elsewhere(shop, tmp_path))).rolled_back == {}
    shop.transfer.cache.clean()
    assert (await look(shop)).rolled_back == {2: BAD}
    assert await shop.repository.keep_rollback(listing, 2, BAD) == ""
    assert (await look(elsewhere(shop, tmp_path))).rolled_back == {2: BAD}
    assert await shop.repository.keep_rollback(listing, 0, None) == ""
    assert (await look(shop)).rolled_back == {}


async def test_what_the_store_still_says_is_told(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    await shop.repository.keep_rollback(await look(shop), 2, BAD)
    refuse_to_write(shop, monkeypatch)
    why = await shop.repository.keep_rollback(await look(shop), 2, None)
    assert why.endswith(
        f"permission denied: remove '{PLACE}/m/{rollbacks.FILE}', or a restart rolls back what it names"
    )


async def test_neither_the_store_nor_the_cache(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = await look(shop)
    refuse_to_write(shop, monkeypatch)
    (shop.transfer.cache.root / "rolled_back").touch()
    why = await shop.repository.keep_rollback(listing, 2, BAD)
    assert "permission denied; cannot use" in why
    assert why.endswith("or a restart of this or another server takes version 2 for the latest again")


async def test_a_file_that_says_something_else_is_ignored(shop: Shop) -> None:
    for content in (b"[]", b" " * rollbacks.MOST_BYTES + b"{}"):
        obstore.put(shop.store, FILE, content)
        listing = await look(shop)
        assert listing.rolled_back == {}
        assert listing.remark.startswith(f"'{PLACE}/m/{rollbacks.FILE}' is ignored")
    assert await shop.repository.keep_rollback(listing, 2, BAD) == ""
    assert ((await look(shop)).rolled_back, (await look(shop)).remark) == ({2: BAD}, "")


async def test_a_file_that_cannot_be_read_serves_no_version_that_it_may_name(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is served stays as it is; one that is not has a failure until the file is read."""
    before = await look(shop)
    await shop.repository.keep_rollback(before, 2, BAD)
    source = shop.repository._source

    async def failing(*_: object) -> str:
        raise unreadable(PLACE, "the store fails", transient=True)

    with monkeypatch.context() as patch:
        patch.setattr(source, "bring", failing)
        assert await look(shop) == before
    assert (await look(shop)).rolled_back == {2: BAD}
    shop.repository = shop.another()
    with monkeypatch.context() as patch:
        patch.setattr(shop.repository._source, "bring", failing)
        assert isinstance((await look(shop)).content, ModserveError)
    assert ((await look(shop)).rolled_back, (await look(shop)).content) == ({2: BAD}, None)
