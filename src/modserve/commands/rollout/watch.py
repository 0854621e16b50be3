"""Counts of a model by servers during the watch of a rollout."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from modserve.core.errors import ModserveError

from ..top.figures import ModelCounts, TopSnapshot
from .rule import WatchCounts

_AT_A_TIME = 64
"""Servers that are read at the same time."""


class RolloutError(Exception):
    """The rollout does not go on; the text says why."""


class CountSource(Protocol):
    """Source of one server's counts."""

    @property
    def url(self) -> str: ...

    def read(self) -> TopSnapshot:
        """Read a snapshot. Raises UnreachableError, RefusedError."""


class Watch:
    """Watch of servers by index in `sources`. Servers that are `guarded` must respond and stay ready."""

    def __init__(self, model: str, sources: Sequence[CountSource]) -> None:
        self._model, self._sources = model, sources
        self._versions: dict[int, Collection[str]] = {}
        self._first: dict[int, TopSnapshot] = {}
        self._guarded: set[int] = set()
        self._were_ready: set[int] = set()

    def begin(self, versions: Mapping[int, Collection[str]], guarded: Collection[int]) -> None:
        """Count these versions from now on. Raises RolloutError if one of the guarded servers has no counts."""
        for index, snapshot in self._read(versions).items():
            if snapshot is None:
                if index in guarded:
                    raise RolloutError(f"{self._sources[index].url} has no counts")
                continue
            self._first[index], self._versions[index] = snapshot, versions[index]
            if index in guarded and snapshot.ready:
                self._were_ready.add(index)
        self._guarded.update(guarded)

    def check(self) -> None:
        """Check the guarded servers. Raises RolloutError if one is no longer ready, or silent."""
        for index, snapshot in self._read(self._guarded).items():
            if snapshot is None:
                raise RolloutError(f"{self._sources[index].url} does not respond any more")
            if index in self._were_ready and not snapshot.ready:
                raise RolloutError(f"{self._sources[index].url} is not ready any more")

    def counts(self) -> list[WatchCounts]:
        """Return each server's counts since its begin; empty if it has not begun or does not respond at the moment."""
        whole = [WatchCounts()] * len(self._sources)
        for index, snapshot in self._read(self._first).items():
            if snapshot is not None:
                whole[index] = count_since(snapshot, self._first[index], self._model, self._versions[index])
        return whole

    def _read(self, indexes: Collection[int]) -> dict[int, TopSnapshot | None]:
        """Read the servers concurrently; None for a server that does not respond."""
        if not indexes:
            return {}
        with ThreadPoolExecutor(min(len(indexes), _AT_A_TIME)) as threads:
            snapshots = threads.map(_snapshot, [self._sources[index] for index in indexes])
            return dict(zip(indexes, snapshots, strict=True))


def _snapshot(source: CountSource) -> TopSnapshot | None:
    try:
        return source.read()
    except ModserveError:
        return None


def count_since(now: TopSnapshot, begin: TopSnapshot, model: str, versions: Collection[str]) -> WatchCounts:
    """Return the counts of these versions since the snapshot `begin`. A version reloaded meanwhile began at 0."""
    whole = WatchCounts()
    for version in versions:
        if (model, version) in now.models:
            counts, before = now.models[model, version], begin.models.get((model, version), ModelCounts())
            if before.requests > counts.requests or before.failures > counts.failures:
                before = ModelCounts()
            whole = whole.plus(_since(counts, before))
    return whole


def _since(now: ModelCounts, before: ModelCounts) -> WatchCounts:
    return WatchCounts(
        now.requests - before.requests,
        now.failures - before.failures,
        now.seconds - before.seconds,
        now.durations.since(before.durations),
    )


def choose_versions(before: Iterable[str], after: Iterable[str]) -> frozenset[str]:
    """Return the versions that the load added; all versions if it only replaced them."""
    return frozenset(after) - frozenset(before) or frozenset(after)
