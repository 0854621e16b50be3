"""Calls of one worker to another: HTTP/1.1 over its Unix-domain socket, one connection for each call."""

import asyncio
from contextlib import suppress
from typing import Any

from modserve.core.errors import ModserveError, unavailable

from . import values

CALL = "/worker/call"
"""The path of calls. A request has the method's name and its arguments; a response has what it returned or raised."""

GONE = 410
"""The status of a worker that is about to end: it takes part in nothing any more."""


class PeerLostError(Exception):
    """The worker has died, is about to end or has not begun."""


class PeerDiedError(PeerLostError):
    """The worker has died with the call, which it may have begun."""


async def call(path: str, method: str, *arguments: object) -> Any:
    """Call the worker that listens at `path`.

    Raises the ModserveError that it raises, PeerLostError, or PeerDiedError, which is one, too.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError as error:
        raise PeerLostError(f"{path}: {error.strerror}") from None
    try:
        body = values.dumps((method, arguments))
        head = f"POST {CALL} HTTP/1.1\r\nHost: worker\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.writelines((head.encode(), body))
        await writer.drain()
        response = await reader.read(-1)
    except OSError as error:
        raise PeerDiedError(f"{path}: {error.strerror}") from None
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    outcome = values.loads(content(response))
    if isinstance(outcome, ModserveError):
        raise outcome
    return outcome


def content(response: bytes) -> bytes:
    """The body of a whole response. Raises PeerDiedError for a part of one, and PeerLostError for status `GONE`.

    Raises UNAVAILABLE for a call that the worker did not take, since it has no memory left for it, say.
    """
    head, separator, body = response.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").lower().split("\r\n")
    lengths = [int(value) for name, _, value in (line.partition(":") for line in lines) if name == "content-length"]
    if not separator or len(body) < sum(lengths):
        raise PeerDiedError("the worker died before its response was complete")
    status = int(status_line.split(" ")[1])
    if status == GONE:
        raise PeerLostError("the worker is shutting down")
    if status != 200:
        raise unavailable(f"a worker refused another worker's call with status {status}: {body.decode('latin-1')}")
    return body
