"""What a remote repository is read through: a bucket, or an archive."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from .files import ModelFiles, RemoteFile
from .transfer import OnBytes


class Contents(NamedTuple):
    """What a look has seen."""

    models: Mapping[str, ModelFiles]
    beside: Sequence[str] = ()
    """What is in no model; empty for a look at some models only."""
    sources: Sequence[str] = ()
    """What the cache has to keep besides the models' files."""


class RemoteSource(Protocol):
    """Implemented for each kind of place. All methods raise `StoreError`."""

    async def names(self) -> Collection[str]:
        """The names of all models, cheaply."""

    async def look(self, names: Collection[str] | None) -> Contents:
        """The models with these names that are there, all for None."""

    async def write(self, path: str, content: bytes) -> None:
        """Put a small file into the store, by its path below the repository; without content, delete it."""

    async def bring(self, file: RemoteFile, on_bytes: OnBytes) -> str:
        """Have a file's content in the cache, and return its digest; `on_bytes` as for `Transfer.bring`."""
