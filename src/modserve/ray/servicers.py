"""The services that Ray's gRPC proxies serve. Messages pass as bytes: only replicas read them."""

from typing import Any

import grpc

from modserve.pb import health as health_pb
from modserve.pb import inference as pb
from modserve.pb.descriptors import Method

SERVICES = ((pb.SERVICE, pb.METHODS), (health_pb.SERVICE, health_pb.METHODS))


def add_services(servicer: object, server: Any) -> None:
    """Add the services like generated code: ``grpc_servicer_functions: [modserve.ray.servicers.add_services]``."""
    for service, methods in SERVICES:
        handlers = {name: _handler(method) for name, method in methods.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def _handler(method: Method) -> Any:
    """Return a handler of the method's kind, with a function that Ray replaces by its own."""
    maker = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[method.client_streaming, method.server_streaming]
    return maker(_refuse)


def _refuse(request: object, context: object) -> None:
    raise NotImplementedError("Ray's proxy serves this call")
