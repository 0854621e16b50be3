"""How many connections the process may have open: each takes a file descriptor, and other things need some as well."""

import logging
import os
import resource
import sys

_log = logging.getLogger(__name__)

_LEAST_LEFT = 32
"""Descriptors for what is opened later, however few there are: ports, gRPC, metrics, models, the log."""

_OPEN = "/dev/fd" if sys.platform == "darwin" else "/proc/self/fd"


def connections(wished: int) -> int:
    """The limit on open connections, `wished` (0: as many as may be) if there are descriptors for so many.

    Lets the process open as many files as its hard limit allows. Logs a warning if there are fewer descriptors than
    `wished` connections would take.
    """
    possible = for_connections(raised_limit(), _open_now())
    if wished > possible:
        _log.warning(
            "the limit on open files allows only %d HTTP connections, not %d: raise it (ulimit -n), or lower "
            "--http-max-connections",
            possible,
            wished,
        )
    return min(wished, possible) if wished else possible


def for_connections(limit: int, open_now: int) -> int:
    """How many of at most `limit` open files may be connections: a quarter of those that are left is for others."""
    left = limit - open_now
    return max(1, left - max(_LEAST_LEFT, min(left // 4, 1024)))


def raised_limit() -> int:
    """The number of files the process may have open, which is its hard limit from now on if the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # some systems have another limit beside this one
            hard = soft
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _open_now() -> int:
    try:
        return len(os.listdir(_OPEN))
    except OSError:
        return 64
