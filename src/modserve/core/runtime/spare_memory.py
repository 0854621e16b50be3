"""Who keeps memory that the system could have back, beside the C library: see `resources.allocator`."""

from typing import Protocol


class Keeper(Protocol):
    """Somebody who keeps memory for the next time, such as an engine with an allocator of its own."""

    def spare(self) -> int:
        """Bytes that were not in use at any time since the last call. Called every few seconds on the event loop."""

    def give_back(self) -> None:
        """Return them to the C library. Called on a thread."""


_keepers: set[Keeper] = set()


def register(keeper: Keeper) -> None:
    _keepers.add(keeper)


def unregister(keeper: Keeper) -> None:
    _keepers.discard(keeper)


def keepers() -> tuple[Keeper, ...]:
    """Made in one step, since models come and go on other threads."""
    return tuple(_keepers)
