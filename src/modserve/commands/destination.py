"""The servers that a command calls: addresses, headers and TLS, from the options that these commands share."""

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from modserve.client import address_list
from modserve.client.address import Access, Address
from modserve.client.address_list import Lookup, lookup
from modserve.client.errors import ClientError
from modserve.core.errors import Code, invalid
from modserve.core.secret_names import KEY_VARIABLE

from .errors import UnreachableError
from .syntax import DEFAULT_URL, URL_VARIABLE, UsageError

_OPEN = Access()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Destination:
    """A server, and how commands call it. `seconds`: how long a call may take."""

    address: Address
    access: Access = _OPEN
    seconds: float = 60.0


def address(url: str) -> Address:
    """Read the address of one server. Raises INVALID_ARG, also for several."""
    return one(addresses(url), "this address")


def addresses(url: str, resolve: Lookup = lookup) -> list[Address]:
    """Read the addresses of all servers, as `address_list.addresses`. Raises INVALID_ARG, UnreachableError."""
    try:
        return address_list.addresses(url, resolve)
    except ClientError as error:
        if error.code is not Code.UNAVAILABLE:
            raise
        raise UnreachableError(error.message, f"--url or {URL_VARIABLE} names another one") from error


def url_of(options: Namespace) -> str:
    return options.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL


def destinations(options: Namespace, resolve: Lookup = lookup) -> list[Destination]:
    """Read the options of `syntax.add_destination`, a destination per server. Raises INVALID_ARG, UnreachableError."""
    root, cert, key = (Path(file) if file else None for file in (options.ca_file, options.cert, options.key))
    access = Access(_with_key(headers(options.header)), root, cert, key, options.insecure)
    return [Destination(place, access, options.timeout) for place in addresses(url_of(options), resolve)]


def destination(options: Namespace) -> Destination:
    """Read the only destination. Raises INVALID_ARG, UnreachableError, and UsageError for several servers."""
    return one(destinations(options), "this command")


def one(servers: Sequence[T], user: str) -> T:
    """Return the only one. Raises UsageError if there are several."""
    if len(servers) > 1:
        raise UsageError(f"{user} is for one server, and '--url' or {URL_VARIABLE} names {len(servers)}")
    return servers[0]


def openai_destinations(options: Namespace) -> list[Destination]:
    """Read the destinations of OpenAI's API: a ``/v1`` at the end of a URL is dropped, since the paths begin with it.

    Raises UsageError for gRPC.
    """
    return [_of_openai(server) for server in destinations(options)]


def openai_destination(options: Namespace) -> Destination:
    """Read the only destination of OpenAI's API. Raises UsageError for several servers, and for gRPC."""
    return _of_openai(destination(options))


def _of_openai(server: Destination) -> Destination:
    if server.address.over_grpc:
        raise UsageError("option '--url': this API is HTTP; expected http://HOST:PORT or https://HOST:PORT")
    return replace(server, address=replace(server.address, prefix=server.address.prefix.removesuffix("/v1")))


def _with_key(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers, with the key in the environment unless they have one."""
    key = os.environ.get(KEY_VARIABLE)
    if not key or not {"authorization", "x-api-key"}.isdisjoint(map(str.lower, headers)):
        return headers
    return {**headers, "Authorization": f"Bearer {key}"}


def headers(texts: Sequence[str]) -> dict[str, str]:
    """Read ``NAME: VALUE``, and ``@FILE`` for a file with such lines. Raises INVALID_ARG."""
    lines: list[str] = []
    for text in texts:
        if not text.startswith("@"):
            lines.append(text)
            continue
        try:
            lines += filter(None, map(str.strip, Path(text[1:]).read_text("utf-8").splitlines()))
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise invalid(f"option '--header': cannot read {text[1:]}: {why}") from None
    pairs = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not (colon and name.strip() and line.isprintable()):
            raise invalid("option '--header': expected 'NAME: VALUE', or @FILE for a file with such lines")
        pairs[name.strip()] = value.strip()
    return pairs
