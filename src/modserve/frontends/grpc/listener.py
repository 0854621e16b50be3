"""The gRPC port, on grpc.aio."""

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection

from modserve.pb import inference as pb
from modserve.server import Server

from .options import GrpcOptions
from .service import handlers
from .stream import InferStreams

_OPTIONS = (
    # Unlimited messages, as Triton's.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Two servers on one port would share it silently.
    ("grpc.so_reuseport", 0),
)
_HEALTH = "grpc.health.v1.Health"


class GrpcListener:
    """Serves `server` on one port."""

    def __init__(self, server: Server, address: str, port: int, options: GrpcOptions) -> None:
        self._address = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        self._grpc = grpc.aio.server(options=_OPTIONS)
        self._streams = InferStreams(server)
        self._grpc.add_generic_rpc_handlers(handlers(server, self._streams))
        names = (pb.SERVICE, _HEALTH, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._grpc, _reflection_pool())

    async def start(self) -> int:
        """Open the port and return its number. Raises OSError."""
        try:
            port = self._grpc.add_insecure_port(self._address)
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


def _reflection_pool() -> DescriptorPool:
    """Our messages and the health service's, in the one pool that reflection looks into."""
    pb.POOL.AddSerializedFile(health_pb2.DESCRIPTOR.serialized_pb)
    return pb.POOL
