"""The permit of a call that takes several requests, and counts as one."""

from .inflight import RequestPermit


class SharedPermit:
    """Permit shared by requests that count as one. The last release, by a request or its creator, gives it back."""

    __slots__ = ("_holders", "_permit")

    def __init__(self, permit: RequestPermit) -> None:
        self._permit = permit
        self._holders = 1

    def hold(self) -> None:
        """Add a holder, which must release the permit too."""
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._permit.release()
