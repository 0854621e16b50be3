"""The gRPC port, on grpc.aio."""

import grpc

from modserve.frontends.certificates import Certificates, Identity, TlsFiles
from modserve.pb import inference as pb
from modserve.server import Server

from . import health
from .arguments import channel_arguments
from .options import GrpcOptions
from .reflection import add_reflection
from .service import handlers
from .stream import InferStreams


class GrpcListener:
    """Serves `server` on one port."""

    def __init__(self, server: Server, address: str, port: int, options: GrpcOptions) -> None:
        self._address = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        self._tls = options.tls
        self._grpc = grpc.aio.server(options=channel_arguments(options))
        self._streams = InferStreams(server, options.header_pattern, server_timing=options.server_timing)
        self._grpc.add_generic_rpc_handlers(handlers(server, self._streams, options))
        add_reflection(self._grpc, (pb.SERVICE, health.SERVICE))

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
        """Refuse new calls at once, and let those under way finish for `grace` seconds.

        Streams take no more requests, and end when those they have taken are answered.
        """
        self._streams.stop()
        await self._grpc.stop(grace)


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
