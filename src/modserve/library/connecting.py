"""`connect` and `connect_async`: clients for a server, or for models served in this process."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from modserve.client import remote
from modserve.client.address import Access, is_url, parse
from modserve.client.errors import ClientError, client_errors
from modserve.client.facade import AsyncClient, Client
from modserve.core.errors import Code
from modserve.core.runtime.event_loop import new_event_loop

if TYPE_CHECKING:
    from modserve.process.app import InferenceServer
    from modserve.settings import Settings

Target: TypeAlias = "str | Path | Settings | InferenceServer"
"""Targets that a client can connect to."""


def connect(
    target: Target,
    *,
    timeout: float | None = None,
    headers: Mapping[str, str] | None = None,
    root_cert: str | Path | None = None,
    client_cert: str | Path | None = None,
    client_key: str | Path | None = None,
) -> Client:
    """Return a synchronous client, which several threads may share.

    `target` is the address of a server (``http://``, ``https://``, ``grpc://``, ``grpcs://``), or something to serve in
    this process: a model repository, a model file, or `Settings`. A server in this process runs on its own thread, has
    loaded its models on return, and stops when the client is closed. `target` may also be an `InferenceServer`. If it
    is already running, on another thread's event loop, it keeps running.

    `timeout` is the default time limit of calls in seconds; without it there is no limit. `headers` are sent with every
    call (as metadata over gRPC). The PEM files are for TLS: trusted roots instead of the system's, and a certificate
    with its key. Raises `ClientError`.
    """
    if isinstance(target, str) and is_url(target):
        access = _access(headers, root_cert, client_cert, client_key)
        return Client(remote.transport(parse(target), access), timeout)
    _check_local(target, headers, root_cert, client_cert, client_key)
    from modserve.client.embedded import AsyncEmbeddedTransport, EmbeddedTransport

    server = _server(target)
    inner = AsyncEmbeddedTransport(server, server.__aenter__, server.shut_down)
    transport = EmbeddedTransport(inner, server.loop, new_event_loop)
    transport.start()
    return Client(transport, timeout)


def connect_async(
    target: Target,
    *,
    timeout: float | None = None,
    headers: Mapping[str, str] | None = None,
    root_cert: str | Path | None = None,
    client_cert: str | Path | None = None,
    client_key: str | Path | None = None,
) -> AsyncClient:
    """Return a client for an event loop: ``async with modserve.connect_async(target) as client``.

    Takes the same arguments as `connect`, but a server in this process runs on the caller's event loop.
    """
    if isinstance(target, str) and is_url(target):
        access = _access(headers, root_cert, client_cert, client_key)
        return AsyncClient(remote.async_transport(parse(target), access), timeout)
    _check_local(target, headers, root_cert, client_cert, client_key)
    from modserve.client.embedded import AsyncEmbeddedTransport

    server = _server(target)
    return AsyncClient(AsyncEmbeddedTransport(server, server.__aenter__, server.shut_down), timeout)


def _access(
    headers: Mapping[str, str] | None,
    root_cert: str | Path | None,
    client_cert: str | Path | None,
    client_key: str | Path | None,
) -> Access:
    root, cert, key = (None if file is None else Path(file) for file in (root_cert, client_cert, client_key))
    return Access(dict(headers or {}), root, cert, key)


def _check_local(target: object, *options: object) -> None:
    if any(options):
        raise ClientError(
            Code.INVALID_ARG,
            f"headers and certificates need the address of a server, such as http://127.0.0.1:8000, got: {target}",
        )


def _server(target: Target) -> "InferenceServer":
    """Return the server for `target`, which may not be started. Raises ClientError."""
    from modserve.process.app import InferenceServer

    if isinstance(target, InferenceServer):
        return target
    with client_errors():
        return InferenceServer(settings_of(target))


def settings_of(target: "str | Path | Settings", **more: Any) -> "Settings":
    """Return settings for a model repository or a model file, with `more` settings; `Settings` stay unchanged.

    Raises ClientError for any other target.
    """
    from modserve.settings import Settings

    if isinstance(target, Settings):
        return target
    text = os.fspath(target)
    if "://" in text:
        return Settings(model_repository=text, **more)
    path = Path(text)
    if path.is_file():
        return Settings(model_file=path, **more)
    if not path.is_dir():
        hint = f"; the address of a server is http://{text} or grpc://{text}" if ":" in text else ""
        raise ClientError(Code.INVALID_ARG, f"there is no model repository or model file at '{text}'{hint}")
    return Settings(model_repository=path, **more)
