"""Failures of calls to a server."""

from modserve.core.errors import ModserveError, invalid, unavailable

_UNAVAILABLE = unavailable("").code
_INVALID = invalid("").code


class UnreachableError(ModserveError):
    """Nobody answers at the address, or no server that speaks the protocol. `advice` says what helps."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(_UNAVAILABLE, message)
        self.advice = advice


class RefusedError(ModserveError):
    """The call is not possible: `message` is the server's text, `advice` says what helps."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(_INVALID, message)
        self.advice = advice
