"""Looks through the repositories of a server: their models, and the changes since the last look."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from modserve.core.errors import ModserveError
from modserve.core.loading import Listing, Repository

_log = logging.getLogger(__name__)


class Scan(NamedTuple):
    """Models of the repositories. A name that is in two of them is no model, as in Triton."""

    models: dict[str, Listing]
    duplicates: tuple[str, ...]


async def scan(repositories: Sequence[Repository], names: Collection[str] | None = None) -> Scan:
    """Look at the models with these names, at all models for None. Raises what `Repository.look` raises.

    A repository that cannot be read does not matter if all the names are in the others.
    """
    looks: list[Mapping[str, Listing]] = []
    failure: ModserveError | None = None
    for repository in repositories:
        try:
            looks.append(await repository.look(names))
        except ModserveError as error:
            failure = error
    if failure is not None:
        if not names or not set(names).issubset({name for look in looks for name in look}):
            raise failure
        _log.warning("%s; the models to load are in the other repositories", failure.message)
    return together(looks)


def together(looks: Sequence[Mapping[str, Listing]]) -> Scan:
    """Combine the looks at several repositories."""
    counts = Counter(name for look in looks for name in look)
    models = {name: listing for look in looks for name, listing in look.items() if counts[name] == 1}
    return Scan(models, tuple(sorted(name for name, count in counts.items() if count > 1)))


def changes(before: Mapping[str, Listing | None], now: Mapping[str, Listing]) -> dict[str, Listing | None]:
    """The models that are new or different, with their present listing; None for those that are gone.

    A file counts as different by its mark, anywhere in the model's directory. A model for which `before` has None is
    different in any case.
    """

    def alike(before: Listing | None, now: Listing) -> bool:
        return before is not None and (before, before.marks) == (now, now.marks)

    gone = dict.fromkeys(before.keys() - now.keys())
    return gone | {name: listing for name, listing in now.items() if not alike(before.get(name), listing)}
