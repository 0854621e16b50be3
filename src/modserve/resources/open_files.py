"""The number of connections that the limit on open files allows."""

import logging
import os
import resource
import sys

_log = logging.getLogger(__name__)

_LEAST_LEFT = 32
"""Descriptors that are always kept for later: ports, gRPC, metrics, models, the log."""

_OPEN = "/dev/fd" if sys.platform == "darwin" else "/proc/self/fd"


def connections(requested: int) -> int:
    """The limit on open connections: `requested` (0: as many as possible) if there are enough descriptors.

    Raises the process's limit on open files to its hard limit. Logs a warning if there are too few descriptors for the
    `requested` connections.
    """
    possible = for_connections(raised_limit(), _open_now())
    if requested > possible:
        _log.warning(
            "the limit on open files allows only %d HTTP connections, not %d: raise it (ulimit -n), or lower "
            "--http-max-connections",
            possible,
            requested,
        )
    return min(requested, possible) if requested else possible


def for_connections(limit: int, open_now: int) -> int:
    """How many of at most `limit` open files may be connections. A quarter of the free ones is kept for other uses."""
    left = limit - open_now
    return max(1, left - max(_LEAST_LEFT, min(left // 4, 1024)))


def raised_limit() -> int:
    """The number of files that the process may have open, after raising it to the hard limit if the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # some systems have a second, lower limit
            hard = soft
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _open_now() -> int:
    try:
        return len(os.listdir(_OPEN))
    except OSError:
        return 64
