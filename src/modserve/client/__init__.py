"""Clients of a server at an address or in this process: arrays in, arrays out. `modserve.connect` creates them.

`Client` and `AsyncClient` are the public classes. Each uses a transport (`transport.py`): HTTP, gRPC, or a server in
this process. Functions without I/O write and read the messages (`http_messages.py`, `grpc_messages.py`).
"""

from .errors import ClientError, ClientTimeoutError
from .facade import AsyncClient, Client
from .input_values import ModelMetadata, Result, TensorMetadata, Value

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
