"""The border between what may be raised while a request is served and what its client gets to know."""

import logging

from modserve.core.errors import ModserveError, internal

_log = logging.getLogger(__name__)


def to_client_error(error: BaseException, action: str) -> ModserveError:
    """Return the error that the client gets. One that is not ours becomes INTERNAL, and is logged as a failure of
    `action`.

    The frames that it came through, which hold the whole request, are dropped.
    """
    if isinstance(error, ModserveError):
        error.__traceback__ = error.__context__ = None
        return error
    _log.error("%s failed unexpectedly", action, exc_info=error)
    return internal(f"unexpected {type(error).__name__}: {error}")
