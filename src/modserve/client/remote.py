"""Transports to a server by its address. gRPC's library is imported where it is used: it takes a fifth of a second."""

from .address import Access, Address
from .transport import AsyncTransport, Transport


def transport(address: Address, access: Access) -> Transport:
    """Return the transport for threads. Raises ClientError for files that cannot be used."""
    if address.over_grpc:
        from .grpc_transports import GrpcTransport

        return GrpcTransport(address, access)
    from .http_sync import HttpTransport

    return HttpTransport(address, access)


def async_transport(address: Address, access: Access) -> AsyncTransport:
    """Return the transport for an event loop. Raises ClientError for files that cannot be used."""
    if address.over_grpc:
        from .grpc_transports import AsyncGrpcTransport

        return AsyncGrpcTransport(address, access)
    from .http_async import AsyncHttpTransport

    return AsyncHttpTransport(address, access)
