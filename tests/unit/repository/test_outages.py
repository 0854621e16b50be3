"""Repositories that cannot be read for a while, beside others that can."""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from modserve.core.errors import ModserveError, invalid
from modserve.core.loading import DirectoryLease, Listing
from modserve.repository.scanning import Outages, scan


class Shelf:
    """Implements `core.loading.Repository`: names of models, and a failure in place of them."""

    def __init__(self, name: str, *models: str) -> None:
        self.name = name
        self.models = set(models)
        self.failure = ""

    def __str__(self) -> str:
        return self.name

    async def names(self) -> Collection[str]:
        if self.failure:
            raise invalid(self.failure)
        return self.models

    async def look(self, names: Collection[str] | None = None) -> Mapping[str, Listing]:
        return {
            name: Listing(name, self, Path(self.name, name), (1,))
            for name in await self.names()
            if names is None or name in names
        }

    async def fetch(self, listing: Listing, version: int) -> DirectoryLease:
        raise NotImplementedError

    async def remarks(self) -> Sequence[str]:
        return ()


async def test_the_last_look_counts_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    one, two = Shelf("one", "a"), Shelf("two", "b")
    outages = Outages()
    await outages.look([one, two])
    one.failure = "one is gone"
    two.models.add("c")
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert [set(look) for look in await outages.look([one, two])] == [{"a"}, {"b", "c"}]
        one.failure = "one is forbidden"
        read_s = dict(outages.read_s)
        await outages.look([one, two])
        assert outages.read_s["one"] == read_s["one"]
        assert outages.read_s["two"] > read_s["two"]
        one.failure = ""
        one.models.clear()
        assert [set(look) for look in await outages.look([one, two])] == [set(), {"b", "c"}]
        await outages.look([one, two])
    assert set(outages.read_s) == {"one", "two"}
    assert caplog.messages == [
        "one is gone; loaded models stay",
        "one is forbidden; loaded models stay",
        "model repository 'one' can be read again",
    ]


async def test_before_the_first_look_there_is_nothing_to_stay() -> None:
    one = Shelf("one", "a")
    one.failure = "one is gone"
    with pytest.raises(ModserveError, match="one is gone"):
        await Outages().look([one])
    one.failure = ""
    outages = Outages()
    await outages.look([one])
    one.failure = "one is gone"
    with pytest.raises(ModserveError, match="one is gone"):
        await outages.look([one], patient=False)


async def test_a_load_of_what_others_have(caplog: pytest.LogCaptureFixture) -> None:
    one, two = Shelf("one", "a"), Shelf("two", "b", "c")
    one.failure = "one is gone"
    assert set((await scan([one, two], ["b"])).models) == {"b"}
    assert "one is gone; the models to load are in the other repositories" in caplog.messages
    for names in (["b", "a"], ["a"], [], None):
        with pytest.raises(ModserveError, match="one is gone"):
            await scan([one, two], names)
