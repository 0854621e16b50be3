"""Servables that are unloaded together: their engines may call each other until none of them has anything to do."""

from collections.abc import Iterable

from modserve.core.servable import SequenceKeeper, Servable
from modserve.core.version import ModelId


class Companions:
    """The groups that are leaving. Lives on the event loop's thread."""

    def __init__(self) -> None:
        self._groups: list[list[Servable]] = []

    def __repr__(self) -> str:
        return f"Companions({len(self._groups)} groups)"

    def leave(self, servables: Iterable[Servable]) -> None:
        """Some servables are about to be retired. Those that keep sequences stay out, for they would begin new ones."""
        group = [each for each in servables if not isinstance(each, SequenceKeeper)]
        if len(group) > 1:
            self._groups.append(group)

    def groups_of(self, servable: Servable) -> list[list[Servable]]:
        return [group for group in self._groups if servable in group]

    def left(self, group: list[Servable]) -> None:
        """None of a group is busy any more. May be called again."""
        if group in self._groups:
            self._groups.remove(group)

    def find(self, caller: ModelId, name: str, version: int | None) -> Servable | None:
        """What leaves together with the caller and has a name and a version, the highest one for None."""
        for group in self._groups:
            if any(each.id == caller for each in group):
                fitting = [each for each in group if each.id.name == name and version in (None, each.id.version)]
                return max(fitting, key=lambda each: each.id.version, default=None)
        return None
