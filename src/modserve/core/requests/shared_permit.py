"""The permit of a call that takes several requests, and counts as one."""

from .inflight import RequestPermit


class SharedPermit:
    """What requests that count as one hold together: it is given back by the last of them, and by who made it."""

    __slots__ = ("_holders", "_permit")

    def __init__(self, permit: RequestPermit) -> None:
        self._permit = permit
        self._holders = 1

    def hold(self) -> None:
        """One more releases it."""
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._permit.release()
