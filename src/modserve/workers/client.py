"""Calls of one worker to another: HTTP/1.1 over its Unix-domain socket, one connection for each call."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

GONE = "modserve-worker-gone"
"""A header of responses of a worker that is about to end: it takes part in nothing any more."""


class PeerGoneError(Exception):
    """The worker has died, is about to end or has not begun."""


class PeerDiedError(PeerGoneError):
    """The worker has died with the request, which it may have begun."""


class Reply(NamedTuple):
    """A response. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        return self.status < 400


Headers = tuple[tuple[str, str], ...]


async def call(path: str, method: str, target: str, body: bytes = b"", headers: Headers = ()) -> Reply:
    """Call the worker that listens at `path`. Raises PeerGoneError, or PeerDiedError, which is one, too."""
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError as error:
        raise PeerGoneError(f"{path}: {error.strerror}") from None
    try:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = f"{method} {target} HTTP/1.1\r\nHost: worker\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        writer.writelines(((head + lines + "\r\n").encode("latin-1"), body))
        await writer.drain()
        reply = parse(await reader.read(-1))
    except OSError as error:
        raise PeerDiedError(f"{path}: {error.strerror}") from None
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    if GONE in reply.headers:
        raise PeerGoneError(f"{path}: the worker is about to end")
    return reply


def parse(data: bytes) -> Reply:
    """A whole response with Content-Length. Raises PeerDiedError for a part of one."""
    head, separator, body = data.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if not separator or len(body) < int(headers.get("content-length", "0")):
        raise PeerDiedError("the worker died before its response was complete")
    return Reply(int(status_line.split(" ")[1]), headers, body)
