"""Cache of environments: unpacked archives and installed requirements.

A cache directory has, for each key,

- ``<key>/environment/``, the environment. It is built in place, not renamed, since its scripts contain its absolute
  path;
- ``<key>/complete.json``, written last and atomically. Without it, the rest was left behind by a killed server;
- ``<key>.make``, locked exclusively by the process that builds it. Child programs inherit the lock, so nothing else
  touches files that one of them still writes after the server was killed;
- ``<key>.use``, locked by each process that builds or uses it, until that process ends. A process with an exclusive
  lock may remove the environment.

Locks use flock(2) and end with their process. Several servers and threads may share a cache directory.
"""

import errno
import fcntl
import json
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from modserve.core.errors import ModserveError, unavailable

from .options import ENVIRONMENT_DIRECTORY

_log = logging.getLogger(__name__)

Make = Callable[[Path, int], None]
"""Fills a new empty directory. Child programs inherit the descriptor."""

_COMPLETE = "complete.json"
_in_use: dict[Path, int] = {}
"""Environments in use by this process → descriptors of their locks, held until the process ends."""
_in_use_lock = threading.Lock()


def directory(option: str | None, variables: Mapping[str, str]) -> Path:
    """Return the cache directory: `option`, the user's cache directory, or a temporary directory.

    The user's directory is in ``XDG_CACHE_HOME`` (XDG Base Directory Specification); in a container it is often missing
    or not writable. The directory is created if necessary. Raises UNAVAILABLE.
    """
    if option:
        path = Path(option).expanduser().absolute()
        try:
            _make_writable(path)
        except OSError as error:
            raise disk_error(path, error) from error
        return path
    for variable, inner in _OF_USER:
        if os.path.isdir(os.path.dirname(variables.get(variable, ""))) and os.path.isabs(variables[variable]):
            path = Path(variables[variable], inner)
            try:
                _make_writable(path)
            except OSError:
                continue
            return path
    return _temporary()


_OF_USER = (("XDG_CACHE_HOME", "modserve/environments"), ("HOME", ".cache/modserve/environments"))


def _make_writable(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "it cannot be written to")


def _temporary() -> Path:
    private = Path(tempfile.gettempdir(), f"modserve-{os.geteuid()}")
    path = private / "environments"
    try:
        private.mkdir(mode=0o700, exist_ok=True)
        status = private.lstat()
        # Another user could have created it, with programs inside.
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(errno.EPERM, f"others may write to '{private}'")
        _make_writable(path)
    except OSError as error:
        raise disk_error(path, error) from error
    return path


def environment(cache: Path, key: str, source: Path, make: Make, label: str) -> Path:
    """Return the directory of an environment, built if necessary by one process and thread at a time.

    Unused environments built from a former state of the file `source`, or from deleted files, are removed. `label`
    begins the log lines. Blocks while `make` runs. Raises UNAVAILABLE for file system errors, and the errors of `make`;
    nothing is left behind then.
    """
    entry = cache / key
    try:
        lock = _open(cache / f"{key}.use")
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if not _is_complete(entry):
                waiting = f"{label}: waiting for another load or server to unpack or install '{source}'"
                with _exclusive(cache / f"{key}.make", waiting) as inherited:
                    if not _is_complete(entry):
                        begin = time.monotonic()
                        _log.info("%s: making '%s' from '%s', which may take minutes", label, entry, source)
                        _make(entry, source, lambda place: make(place, inherited))
                        _log.info("%s: made '%s' in %.1f s", label, entry, time.monotonic() - begin)
                        _remove_superseded(cache, entry, source)
            _hold(entry, lock)
        except BaseException:
            os.close(lock)
            raise
    except OSError as error:
        raise disk_error(cache, error) from error
    return entry / "environment"


def disk_error(cache: Path, error: OSError) -> ModserveError:
    """Return the error for a file system error, with the free space."""
    try:
        free = f"; {shutil.disk_usage(cache).free >> 20} MiB are free there"
    except OSError:
        free = ""
    return unavailable(
        f"an environment cannot be made in '{cache}': {error.strerror or error}{free}; "
        f"--backend-config=python,{ENVIRONMENT_DIRECTORY}=… names another directory"
    )


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def _exclusive(path: Path, waiting: str) -> Iterator[int]:
    lock = _open(path)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("%s", waiting)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def _hold(entry: Path, lock: int) -> None:
    with _in_use_lock:
        if entry in _in_use:
            os.close(lock)
        else:
            _in_use[entry] = lock


def _is_complete(entry: Path) -> bool:
    return (entry / _COMPLETE).exists()


def _make(entry: Path, source: Path, make: Callable[[Path], None]) -> None:
    place = entry / "environment"
    try:
        _remove(entry)
        place.mkdir(parents=True)
        make(place)
        unfinished = entry / f"{_COMPLETE}.new"
        unfinished.write_text(json.dumps({"source": str(source)}), encoding="utf-8")
        unfinished.replace(entry / _COMPLETE)
    except BaseException:
        _remove(entry, ignore_errors=True)
        raise


def _remove(entry: Path, *, ignore_errors: bool = False) -> None:
    (entry / _COMPLETE).unlink(missing_ok=True)
    if entry.exists():
        shutil.rmtree(entry, ignore_errors=ignore_errors)


def _remove_superseded(cache: Path, kept: Path, source: Path) -> None:
    for lock_file in cache.glob("*.use"):
        entry = lock_file.with_suffix("")
        if entry == kept or not entry.is_dir():
            continue
        try:
            lock = _open(lock_file)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_superseded(entry, source):
                _remove(entry, ignore_errors=True)
        except OSError:  # in use
            continue
        finally:
            os.close(lock)


def _is_superseded(entry: Path, source: Path) -> bool:
    try:
        document = json.loads((entry / _COMPLETE).read_text(encoding="utf-8"))
        made_from = Path(document["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return True
    return made_from == source or not made_from.exists()
