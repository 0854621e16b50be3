"""Listen addresses of a server with its settings."""

from typing import NamedTuple

from modserve.core.runtime import unix_socket

from .settings import Settings

_ANY_HOST, _LOOPBACK = "0.0.0.0", "127.0.0.1"


class ListenAddress(NamedTuple):
    """Listen address of a server. `port` means nothing at a Unix socket."""

    name: str
    address: str
    port: int
    secure: bool = False
    """TLS is spoken there."""
    shared: bool = False
    """Other servers may have it, too."""

    @property
    def path(self) -> str:
        """Path of a Unix socket; empty for a port."""
        return unix_socket.path_of(self.address)

    def __str__(self) -> str:
        return place(self.address, self.port)


def place(address: str, port: int) -> str:
    """``HOST:PORT``, or ``unix:PATH``."""
    return unix_socket.format_address(address) if unix_socket.path_of(address) else f"{address}:{port}"


def listen_addresses(settings: Settings) -> list[ListenAddress]:
    """Return all addresses of a server: HTTP, gRPC, metrics and admin, as far as they are served."""
    http, grpc = settings.http, settings.grpc
    served = []
    if http.allow:
        served.append(ListenAddress("HTTP", http.address, http.port, http.tls is not None, http.reuse_port))
    if grpc.allow:
        served.append(ListenAddress("gRPC", grpc.address, grpc.port, grpc.tls is not None, grpc.reuse_port))
    metrics, admin = metrics_address_of(settings), admin_address_of(settings)
    return [*served, *(each for each in (metrics, admin) if each is not None)]


def metrics_address_of(settings: Settings) -> ListenAddress | None:
    """Return the metrics address; with an admin port, which has the metrics, only if its own address or port is set."""
    own = settings.metrics_address or "metrics_port" in settings.model_fields_set
    if not settings.allow_metrics or (settings.admin_address and not own):
        return None
    http = settings.http.address
    address = settings.metrics_address or (_LOOPBACK if unix_socket.path_of(http) else http)
    return ListenAddress("metrics", address, settings.metrics_port)


def admin_address_of(settings: Settings) -> ListenAddress | None:
    """A Unix socket has no TLS; a port has that of HTTP."""
    address = settings.admin_address
    if not address:
        return None
    if unix_socket.path_of(address):
        return ListenAddress("admin", address, 0)
    host, _, port = address.rpartition(":")
    return ListenAddress("admin", host.strip("[]") or _ANY_HOST, int(port), settings.http.tls is not None)
