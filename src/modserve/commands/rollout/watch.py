"""What servers count of a model while a rollout watches them."""

from collections.abc import Collection, Iterable

from ..top_figures import ModelCounts, TopSnapshot
from .rule import WatchCounts


def counted(now: TopSnapshot, begin: TopSnapshot, model: str, versions: Collection[str]) -> WatchCounts:
    """Of these versions since the snapshot at the beginning. A version that was loaded again meanwhile began at 0."""
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
        {bound: count - before.buckets.get(bound, 0) for bound, count in now.buckets.items()},
    )


def watched_versions(before: Iterable[str], after: Iterable[str]) -> frozenset[str]:
    """Those that the load has brought; all that serve, if it has only replaced them."""
    return frozenset(after) - frozenset(before) or frozenset(after)
