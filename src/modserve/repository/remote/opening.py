"""Puts remote repositories together. Nothing is read yet, and no library is imported."""

from collections.abc import Iterable
from pathlib import Path

from modserve.core.loading import Repository
from modserve.core.remote_place import RemotePlace

from .archive import Archive
from .bucket import Bucket
from .cache import Cache, default_directory
from .repository import RemoteRepository
from .transfer import Patience, Transfer


def remote_repositories(
    places: Iterable[RemotePlace], cache: str, timeout_s: float, config_name: str = ""
) -> list[Repository]:
    """They share the cache, whose directory is the default one for an empty text, and the number of downloads."""
    transfer = Transfer(Cache(Path(cache).absolute() if cache else default_directory()), Patience(timeout_s))
    return [
        RemoteRepository(
            place,
            Archive(place, transfer) if place.scheme == "http" else Bucket(place, transfer),
            transfer,
            config_name=config_name,
        )
        for place in places
    ]
