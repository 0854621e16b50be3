"""The rows of the table: a model, its versions, and what each of these is loaded from."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from modserve.core.errors import first_paragraph
from modserve.core.lifecycle import UNLOADED, VersionState
from modserve.core.loading import Blueprint, DirectoryLease, InPlaceChange, Listing, Needs
from modserve.core.servable import Servable


class Loaded(NamedTuple):
    """A servable with what it was loaded from: not in service yet, in service, or retired and not closed yet."""

    servable: Servable
    listing: Listing
    lease: DirectoryLease
    load_ns: int
    change: InPlaceChange | None = None
    """To be applied to the servable, which is in service then."""


@dataclass
class VersionRow:
    state: VersionState = field(default_factory=VersionState)
    servable: Servable | None = None
    """Takes the requests. There is one exactly while the version is READY, also while it is being loaded again."""
    loaded: Loaded | None = None
    """The servable with what it was loaded from."""
    added: bool = False
    """Whether it came while others of its model served, which go on if it fails."""
    reason: str = UNLOADED
    """The reason of the state once the version is unloaded."""


@dataclass
class ModelRow:
    blueprint: Blueprint | None = None
    """What it should be loaded from, also while a model that it needs is missing; None if it should not be loaded."""
    versions: dict[int, VersionRow] = field(default_factory=dict)
    made_of: Needs = field(default_factory=dict)
    """The models that the READY versions are made of. The blueprint's needs differ after a load that failed."""
    problem: str = ""
    """What is wrong with the model as it is in the repository, while no version could be tried or older ones serve."""
    latest: Servable | None = None
    """The highest READY version that was not rolled back, if there is one."""
    front: Servable | None = None
    """What takes requests that name no version: `latest`, or the routing between the READY versions."""
    failed_loads: dict[int, int] = field(default_factory=dict)
    """How often loads failed, by version; 0: of the model, none of whose versions could be tried."""
    finishing: list[Servable] = field(default_factory=list)
    """Servables that are out of service and not closed yet, the last ones first. They continue their sequences."""

    @property
    def served(self) -> dict[int, Servable]:
        """The servables of the READY versions, in ascending order of the versions."""
        return {version: row.servable for version, row in sorted(self.versions.items()) if row.servable is not None}

    @property
    def failure(self) -> str:
        """Why no version is READY, in Triton's words; empty where nothing has failed."""
        return self.problem or " ".join([_unavailable(version, why) for version, why in self._failed()])

    @property
    def failure_in_short(self) -> str:
        """As `failure`, without what only operators need, such as places in a model's code."""
        if self.problem:
            return first_paragraph(self.problem)
        return " ".join([_unavailable(version, first_paragraph(why)) for version, why in self._failed()])

    def _failed(self) -> list[tuple[int, str]]:
        return [(version, row.state.reason) for version, row in sorted(self.versions.items()) if row.state.failed]

    @property
    def unserved(self) -> str:
        """Message about versions in the model's folder that its policy leaves out; empty if there are none."""
        return "" if self.blueprint is None else self.blueprint.unserved

    def absence(self, version: int) -> str:
        """Reason why there is no such version; empty if the repository does not have it."""
        if self.problem and self.latest is None:
            return first_paragraph(self.problem)
        present = () if self.blueprint is None else self.blueprint.listing.versions
        return self.unserved if version in present else ""

    def count_failure(self, version: int) -> None:
        self.failed_loads[version] = self.failed_loads.get(version, 0) + 1

    def in_service(self, version: int) -> Loaded | None:
        return self.versions[version].loaded if version in self.versions else None

    def folder(self, version: int) -> Path | None:
        """The directory of a version that is in service."""
        loaded = self.in_service(version)
        return None if loaded is None else loaded.lease.path / str(version)

    def is_current(self, listing: Listing, version: int) -> bool:
        """Whether a version is in service just as it would be loaded from `listing`."""
        loaded = self.in_service(version)
        return loaded is not None and loaded.listing.mark(version) == listing.mark(version)


def _unavailable(version: int, why: str) -> str:
    return f"version {version} is at UNAVAILABLE state: {why};"
