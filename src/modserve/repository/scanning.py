"""Looks through the repositories of a server: their models, and the changes since the last look.

Outages: repositories that cannot be read for a while.

The repositories at the places that a server's settings name.
"""

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from modserve.core.errors import ModserveError
from modserve.core.files.remote_place import RemotePlace
from modserve.core.loading import Listing, Repository

from .local import LocalRepository

_log = logging.getLogger(__name__)


class Outages:
    """Looks at repositories. One that cannot be read counts as it was at the last look; the log says so once."""

    def __init__(self) -> None:
        self._last: dict[Repository, Mapping[str, Listing]] = {}
        self._said: dict[Repository, str] = {}
        self.read_s: dict[str, float] = {}
        """Last good reading of each repository, in seconds since 1970."""

    def __repr__(self) -> str:
        return f"Outages({len(self._said)} of {len(self._last)} repositories)"

    async def look(self, repositories: Sequence[Repository], *, patient: bool = True) -> list[Mapping[str, Listing]]:
        """List all models of each repository. Raises as `Repository.look`, if `patient` only before a first look.

        No repository keeps the others from being listed.
        """
        looks = []
        for repository in repositories:
            try:
                self._last[repository] = await repository.look()
            except ModserveError as error:
                if not patient or repository not in self._last:
                    raise
                if self._said.get(repository) != error.message:
                    _log.error("%s; loaded models stay", error.message)
                self._said[repository] = error.message
            else:
                self.read_s[str(repository)] = time.time()
                if self._said.pop(repository, ""):
                    _log.info("model repository '%s' can be read again", repository)
            looks.append(self._last[repository])
        return looks


def repositories_at(
    places: Iterable[Path | RemotePlace],
    cache: str = "",
    timeout_s: float = 10.0,
    *,
    config_name: str = "",
    outside_links: bool = False,
) -> list[Repository]:
    """Make a repository for each place; one that is named twice is one repository.

    `cache` is the directory for the files of remote ones, `timeout_s` how long these wait for a store's next byte.
    """
    unique = dict.fromkeys(place.absolute() if isinstance(place, Path) else place for place in places)
    remote = [place for place in unique if isinstance(place, RemotePlace)]
    made: dict[RemotePlace, Repository] = {}
    if remote:  # what it takes is imported only here
        from .remote.opening import remote_repositories

        made = dict(zip(remote, remote_repositories(remote, cache, timeout_s, config_name), strict=True))
    return [
        LocalRepository(place, config_name, outside_links=outside_links) if isinstance(place, Path) else made[place]
        for place in unique
    ]


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
    """Return the models that are new or different, with their present listing; None for removed ones.

    A file counts as different by its mark, anywhere in the model's directory. A model for which `before` has None is
    different in any case.
    """

    def alike(before: Listing | None, now: Listing) -> bool:
        return before is not None and (before, before.marks) == (now, now.marks)

    gone = dict.fromkeys(before.keys() - now.keys())
    return gone | {name: listing for name, listing in now.items() if not alike(before.get(name), listing)}
