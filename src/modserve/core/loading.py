"""Interfaces for loading models: repositories, model descriptions, and loaders that make servables.

The parts in the order in which a model meets them: a `Repository` lists its models (`Listing`), a `ModelLoader`
reads and checks a configuration once (`Blueprint`), the repository brings the files of one version to this machine
(`DirectoryLease`), and the blueprint makes a `Servable` of them.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from .errors import ModserveError
from .files.config_file import CONFIG_FILE
from .servable import Servable
from .version import RolledBack, describe_unserved

Needs: TypeAlias = Mapping[str, frozenset[int | None]]
"""The models that another one is made of, with the versions that it needs; None stands for any version."""


async def _nothing() -> None:
    pass


async def _find_no_change() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class DirectoryLease:
    """The files of a model on this machine, for one of its versions. They stay until `release`, called once."""

    path: Path
    """The model's directory, with `config.pbtxt` and at least this one version directory."""
    release: Callable[[], Awaitable[None]] = field(default=_nothing, compare=False)
    changed: Callable[[], Awaitable[str]] = field(default=_find_no_change, compare=False)
    """Check which file has changed since the listing or the last call, as words for a reason; empty if none has."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Snapshot of a model in its repository. Its weights need not be on this machine."""

    name: str
    repository: "Repository" = field(compare=False, repr=False)
    path: Path
    """Location of the model in reports; for a remote model, nothing need exist at this path."""
    versions: tuple[int, ...]
    """Version numbers in ascending order."""
    content: bytes | ModserveError | None = field(default=None, compare=False, repr=False)
    """The content of the configuration file; None if there is no such file, an error if it cannot be read."""
    config: str | None = None
    """A configuration as JSON that replaces that of the file."""
    refusal: ModserveError | None = field(default=None, compare=False, repr=False)
    """Error that forbids loading the model, regardless of its configuration."""
    config_file: str = CONFIG_FILE
    """The configuration file, relative to the model's directory: see `--model-config-name`."""
    marks: Mapping[int | None, object] = field(default_factory=dict, compare=False, repr=False)
    """The state of the files by version, and of all others for None: times, ETags, digests, compared for equality."""
    filenames: Sequence[frozenset[str]] | None = field(default=None, compare=False, repr=False)
    """The names in the folder of each version, the lowest version first; None: they can be read below `path`."""
    weights: Mapping[int | None, object] = field(default_factory=dict, compare=False, repr=False)
    """Identity of the files that an engine reads, by version; None: of the shared ones, without the configuration.

    Finer than `marks`: a file that replaces another one differs from it. Empty if unknown.
    """

    folders: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Folders in the model's directory that are not versions."""

    rolled_back: Mapping[int, RolledBack] = field(default_factory=dict, hash=False, repr=False)
    """Versions that were rolled back, as a file in the model's directory has it. No mark depends on it."""
    remark: str = field(default="", compare=False, repr=False)
    """Mistake in that file, for which it is ignored."""

    def left_out(self, versions: Collection[int]) -> Iterator[str]:
        """Yield messages about versions that were rolled back and are not among `versions`, which are served."""
        for version, rolled_back in sorted(self.rolled_back.items()):
            if version in self.versions and version not in versions:
                yield f"version {version} was rolled back, and is not served: {rolled_back.reason}"

    def mark(self, version: int) -> object:
        """Return a mark that is equal for two listings from which a version would be loaded alike."""
        return self.path, self.config, self.marks.get(None), self.marks.get(version)

    def same_weights(self, other: "Listing", version: int) -> bool:
        """Return True if a version certainly has the same weights in both, regardless of their configurations."""
        mine, others = self.weights, other.weights
        known = version in mine and version in others
        return known and (mine.get(None), mine[version]) == (others.get(None), others[version])

    def same_files(self, other: "Listing") -> bool:
        """Return True if both have the same files, regardless of a configuration that replaces the file's."""
        return self.path == other.path and self.marks == other.marks


