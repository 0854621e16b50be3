"""Repositories that cannot be read for a while."""

import logging
import time
from collections.abc import Mapping, Sequence

from modserve.core.errors import ModserveError
from modserve.core.loading import Listing, Repository

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
        """All models of each repository. Raises what `Repository.look` raises, if `patient` only before a first look.

        None of them keeps the others from being looked at.
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
