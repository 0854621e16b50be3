"""Clients of a server, by its address or in this process: arrays in, arrays out. `modserve.connect` makes them.

`Client` and `AsyncClient` are what users hold. Behind each is a transport (`transport.py`): HTTP, gRPC, or a server of
this process. What goes over a wire is made and read by plain functions (`http_messages.py`, `grpc_messages.py`).
"""

from .errors import ClientError, ClientTimeoutError
from .facade import AsyncClient, Client
from .values import ModelMetadata, Result, TensorMetadata, Value

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "ClientTimeoutError",
    "ModelMetadata",
    "Result",
    "TensorMetadata",
    "Value",
]
