"""Failures of calls to a server. `advice` is the remedy."""

from modserve.core.errors import Code, ModserveError


class UnreachableError(ModserveError):
    """Failure to reach a server: none responds at the address, or none that speaks the protocol."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(Code.UNAVAILABLE, message)
        self.advice = advice


class RefusedError(ModserveError):
    """The server refused the call; `message` is its text."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(Code.INVALID_ARG, message)
        self.advice = advice
