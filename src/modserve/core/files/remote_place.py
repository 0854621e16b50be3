"""Locations of remote model repositories, as users write them.

The forms are Triton's (``src/filesystem/implementations`` of its core), and archives:

- ``s3://bucket/prefix``; ``s3://host:port/bucket/prefix`` over HTTP, and ``s3://https://host:port/bucket/prefix``
- ``gs://bucket/prefix``
- ``as://account/container/prefix``
- ``hf://organisation/model`` and ``hf://organisation/model@revision``: one model of the Hugging Face Hub
- ``http://host/models.tar.gz``, also https, ``.tgz``, ``.tar`` and ``.zip``
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")

_REMOTE = re.compile(r"([a-z][a-z0-9+.-]*)://|(?:s3|gs|as|az|abfss?|hdfs|https?):/", re.IGNORECASE)
"""Start of a place that is not a directory; a `Path` keeps only one of two slashes."""
_ONE_SLASH = re.compile(r"^([a-z0-9]+):/(?!/)(?:(https?):/)?")
_HUB_MODEL = re.compile(
    r"(?P<model>(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[A-Za-z0-9][\w./-]*))?", re.ASCII
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SERVER = re.compile(r"(?P<scheme>https?://)?(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]+))?")
_FORMS = (
    "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, as://ACCOUNT/CONTAINER/PREFIX, hf://ORGANISATION/MODEL or "
    "https://HOST/ARCHIVE.tar.gz"
)
_AZURE_HOST = ".blob.core.windows.net"


@dataclass(frozen=True, slots=True)
class RemotePlace:
    """Location of a repository. `str` of it is the text as written, without passwords and signatures."""

    scheme: str
    """``s3``, ``gs``, ``as``, ``hf``; ``http`` for archives over HTTP and HTTPS."""
    text: str
    bucket: str = ""
    """The bucket or container, or the model's name on the hub; empty for an archive."""
    prefix: str = ""
    """Common prefix of the repository's keys, without slashes at its ends; the revision of a model on the hub."""
    endpoint: str = ""
    """The URL of the server, for one that the place names."""
    account: str = ""
    """Azure storage account."""
    url: str = field(default="", repr=False)
    """URL of an archive, without a password, but with its query, which may be a signature."""
    login: tuple[str, str] | None = field(default=None, repr=False)
    """User and password for the archive."""

    def __str__(self) -> str:
        return self.text


class RemotePath(type(Path())):  # type: ignore[misc]  # the class for this system
    """A path for reports only: there is nothing at it on this machine. It keeps both slashes of ``s3://``."""

    __slots__ = ()

    def __str__(self) -> str:
        return _ONE_SLASH.sub(lambda match: f"{match[1]}://{f'{match[2]}://' if match[2] else ''}", super().__str__())


def without_secrets(text: str) -> str:
    """Return a place for messages, without user, password, query and fragment."""
    text = re.sub(r"[?#].*", "", text, flags=re.DOTALL)
    return re.sub(r"(://?)[^/@]*@", r"\1", text)


def parse_place(text: str) -> RemotePlace | None:
    """Read a remote place; None for a path on this machine. Raises ValueError, without secrets."""
    match = _REMOTE.match(text)
    if match is None:
        return None
    shown = without_secrets(text)
    if match[1] is None:
        raise ValueError(f"expected two slashes after the first colon, got: {shown}; write remote places as texts")
    scheme = match[1].lower()
    rest = text[match.end() :]
    if scheme in ("http", "https"):
        return _archive(text, shown)
    if scheme == "hf":
        return _hub_model(rest, shown)
    if scheme not in _BUCKETS:
        raise ValueError(f"there are no repositories of kind '{scheme}://', got: {shown}; expected {_FORMS}")
    if "@" in rest.partition("?")[0] or "?" in rest:
        raise ValueError(
            f"'{scheme}://' takes no user, password or signature in the place of a repository ({shown}): put them into "
            f"{_BUCKETS[scheme]}, or into the file that TRITON_CLOUD_CREDENTIAL_PATH names"
        )
    endpoint = ""
    if scheme == "s3":
        endpoint, rest = _server(rest, shown)
    parts = [part for part in rest.split("/") if part]
    if any(part in (".", "..") or "\\" in part for part in parts):
        raise ValueError(f"a place in a bucket cannot have '.', '..' or backslashes, got: {shown}")
    names = 2 if scheme == "as" else 1
    if len(parts) < names or not all(_NAME.fullmatch(part) for part in parts[:names]):
        raise ValueError(f"expected {_FORMS}, got: {shown}")
    account = parts[0].removesuffix(_AZURE_HOST) if scheme == "as" else ""
    prefix = "/".join(parts[names:])
    server = f"{endpoint if endpoint.startswith('https') else endpoint.removeprefix('http://')}/" if endpoint else ""
    written = "/".join(filter(None, [parts[0], *parts[1:names], prefix]))
    return RemotePlace(scheme, f"{scheme}://{server}{written}", parts[names - 1], prefix, endpoint, account)


_BUCKETS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "as": "AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY",
}
"""Variables of the credentials, by scheme."""


def _server(rest: str, shown: str) -> tuple[str, str]:
    """Split an S3 place into the URL of its server, empty if it names none, and the rest."""
    scheme = re.match(r"https?://", rest, re.IGNORECASE)
    begin = scheme.end() if scheme else 0
    host, _, behind = rest[begin:].partition("/")
    if scheme is None and ":" not in host:
        return "", rest
    match = _SERVER.fullmatch(f"{rest[:begin].lower()}{host}")
    if match is None or (match["port"] and int(match["port"]) > 65_535):
        raise ValueError(f"expected s3://HOST:PORT/BUCKET/PREFIX or s3://https://HOST:PORT/BUCKET/PREFIX, got: {shown}")
    return f"{match['scheme'] or 'http://'}{host}", behind


def _hub_model(rest: str, shown: str) -> RemotePlace:
    match = _HUB_MODEL.fullmatch(rest)
    if match is None or ".." in rest:
        raise ValueError(f"expected hf://ORGANISATION/MODEL or hf://ORGANISATION/MODEL@REVISION, got: {shown}")
    return RemotePlace("hf", f"hf://{rest}", match["model"], match["revision"] or "main")


def _archive(text: str, shown: str) -> RemotePlace:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"expected https://HOST/ARCHIVE{ARCHIVES[0]}, got: {shown}") from error
    if not host or not parts.path.lower().endswith(ARCHIVES):
        kinds = f"{', '.join(ARCHIVES[:-1])} or {ARCHIVES[-1]}"
        raise ValueError(f"over HTTP a repository is an archive, {kinds}, got: {shown}")
    netloc = f"[{host}]" if ":" in host else host
    url = urlunsplit((parts.scheme.lower(), netloc + (f":{port}" if port else ""), parts.path, parts.query, ""))
    login = (unquote(parts.username), unquote(parts.password or "")) if parts.username is not None else None
    return RemotePlace("http", shown, url=url, login=login)
