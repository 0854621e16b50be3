"""Interface of transports, and the table of control calls."""

from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from .input_values import ClientCall, Result


@dataclass(frozen=True, slots=True)
class Operation:
    """A control call: an HTTP method and path, and an RPC with the model's name in the request field `name`.

    `rpc` is empty for HTTP-only calls. The result of a `probe` is a bool; error statuses that mean "no" give False.
    """

    method: str
    path: str
    rpc: str
    name: str = "name"
    probe: bool = False


LIVE = Operation("GET", "/v2/health/live", "ServerLive", probe=True)
READY = Operation("GET", "/v2/health/ready", "ServerReady", probe=True)
HEALTH = Operation("GET", "/v2/health/ready", "ServerReady")
"""Readiness: ``ready``, and from modserve over HTTP also ``phase`` and ``reasons``."""
SERVER = Operation("GET", "/v2", "ServerMetadata")
MODEL_READY = Operation("GET", "{model}/ready", "ModelReady", probe=True)
METADATA = Operation("GET", "{model}", "ModelMetadata")
CONFIG = Operation("GET", "{model}/config", "ModelConfig")
STATISTICS = Operation("GET", "{model}/stats", "ModelStatistics")
"""Statistics of a model, or without a name of all models."""
ENGINE = Operation("GET", "{model}/engine", "")
"""Engine of a version, an extension of modserve."""
INDEX = Operation("POST", "/v2/repository/index", "RepositoryIndex")
DRAIN = Operation("POST", "/v2/health/drain", "")
"""Drain, an extension of modserve. The server responds when it is drained."""
LOAD = Operation("POST", "/v2/repository/models/{name}/load", "RepositoryModelLoad", "model_name")
UNLOAD = Operation("POST", "/v2/repository/models/{name}/unload", "RepositoryModelUnload", "model_name")

Parameters: TypeAlias = Mapping[str, str | bool | bytes]
"""Parameters of a load or unload. Bytes are files, base64-encoded in JSON."""


@dataclass(frozen=True, slots=True, eq=False)
class ControlCall:
    """Arguments of an `Operation`. `parameters` are for LOAD and UNLOAD."""

    operation: Operation
    model: str = ""
    version: int | None = None
    parameters: Parameters | None = None
    timeout: float | None = None


class Transport(Protocol):
    """Thread-safe transport. All methods raise `ClientError`."""

    def start(self) -> None: ...

    def call(self, control: ControlCall) -> Any:
        """Return the response as JSON values in the form of HTTP; a bool for probes."""

    def infer(self, call: ClientCall) -> Result: ...

    def stream(self, call: ClientCall) -> Generator[Result]:
        """Yield the responses as they arrive, without an empty final response."""

    def close(self) -> None:
        """Close the connections. May be called again."""


class AsyncTransport(Protocol):
    """Transport for an event loop. Cancelling a caller cancels the request."""

    async def start(self) -> None: ...

    async def call(self, control: ControlCall) -> Any: ...

    async def infer(self, call: ClientCall) -> Result: ...

    def stream(self, call: ClientCall) -> AsyncGenerator[Result]: ...

    async def close(self) -> None: ...
