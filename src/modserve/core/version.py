"""Model names and versions."""

import difflib
import re
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from .errors import ModserveError, invalid, not_found, unavailable

_VERSION_DIRECTORY = re.compile(r"[1-9][0-9]*")
_MOST_DIGITS = 1000
"""Digits of a number: Python refuses much longer ones. Leading zeros may make a small number long."""
_MOST_REASON = 1000
_MOST_COMPARED = 200
"""Maximum number of names to compare with an unknown one, and of its characters, to limit the time."""
_LIKELY = 0.75
_MOST_LISTED = 10
"""Maximum number of versions in a message."""
_USUAL: Final[dict[str, int]] = {str(version): version for version in range(1, 100)}
"""Versions by their text in requests."""

_FOREIGN: Final[dict[str, str]] = {
    "lost+found": "the file system's",
    "System Volume Information": "Windows'",
    "$RECYCLE.BIN": "Windows'",
    "@eaDir": "a Synology's",
    "#recycle": "a Synology's",
    "@Recycle": "a QNAP's",
    "__MACOSX": "of an archive made on macOS",
    "__pycache__": "Python's",
}
"""Folders of operating systems and tools in repositories → owner."""

STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"
"""Triton's reason for refusing requests to a model that is being unloaded."""


class ModelId(NamedTuple):
    """Name and version of a model."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Rollback of a version, which no longer receives requests without a version."""

    reason: str
    """Reason for the rollback, with figures if a rule caused it."""
    at_ms: int
    """Milliseconds since 1970."""
    unsaved: str = ""
    """Reason why the rollback is not persistent, with a remedy; empty if stored in the model's folder."""


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Versions to serve: the `latest` highest ones, the `specific` ones, or all."""

    latest: int = 0
    specific: tuple[int, ...] = ()

    def select(self, available: Iterable[int], rolled_back: Container[int] = ()) -> list[int]:
        """Return the available versions to serve in ascending order.

        The latest versions exclude rolled-back ones, unless no others exist.
        """
        present = sorted(set(available))
        if self.specific:
            specific = set(self.specific)
            return [version for version in present if version in specific]
        if not self.latest:
            return present
        good = [version for version in present if version not in rolled_back]
        return (good or present)[-self.latest :]


def may_be_model(folder: str) -> bool:
    """Return False for hidden folders and for folders of operating systems and tools."""
    return not folder.startswith(".") and folder not in _FOREIGN


def folder_owner(folder: str) -> str:
    """Return the owner of a folder that is never a model, such as ``lost+found``; empty for other folders."""
    return f"it is {_FOREIGN[folder]}, not a model" if folder in _FOREIGN else ""


def parse_directory(name: str) -> int | None:
    """Parse a directory's version, a positive integer without leading zeros; None for other directories."""
    return int(name) if _VERSION_DIRECTORY.fullmatch(name) and _fits_long(name) else None


def not_a_version(folder: str) -> str:
    """Return a message about a folder that only resembles a version, such as ``v1`` or ``01``; else empty."""
    digits = folder.lower().removeprefix("version").removeprefix("v").strip("_-. ").lstrip("0")
    if digits == folder or parse_directory(digits) is None:
        return ""
    return f"folder '{folder}' is not a version: versions are named by whole numbers, such as '{digits}'"


def without_owner(name: str) -> str:
    """Remove the hub's owner from a model name such as ``org/model``. Local names have no slashes."""
    return name.rpartition("/")[2] or name


def describe_unserved(present: Iterable[int], served: Collection[int]) -> str:
    """Return a message about versions in a model's folder that its policy excludes; empty if there are none."""
    left = sorted(set(present).difference(served))
    if not left:
        return ""
    listed = ", ".join(map(str, left[:_MOST_LISTED])) + (", …" if len(left) > _MOST_LISTED else "")
    subject = f"version {listed} in the model's folder is" if len(left) == 1 else f"versions {listed} in its folder are"
    selected = ", ".join(map(str, served)) or "none"
    remedy = "version_policy { all { } } in config.pbtxt selects all"
    return f"{subject} not served: version_policy selects {selected}; {remedy}"


def parse_requested(text: str) -> int | None:
    """Parse a request's version; None (the latest) for an empty text. Raises INVALID_ARG with Triton's texts."""
    if not text:
        return None
    usual = _USUAL.get(text)
    if usual is not None:
        return usual
    if re.fullmatch(r"\s*[+-]?[0-9]+", text, re.ASCII) is None or not _fits_long(text):
        raise invalid(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    version = int(text)
    if version <= 0:
        raise invalid(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return version


def _fits_long(digits: str) -> bool:
    """Return True if a number of any length fits in 64 bits, as ``std::stol`` requires."""
    return len(digits) <= _MOST_DIGITS and -(2**63) <= int(digits) < 2**63


STILL_LOADING = "it is still loading"


def unknown_model(name: str, names: Collection[str] = ()) -> ModserveError:
    """Return the error for an unknown model. It suggests a similar one of `names`."""
    hint = ""
    if len(name) <= _MOST_COMPARED and len(names) <= _MOST_COMPARED:
        hint = "".join(f"; did you mean '{near}'?" for near in difflib.get_close_matches(name, names, 1, _LIKELY))
    return not_found(f"Request for unknown model: '{name}' is not found{hint}")


def unknown_version(name: str, version: int, why: str = "") -> ModserveError:
    return not_found(f"Request for unknown model: '{name}' version {version} is not found{_because(why)}")


def no_available_versions(name: str, why: str = "") -> ModserveError:
    return not_found(f"Request for unknown model: '{name}' has no available versions{_because(why)}")


def not_ready(name: str, version: int, why: str = "") -> ModserveError:
    return unavailable(f"Request for unknown model: '{name}' version {version} is not at ready state{_because(why)}")


def still_loading(name: str, version: int | None) -> ModserveError:
    """Return UNAVAILABLE, unlike Triton, so that clients retry. Triton's text, without calling the model unknown."""
    failure = no_available_versions(name, STILL_LOADING) if version is None else not_ready(name, version, STILL_LOADING)
    return unavailable(failure.message.replace("Request for unknown model: ", "model ", 1))


def _because(why: str) -> str:
    """Return a reason to append to Triton's text, which clients may search for. A long reason is truncated."""
    if not why:
        return ""
    return f": {why}" if len(why) <= _MOST_REASON else f": {why[:_MOST_REASON]}…"
