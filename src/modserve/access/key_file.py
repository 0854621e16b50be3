"""The file of keys: reading it, and changing it. It has ``keys``, ``tenants``, ``jwt`` and ``certificates``.

YAML; a file that begins with a brace is JSON, which is read fifty times as fast.

Secrets of keys: made here, and stored as SHA-256.

A secret has 256 random bits, too many to try, and a slow hash such as bcrypt, which protects what people
choose, would protect nothing more. It would cost each first request 50 ms. The server looks a secret up by its hash:
how long that takes does not depend on how much of a wrong one is right.

Changes of the file of keys: of its document, and of the file, which is replaced as a whole.

Each change is checked as the server checks it, before anything is written. The file is readable for its owner alone.
"""

import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from modserve.core.errors import ModserveError, invalid, not_found
from modserve.core.files import regular_file
from modserve.core.tenants import Tenant
from modserve.core.texts import is_unicode

from .certificates import CertificateRule
from .identity import Identity, Scopes, kinds
from .tokens import ALGORITHMS, Issuer, check_library

PREFIX: Final = "msk_"
"""Beginning of secrets, so that people and scanners of source text recognise one."""
SHORTEST: Final = 16
"""Characters of a secret that an operator may choose."""


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def digest(secret: str | bytes) -> str:
    """Hash as the file of keys has it: SHA-256 in hexadecimal digits."""
    return hashlib.sha256(secret.encode() if isinstance(secret, str) else secret).hexdigest()


_SHOWN: Final = 100
"""Characters of a wrong value in a message."""
_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f]{1,100}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_LARGEST_NUMBER: Final = 1e18
"""Upper bound of limits and seconds: a float holds it."""
_LIMITS: Final = {field.name for field in fields(Tenant)} - {"name"}
_WHOLE: Final = {"concurrency", "queue_size"}
_NAME_RULE: Final = "expected 1 to 100 characters without spaces"


