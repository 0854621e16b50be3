"""Changes of the file of keys: of its document, and of the file, which is replaced as a whole.

Each change is checked as the server checks it, before anything is written. The file is readable for its owner alone.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from modserve.core.errors import invalid, not_found
from modserve.core.files import regular_file

from .key_file import parse, read, read_time, shown_time
from .secret import digest, new_secret

_HEAD: Final = "# Keys of modserve, written by 'modserve keys'. Secrets are not in it, only their SHA-256.\n"

Document: TypeAlias = dict[str, Any]
Change: TypeAlias = Callable[[Document], str]


def add(document: Document, name: str, scopes: Mapping[str, list[str]], tenant: str, expires: float | None) -> str:
    """Add a key; returns its secret. Raises INVALID_ARG if there is one of that name."""
    rows = _rows(document)
    if any(row.get("name") == name for row in rows):
        raise invalid(f"there is a key '{name}'; 'modserve keys rotate {name}' gives it a new secret")
    secret = new_secret()
    row: Document = {"name": name, "sha256": digest(secret)}
    if tenant:
        row["tenant"] = tenant
    row["scopes"] = dict(scopes)
    if expires is not None:
        row["expires"] = shown_time(expires)
    rows.append(row)
    return secret


def revoke(document: Document, name: str) -> None:
    """The key is refused from now on. Raises NOT_FOUND."""
    row = _row(document, name)
    row["revoked"] = True
    row.pop("previous", None)


def rotate(document: Document, name: str, previous_until: float | None) -> str:
    """Give the key a new secret, which is returned; the old one may still be used for some time.

    Raises NOT_FOUND, and INVALID_ARG for a key that is revoked.
    """
    row = _row(document, name)
    if row.get("revoked"):
        raise invalid(f"the key '{name}' is revoked; 'modserve keys add' makes another one")
    secret = new_secret()
    row.pop("previous", None)
    if previous_until is not None:
        row["previous"] = {"sha256": row.get("sha256"), "expires": shown_time(previous_until)}
    row["sha256"] = digest(secret)
    return secret


def rows_of(document: Document) -> list[tuple[str, str, str, str, str]]:
    """What ``keys list`` shows: name, tenant, scopes, the time of the end, and the state of each key."""
    shown = []
    for row in _rows(document):
        scopes = "; ".join(f"{pattern}={','.join(words)}" for pattern, words in row.get("scopes", {}).items())
        end = read_time(row.get("expires"), str(row.get("name")))
        until = shown_time(end) if end < float("inf") else "never"
        shown.append((str(row.get("name")), str(row.get("tenant", row.get("name"))), scopes, until, _state(row, end)))
    return shown


def _state(row: Document, end: float) -> str:
    now = time.time()
    if row.get("revoked"):
        return "revoked"
    if end <= now:
        return "expired"
    previous = row.get("previous")
    return "rotating" if previous and read_time(previous.get("expires"), "previous") > now else ""


def _rows(document: Document) -> list[Document]:
    if document.get("keys") is None:
        document["keys"] = []
    rows: list[Document] = document["keys"]
    return rows


def _row(document: Document, name: str) -> Document:
    for row in _rows(document):
        if row.get("name") == name:
            return row
    raise not_found(f"there is no key '{name}'")


def load(path: Path) -> Document:
    """The document of a file that can be used; an empty one where there is no file. Raises INVALID_ARG."""
    try:
        text = regular_file.read_text(path)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise invalid(f"cannot read '{path}': {getattr(error, 'strerror', None) or error}") from None
    read(text, str(path))
    return parse(text, str(path))


def change(path: Path, work: Change) -> str:
    """Do `work` on the file's document, and write it if that succeeds; returns what `work` returns.

    Only one process at a time does so. Raises INVALID_ARG, and what `work` raises.
    """
    import yaml

    target = Path(os.path.realpath(path))
    try:
        with _locked(target.parent):
            document = load(target)
            outcome = work(document)
            as_json = target.suffix == ".json"
            dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
            text = _json(document) if as_json else _HEAD + yaml.dump(document, None, dumper, sort_keys=False)
            read(text, str(path))
            _replace(target, text)
    except OSError as error:
        raise invalid(f"cannot write '{path}': {error.strerror or error}") from None
    return outcome


def _json(document: Document) -> str:
    import json

    return json.dumps(document, indent=1, default=str) + "\n"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(target: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")  # of mode 0600
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with suppress(OSError):  # no file yet, or not ours to give away
            owner = os.stat(target)
            os.chown(name, owner.st_uid, owner.st_gid)
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
