"""The server that a command calls: address, headers and TLS, from the options that these commands share."""

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from modserve.client.address import Access, Address, is_url, parse
from modserve.core.errors import invalid
from modserve.settings.access import VARIABLE as KEY_VARIABLE

from .syntax import DEFAULT_URL, URL_VARIABLE, UsageError

_OPEN = Access()


@dataclass(frozen=True, slots=True)
class Destination:
    """A server, and how commands call it. `seconds`: how long a call may take."""

    address: Address
    access: Access = _OPEN
    seconds: float = 60.0


def address(url: str) -> Address:
    """Read ``http://…``, ``https://…``, ``grpc://…``, ``grpcs://…`` or ``unix:PATH``; a bare host is HTTP.

    Raises INVALID_ARG.
    """
    return parse(url if is_url(url) or "://" in url else f"http://{url}")


def destination(options: Namespace) -> Destination:
    """From the options of `syntax.add_destination`. Raises INVALID_ARG."""
    root, cert, key = (Path(file) if file else None for file in (options.ca_file, options.cert, options.key))
    return Destination(
        address(options.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL),
        Access(_with_key(headers(options.header)), root, cert, key, options.insecure),
        options.timeout,
    )


def openai_destination(options: Namespace) -> Destination:
    """The same for OpenAI's API, whose paths begin with ``/v1`` and whose users write it at the end of the URL.

    Raises UsageError for gRPC.
    """
    server = destination(options)
    if server.address.over_grpc:
        raise UsageError("option '--url': this API is HTTP; expected http://HOST:PORT or https://HOST:PORT")
    return replace(server, address=replace(server.address, prefix=server.address.prefix.removesuffix("/v1")))


def _with_key(headers: dict[str, str]) -> dict[str, str]:
    """The headers, and the key in the environment, unless they have one."""
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