@dataclass(frozen=True, slots=True)
class Key:
    """Secret of a key, which authenticates `identity` unless it is `revoked`."""

    identity: Identity
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class AccessFile:
    """Content of the key file. `keys` are by the hashes of their secrets."""

    keys: Mapping[str, Key]
    issuers: tuple[Issuer, ...] = ()
    certificates: tuple[CertificateRule, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if the file gives access to no caller."""
        return not (self.keys or self.issuers or self.certificates)


def parse(text: str, file: str) -> dict[str, Any]:
    """Return the document, unchecked but for its form. Raises INVALID_ARG."""
    try:
        document = json.loads(text) if text.lstrip().startswith("{") else _yaml(text, file)
    except json.JSONDecodeError as error:
        raise invalid(f"{file}: not JSON: {error}") from None
    except RecursionError:
        raise invalid(f"{file}: nested too deeply, expected lists and mappings as in the documentation") from None
    except ValueError as error:  # an integer of thousands of digits
        raise invalid(f"{file}: a value cannot be read: {error}") from None
    if document is None:
        raise invalid(f"{file}: the file is empty, expected 'keys:' with a list")
    if not isinstance(document, dict):
        raise invalid(f"{file}: expected a mapping with 'keys', got {type(document).__name__}")
    return document


def _yaml(text: str, file: str) -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class _Loader(base):  # type: ignore[misc]
        """Says of each value that cannot be read in which line it is."""

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                kind, value = node.tag.rpartition(":")[2], str(node.value)[:_SHOWN]
                advice = ", expected a time such as 2030-01-31T12:00:00Z" if kind == "timestamp" else ""
                place = f"line {node.start_mark.line + 1}: '{value}' is no {kind}"
                reason = f": {str(error)[:_SHOWN]}" if type(error) is ValueError else ""
                raise invalid(f"{file}: {place}{advice}{reason}") from None

    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" in line {mark.line + 1}"
        raise invalid(f"{file}: not YAML{place}: {getattr(error, 'problem', None) or 'malformed'}") from None


def read(text: str, file: str) -> AccessFile:
    """Return the file with this text. Raises INVALID_ARG with its name, the place in it, and what would be right."""
    try:
        document = parse(text, file)
        _only(document, {"keys", "tenants", "jwt", "certificates"}, "the file")
        tenants = _tenants(document.get("tenants") or {})
        keys = _keys(_list(document, "keys"), tenants)
        issuers = tuple(_issuer(each, f"jwt[{index}]", tenants) for index, each in enumerate(_list(document, "jwt")))
        rules = enumerate(_list(document, "certificates"))
        certificates = tuple(_certificate(each, f"certificates[{index}]", tenants) for index, each in rules)
        return AccessFile(keys, issuers, certificates)
    except (ArithmeticError, ValueError) as error:  # an integer too long to be shown, in hexadecimal digits
        raise invalid(f"{file}: a value cannot be used: {error}") from None
    except ModserveError as error:
        message = error.message
        raise invalid(message if message.startswith(f"{file}:") else f"{file}: {message}") from None


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(f"'{name}': expected a list, got {type(value).__name__}")
    return value


def _only(value: Any, known: Iterable[str], place: str) -> None:
    """Raises INVALID_ARG for what is no mapping, or has other names."""
    if not isinstance(value, dict):
        raise invalid(f"{place}: expected a mapping, got {type(value).__name__}")
    for name in value:
        if name not in known:
            raise invalid(f"{place}: there is no '{name}', expected some of {', '.join(sorted(known))}")


def _text(value: Mapping[str, Any], name: str, place: str, default: str | None = None) -> str:
    text = value.get(name, default)
    if not isinstance(text, str) or not text:
        raise invalid(f"{place}: '{name}' is {'missing' if text is None else repr(text)}, expected a text")
    return text


def check_name(name: object, place: str) -> str:
    """Return a name of a key or tenant. Raises INVALID_ARG."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None or not is_unicode(name):
        raise invalid(f"{place}: {name!r} cannot be a name, {_NAME_RULE}")
    return name


# Tenants


class _Tenants(dict[str, Tenant]):
    """Tenants by name; tenants that the file does not describe have no limits."""

    def __missing__(self, name: str) -> Tenant:
        tenant = self[name] = Tenant(name)
        return tenant


def _tenants(section: Any) -> _Tenants:
    tenants = _Tenants()
    if not isinstance(section, dict):
        raise invalid(f"'tenants': expected a mapping by name, got {type(section).__name__}")
    for name, limits in section.items():
        place = f"tenants.{name}"
        check_name(name, place)
        limits = {} if limits is None else limits
        _only(limits, _LIMITS, place)
        for limit, value in limits.items():
            whole = limit in _WHOLE
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                raise invalid(f"{place}: '{limit}' is {value!r}, expected a {'whole ' if whole else ''}number")
            if abs(value) > _LARGEST_NUMBER and value != math.inf:
                raise invalid(f"{place}: '{limit}' is too large, expected at most {_LARGEST_NUMBER:g}")
        values: dict[str, Any] = {limit: value if limit in _WHOLE else float(value) for limit, value in limits.items()}
        tenants[name] = Tenant(name, **values)
    return tenants


# Keys


def _keys(rows: list[Any], tenants: _Tenants) -> dict[str, Key]:
    keys: dict[str, Key] = {}
    names: set[str] = set()
    for index, row in enumerate(rows):
        place = f"keys[{index}]"
        _only(row, {"name", "sha256", "tenant", "scopes", "expires", "revoked", "previous"}, place)
        name = check_name(row.get("name"), place)
        place = f"key '{name}'"
        if name in names:
            raise invalid(f"{place}: there are two keys of this name")
        names.add(name)
        tenant = tenants[check_name(row.get("tenant", name), f"{place}, tenant")]
        scopes, expires = read_scopes(row.get("scopes"), place), read_time(row.get("expires"), place)
        revoked = row.get("revoked", False)
        if not isinstance(revoked, bool):
            raise invalid(f"{place}: 'revoked' is {revoked!r}, expected true or false")
        secrets = [(row.get("sha256"), expires)]
        if (previous := row.get("previous")) is not None:
            _only(previous, {"sha256", "expires"}, f"{place}, previous")
            end = read_time(previous.get("expires"), f"{place}, previous")
            secrets.append((previous.get("sha256"), min(expires, end)))
        for hashed, end in secrets:
            if not isinstance(hashed, str) or _DIGEST.fullmatch(hashed) is None:
                raise invalid(f"{place}: 'sha256' is not a SHA-256: expected 64 digits from 0 to f in lower case")
            if hashed in keys:
                raise invalid(f"{place}: key '{keys[hashed].identity.name}' has the same secret")
            keys[hashed] = Key(Identity(name, tenant, scopes, end), revoked)
    return keys


def read_scopes(value: Any, place: str) -> Scopes:
    """``{pattern: [kind, …]}``. Raises INVALID_ARG."""
    if not isinstance(value, dict) or not value:
        example = "{'*': [infer, read]}"
        raise invalid(f"{place}: 'scopes' is {value!r}, expected kinds of calls by models' names, such as {example}")
    scopes: dict[str, Any] = {}
    for pattern, words in value.items():
        if not isinstance(pattern, str) or not pattern:
            raise invalid(f"{place}: {pattern!r} is no pattern of models' names")
        if not isinstance(words, list):
            raise invalid(f"{place}: the scope of '{pattern}' is {words!r}, expected a list such as [infer, read]")
        scopes[pattern] = kinds(words, f"{place}, scope of '{pattern}'")
    return scopes


def read_time(value: Any, place: str) -> float:
    """Seconds since 1970, infinity for none. Raises INVALID_ARG."""
    if value is None:
        return math.inf
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            pass
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise invalid(f"{place}: 'expires' is {value!r}, expected a time such as 2030-01-31T12:00:00Z")
    try:
        seconds = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
        format_time(seconds)
    except (OverflowError, ValueError):
        raise invalid(f"{place}: 'expires' is {str(value)!r}, expected a time between the years 1 and 9999") from None
    return seconds


def format_time(seconds: float) -> str:
    """Return the time as the file has it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Tokens and certificates


def _issuer(row: Any, place: str, tenants: _Tenants) -> Issuer:
    known = {"issuer", "audience", "jwks", "algorithms", "leeway_seconds", "refresh_seconds"}
    _only(row, known | {"tenant_claim", "scopes", "scope_claim", "scopes_by_value"}, place)
    algorithms = row.get("algorithms", list(ALGORITHMS))
    if not isinstance(algorithms, list) or not algorithms or any(each not in ALGORITHMS for each in algorithms):
        raise invalid(f"{place}: 'algorithms' is {algorithms!r}, expected some of {', '.join(ALGORITHMS)}")
    numbers = {"leeway_seconds": 30.0, "refresh_seconds": 300.0}
    for name, default in numbers.items():
        value = row.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST_NUMBER:
            raise invalid(f"{place}: '{name}' is {value!r}, expected a number from 0 on")
        numbers[name] = float(value)
    by_value = row.get("scopes_by_value") or {}
    if not isinstance(by_value, dict):
        raise invalid(f"{place}: 'scopes_by_value' is {by_value!r}, expected scopes by values of a claim")
    if by_value and "scope_claim" not in row:
        raise invalid(f"{place}: 'scopes_by_value' needs 'scope_claim', the claim whose values these are")
    scopes = row.get("scopes")
    check_library()
    if scopes is None and not by_value:
        raise invalid(f"{place}: expected 'scopes' of every token, or 'scope_claim' and 'scopes_by_value'")
    return Issuer(
        issuer=_text(row, "issuer", place),
        audience=_text(row, "audience", place),
        jwks=_text(row, "jwks", place),
        algorithms=tuple(algorithms),
        leeway=numbers["leeway_seconds"],
        refresh=numbers["refresh_seconds"],
        tenant_claim=_text(row, "tenant_claim", place, "sub"),
        scope_claim=_text(row, "scope_claim", place, "scope"),
        scopes={} if scopes is None else read_scopes(scopes, place),
        scopes_by_value={str(value): read_scopes(each, f"{place}, {value!r}") for value, each in by_value.items()},
        tenants=tenants,
    )


def _certificate(row: Any, place: str, tenants: _Tenants) -> CertificateRule:
    _only(row, {"match", "tenant", "scopes"}, place)
    tenant = tenants[check_name(row.get("tenant"), f"{place}, tenant")]
    return CertificateRule(_text(row, "match", place), tenant, read_scopes(row.get("scopes"), place))


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
        row["expires"] = format_time(expires)
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
        row["previous"] = {"sha256": row.get("sha256"), "expires": format_time(previous_until)}
    row["sha256"] = digest(secret)
    return secret


def rows_of(document: Document) -> list[tuple[str, str, str, str, str]]:
    """Rows of ``keys list``: name, tenant, scopes, the time of the end, and the state of each key."""
    shown = []
    for row in _rows(document):
        scopes = "; ".join(f"{pattern}={','.join(words)}" for pattern, words in row.get("scopes", {}).items())
        end = read_time(row.get("expires"), str(row.get("name")))
        until = format_time(end) if end < float("inf") else "never"
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
    """Return the document of a file that can be used; an empty one where there is no file. Raises INVALID_ARG."""
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
        with _lock(target.parent):
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
def _lock(folder: Path) -> Iterator[None]:
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
