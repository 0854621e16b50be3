"""What a client needs of what is behind it, and the table of the calls that are no inference."""

from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .values import Call, Result


@dataclass(frozen=True, slots=True)
class Operation:
    """A call: over HTTP a method and a path, over gRPC an RPC whose request names the model in the field `name`."""

    method: str
    path: str
    rpc: str
    name: str = "name"


LIVE = Operation("GET", "/v2/health/live", "ServerLive")
READY = Operation("GET", "/v2/health/ready", "ServerReady")
SERVER = Operation("GET", "/v2", "ServerMetadata")
MODEL_READY = Operation("GET", "{model}/ready", "ModelReady")
METADATA = Operation("GET", "{model}", "ModelMetadata")
CONFIG = Operation("GET", "{model}/config", "ModelConfig")
STATISTICS = Operation("GET", "{model}/stats", "ModelStatistics")
INDEX = Operation("POST", "/v2/repository/index", "RepositoryIndex")
LOAD = Operation("POST", "/v2/repository/models/{name}/load", "RepositoryModelLoad", "model_name")
UNLOAD = Operation("POST", "/v2/repository/models/{name}/unload", "RepositoryModelUnload", "model_name")

PROBES = frozenset({LIVE, READY, MODEL_READY})
"""They are a yes or no: False for a status that is an error, too."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One call that is no inference. `parameters` are texts, for LOAD and UNLOAD."""

    operation: Operation
    model: str = ""
    version: int | None = None
    parameters: Mapping[str, str | bool] | None = None
    timeout: float | None = None


class Transport(Protocol):
    """All methods raise `ClientError`. Usable from several threads."""

    def start(self) -> None: ...

    def ask(self, question: Question) -> Any:
        """The response in JSON's values, as HTTP has it; a bool for `PROBES`."""

    def infer(self, call: Call) -> Result: ...

    def stream(self, call: Call) -> Generator[Result]: ...

    def close(self) -> None:
        """May be called twice."""


class AsyncTransport(Protocol):
    """The same for an event loop. Cancelling a caller cancels the request."""

    async def start(self) -> None: ...

    async def ask(self, question: Question) -> Any: ...

    async def infer(self, call: Call) -> Result: ...

    def stream(self, call: Call) -> AsyncGenerator[Result]: ...

    async def close(self) -> None: ...
