"""The gRPC port, on grpc.aio."""

import asyncio
import logging

import grpc

from modserve.frontends.certificates import Certificates, Identity
from modserve.server import Server
from modserve.settings import TlsFiles

from .arguments import channel_arguments
from .border import Border
from .options import GrpcOptions
from .service import call_table
from .stream import InferStreams

_log = logging.getLogger("grpc._cython.cygrpc")
"""The library's own."""

_QUIET = 0.02
"""Seconds without a new call after which none waits to be taken over."""

_REST = 0.05
"""The same when the port is about to close, with some time for clients to call again that were just answered."""

_LATE = 0.02
"""Seconds by which such a look may come too late, and still count."""

_TURNS = 10
"""Turns of the event loop, more than it takes to take a call over: the loop itself may have been busy meanwhile."""

_BACKLOG = 2.0
"""Seconds for taking over calls that have arrived, at most."""


def _is_news(record: logging.LogRecord) -> bool:
    """Whether the library tells of more than a client that has gone while it was being answered.

    It has a traceback for that, where the client's cancellation has not come to its notice before.
    """
    return "ExecuteBatchError" not in str(record.msg)


class GrpcListener:
    """Serves `server` on one port."""

    def __init__(self, server: Server, address: str, port: int, options: GrpcOptions) -> None:
        self._address = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        self._tls = options.tls
        _log.addFilter(_is_news)
        self._grpc = grpc.aio.server(options=channel_arguments(options))
        self._streams = InferStreams(
            server,
            options.header_pattern,
            server_timing=options.server_timing,
            max_message=options.max_message,
        )
        self._border = Border(server, max_message=options.max_message)
        self._table = call_table(server, self._streams, options, self._border)
        self._grpc.add_generic_rpc_handlers((self._table,))

    async def start(self) -> int:
        """Open the port and return its number. Raises OSError, or CertificateError."""
        try:
            if self._tls is None:
                port = self._grpc.add_insecure_port(self._address)
            else:
                port = self._grpc.add_secure_port(self._address, _credentials(self._tls))
        except RuntimeError as error:
            raise OSError(f"can not listen on {self._address}: {error}") from error
        await self._grpc.start()
        return port

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, and let those under way finish for `grace` seconds.

        Streams take no more requests, and end when those they have taken are answered.
        """
        self._streams.stop()
        if grace is None:
            await self._grpc.stop(None)
            return
        began = asyncio.get_running_loop().time()
        self._border.hold_refusals()
        await self._quiet(min(_BACKLOG, grace), _REST, at_rest=True)
        grace -= asyncio.get_running_loop().time() - began
        stopping = asyncio.ensure_future(self._grpc.stop(max(0.0, grace)))
        await asyncio.sleep(0)  # it has told the clients to go elsewhere
        self._border.release_refusals()
        await stopping

    async def take_backlog(self, limit: float = _BACKLOG) -> None:
        """Return when every call that has arrived is under way, or after `limit` seconds.

        The library's core keeps calls until they are taken over, one by one, and ends those that it still has with
        CANCELLED when the port closes (grpc/grpc issue 41785).
        """
        await self._quiet(limit, _QUIET, at_rest=False)

    async def _quiet(self, limit: float, seconds: float, at_rest: bool) -> None:
        """Return when no call has come for so many seconds and, for `at_rest`, none is being answered, or at the limit.

        A client whose call is being answered will often make another. Time in which the machine did not let this
        process run does not count: clients beside it may not have run either.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + limit
        taken = -1
        while (began := loop.time()) < end:
            taken = self._table.taken
            await asyncio.sleep(seconds)
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            in_time = loop.time() - began <= seconds + _LATE
            if in_time and taken == self._table.taken and not (at_rest and self._border.calls):
                return


def _credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """gRPC asks for the certificates at each handshake, on a thread of its own. Raises CertificateError."""
    certificates = Certificates(files)
    given = certificates.current()

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        found = certificates.current()
        if found is given:
            return None
        given = found
        return _configuration(found)

    # What is in use stays in use for None, which the stubs do not know.
    return grpc.dynamic_ssl_server_credentials(_configuration(given), newer, files.mutual)  # type: ignore[arg-type]


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.certificate)], identity.root)
