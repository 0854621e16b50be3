"""The repositories at the places that a server's settings name."""

from collections.abc import Iterable
from pathlib import Path

from modserve.core.files.remote_place import RemotePlace
from modserve.core.loading import Repository

from .local import LocalRepository


def repositories_at(
    places: Iterable[Path | RemotePlace],
    cache: str = "",
    timeout_s: float = 10.0,
    *,
    config_name: str = "",
    outside_links: bool = False,
) -> list[Repository]:
    """A repository for each place; one that is named twice is one repository.

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
