"""Server reflection under both of its names: ``v1``, which clients ask for first today, and ``v1alpha``.

Their messages are the same on the wire, and the library has those of ``v1alpha`` only: one servicer serves both.
"""

from collections.abc import Iterable

import grpc
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from modserve.pb import inference as pb

SERVICES = ("grpc.reflection.v1.ServerReflection", reflection.SERVICE_NAME)


def add_reflection(server: grpc.aio.Server, names: Iterable[str]) -> None:
    """Let clients of `server` look up the services `names` and their messages, and reflection itself."""
    servicer = reflection.aio.ReflectionServicer((*names, *SERVICES), pool=_pool())  # type: ignore[attr-defined]
    call = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": call}) for name in SERVICES]
    )


def _pool() -> DescriptorPool:
    """Our messages, the health service's and reflection's own, in the one pool that reflection looks into."""
    alpha = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
    renamed = text_format.MessageToString(alpha).replace("v1alpha", "v1")
    pb.POOL.AddSerializedFile(health_pb2.DESCRIPTOR.serialized_pb)
    pb.POOL.AddSerializedFile(reflection_pb2.DESCRIPTOR.serialized_pb)
    pb.POOL.Add(text_format.Parse(renamed, FileDescriptorProto()))
    return pb.POOL
