"""Puts remote repositories together. Nothing is read yet, and no library is imported."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from modserve.core.files.remote_place import RemotePlace
from modserve.core.loading import Repository

from .archive import Archive
from .bucket import Bucket
from .cache import DownloadCache, default_directory
from .hub import HubModel
from .repository import RemoteRepository, RemoteSource
from .transfer import Patience, Transfer


def remote_repositories(
    places: Iterable[RemotePlace], cache: str, timeout_s: float, config_name: str = ""
) -> list[Repository]:
    """Open repositories that share `cache`, the default directory if empty, and the number of downloads."""
    # Who gives a store little time to respond expects it to be back as soon.
    patience = Patience(timeout_s, pause_s=min(0.5, timeout_s / 20), look_pause_s=timeout_s)
    transfer = Transfer(DownloadCache(Path(cache).absolute() if cache else default_directory()), patience)
    kinds: Mapping[str, Callable[[RemotePlace, Transfer], RemoteSource]] = {"http": Archive, "hf": HubModel}
    return [
        RemoteRepository(place, kinds.get(place.scheme, Bucket)(place, transfer), transfer, config_name=config_name)
        for place in places
    ]