class LoadWatcher(Protocol):
    """Observer of loads of versions."""

    def begins(self, name: str, version: int) -> None:
        """Receive notice of a planned load, which may still wait for its turn and its files."""

    def ends(self, name: str, version: int, failed: bool) -> None:
        """Receive notice of a load's end: ready, failed or cancelled."""


class Repository(Protocol):
    """A source of models. `str` of it is its place, as people write it.

    All methods raise `ModserveError`, INVALID_ARG if the repository cannot be read. None of them blocks the event loop,
    and a cancelled call leaves nothing behind.
    """

    async def names(self) -> Collection[str]:
        """Return the names of all models. Cheap: it reads nothing of the models themselves."""

    async def look(self, names: Collection[str] | None = None) -> Mapping[str, Listing]:
        """Return the existing models of these names, all models for None. Downloads configurations, but no weights.

        If a file changes meanwhile, its mark is different at the next look.
        """

    async def fetch(self, listing: Listing, version: int) -> DirectoryLease:
        """Bring the files of one version to this machine, including those shared by all versions.

        Versions of a model may be fetched at the same time; each has a lease of its own.
        """

    async def remarks(self) -> Sequence[str]:
        """Return warnings about repository entries that are probably meant to be models."""


@runtime_checkable
class RollbackKeeper(Protocol):
    """Repository that may write down which versions of its models were rolled back."""

    async def keep_rollback(self, listing: Listing, version: int, rolled_back: RolledBack | None) -> str:
        """Keep for all servers that a version was rolled back, or is no longer; for version 0, none is.

        Returns the reason for which that is impossible, with what to do; empty if it is done.
        """


async def _unusable(path: Path, version: int) -> Servable:
    raise RuntimeError(f"version {version} of an unusable model is to be loaded from '{path}': this is a bug")


class InPlaceChange(Protocol):
    """A new configuration for a version in service, ready to be applied to what serves: no file is read for it again.

    One of its methods is called, once.
    """

    fields: tuple[str, ...]
    """Changed fields of the configuration, for the log."""

    def apply(self) -> Servable:
        """Apply it at once, without failing requests. Returns the servable that is in service from now on."""

    async def discard(self) -> None:
        """Release the objects made for it."""


async def _not_in_place(servable: Servable, path: Path, version: int) -> InPlaceChange | None:
    return None


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Model as its configuration describes it: read and checked once per listing, and shared by all later steps."""

    listing: Listing
    versions: tuple[int, ...] = ()
    """Versions to serve, selected by the version policy."""
    needs: Needs = field(default_factory=dict)
    """The models that must be READY before this one is loaded."""
    load: Callable[[Path, int], Awaitable[Servable]] = field(default=_unusable, compare=False, repr=False)
    """Load a version from the model's directory on this machine; the servable takes requests on return.

    On failure or cancellation it leaves nothing behind, although work begun by a cancelled call may end later.
    """
    change: Callable[[Servable, Path, int], Awaitable[InPlaceChange | None]] = field(
        default=_not_in_place, compare=False, repr=False
    )
    """Prepare to apply the configuration to a version loaded from the same files, which are at a path.

    None if the version has to be loaded again. Raises as `load`, and the running version then stays as it is.
    """
    only_reads: bool = False
    """True if a load only reads the model's files, so that it fails if they change meanwhile."""
    failure: ModserveError | None = None
    """Error that makes the model unusable; all fields but the listing are then empty."""

    @property
    def unserved(self) -> str:
        """Message about versions in the folder that the policy leaves out; empty if there are none."""
        if self.failure is not None:
            return ""
        others = describe_unserved(set(self.listing.versions) - self.listing.rolled_back.keys(), self.versions)
        return "; ".join(filter(None, [*self.listing.left_out(self.versions), others]))


class UnreadableModelError(ModserveError):
    """Unreadable configuration of a model, which makes a load pointless."""


class ModelLoader(Protocol):
    """Loader of models as servables. The caller maps all exceptions that are not `ModserveError`."""

    async def inspect(self, listing: Listing) -> Blueprint:
        """Read and check a configuration. Raises `UnreadableModelError`, or another `ModserveError` if unusable."""

    def forget(self, name: str) -> None:
        """Free what is reserved for a model, of which no version is loaded any more."""
