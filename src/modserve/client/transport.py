"""The interface of transports, and the table of control calls."""

from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from .values import ClientCall, Result


@dataclass(frozen=True, slots=True)
class Operation:
    """A call: over HTTP a method and a path, over gRPC an RPC whose request names the model in the field `name`.

    `rpc` is empty for calls that only HTTP has. A `probe` is answered by yes or no: False for the statuses of errors
    that say so, too.
    """

    method: str
    path: str
    rpc: str
    name: str = "name"
    probe: bool = False


LIVE = Operation("GET", "/v2/health/live", "ServerLive", probe=True)
READY = Operation("GET", "/v2/health/ready", "ServerReady", probe=True)
HEALTH = Operation("GET", "/v2/health/ready", "ServerReady")
"""Readiness with its obstacles: ``ready``, and of servers of modserve over HTTP ``phase`` and ``reasons``."""
SERVER = Operation("GET", "/v2", "ServerMetadata")
MODEL_READY = Operation("GET", "{model}/ready", "ModelReady", probe=True)
METADATA = Operation("GET", "{model}", "ModelMetadata")
CONFIG = Operation("GET", "{model}/config", "ModelConfig")
STATISTICS = Operation("GET", "{model}/stats", "ModelStatistics")
"""Statistics of a model; of all models without a name."""
ENGINE = Operation("GET", "{model}/engine", "")
"""Engine that runs a version, an extension of modserve."""
INDEX = Operation("POST", "/v2/repository/index", "RepositoryIndex")
DRAIN = Operation("POST", "/v2/health/drain", "")
"""An extension of modserve; the response comes when the server is drained."""
LOAD = Operation("POST", "/v2/repository/models/{name}/load", "RepositoryModelLoad", "model_name")
UNLOAD = Operation("POST", "/v2/repository/models/{name}/unload", "RepositoryModelUnload", "model_name")

Parameters: TypeAlias = Mapping[str, str | bool | bytes]
"""Bytes are files; JSON has them in base64."""


@dataclass(frozen=True, slots=True, eq=False)
class ControlCall:
    """A call of an `Operation`. `parameters` are for LOAD and UNLOAD."""

    operation: Operation
    model: str = ""
    version: int | None = None
    parameters: Parameters | None = None
    timeout: float | None = None


class Transport(Protocol):
    """Transport that several threads may use. All methods raise `ClientError`."""

    def start(self) -> None: ...

    def call(self, control: ControlCall) -> Any:
        """Return the response in JSON's values, as HTTP has it; a bool for probes."""

    def infer(self, call: ClientCall) -> Result: ...

    def stream(self, call: ClientCall) -> Generator[Result]:
        """Yield the responses as they come, but for one that only says that it is the last."""

    def close(self) -> None:
        """May be called twice."""


class AsyncTransport(Protocol):
    """Transport for an event loop. Cancelling a caller cancels the request."""

    async def start(self) -> None: ...

    async def call(self, control: ControlCall) -> Any: ...

    async def infer(self, call: ClientCall) -> Result: ...

    def stream(self, call: ClientCall) -> AsyncGenerator[Result]: ...

    async def close(self) -> None: ...
