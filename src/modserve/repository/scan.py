"""Several repositories seen as one, and what has changed between two looks at them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from modserve.core.loading import Listing, Repository


class Scan(NamedTuple):
    """What the model repositories hold. A name that is in two of them is no model, as in Triton."""

    models: dict[str, Listing]
    duplicates: tuple[str, ...]


async def scan(repositories: Sequence[Repository], names: Collection[str] | None = None) -> Scan:
    """Look at the models with these names, at all models for None. Raises what `Repository.look` raises."""
    looks = [await repository.look(names) for repository in repositories]
    counts = Counter(name for look in looks for name in look)
    models = {name: listing for look in looks for name, listing in look.items() if counts[name] == 1}
    return Scan(models, tuple(sorted(name for name, count in counts.items() if count > 1)))


def changes(before: Mapping[str, Listing | None], now: Mapping[str, Listing]) -> dict[str, Listing | None]:
    """The models that are new or different, with their present listing; None for those that are gone.

    A file counts as different by its mark, anywhere in the model's directory. A model for which `before` has None is
    different in any case.
    """
    gone = dict.fromkeys(before.keys() - now.keys())
    return gone | {name: listing for name, listing in now.items() if not _alike(before.get(name), listing)}


def _alike(before: Listing | None, now: Listing) -> bool:
    return before is not None and (before, before.marks) == (now, now.marks)
