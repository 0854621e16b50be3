"""gRPC calls as their handlers see them, and the rows of the table that has the handlers."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from modserve.access.credentials import Credentials
from modserve.core.requests.origin import Origin
from modserve.core.tensors.tensor import Buffer
from modserve.pb.descriptors import Method
from modserve.protocol.restricted import Restriction

if TYPE_CHECKING:
    from modserve.access.identity import Identity
    from modserve.frontends.call import InferenceCall


class ClientDisconnectedError(Exception):
    """End of the call by its client, which takes nothing more."""


class ReadingStoppedError(Exception):
    """End of reading: the server takes no more, and all that had come of the call has been read."""


Response: TypeAlias = bytes | list[Buffer]
"""A message, or the parts of one."""


class RpcCall(Protocol):
    """A call as its handler sees it."""

    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]: ...

    @property
    def credentials(self) -> Credentials:
        """Credentials of the caller, from the metadata or the connection's handshake."""
        ...

    @property
    def deadline_ns(self) -> int:
        """Time at which the client stops waiting, on the monotonic clock; 0 for never."""
        ...

    @property
    def origin(self) -> Origin:
        """Origin: the client's address, and what the metadata say of it."""
        ...

    @property
    def request_id(self) -> str:
        """Id of the request (`core.requests.request_ids`); empty until it is needed."""
        ...

    def identify(self) -> str:
        """Return the request's id, made now if there is none: the call has failed, or is a stream."""
        ...

    def set_identity(self, identity: "Identity") -> None:
        """Set the caller, who is known; whether the caller may make the call is not."""
        ...

    def set_inference(self, call: "InferenceCall") -> None:
        """Set the inference that the call is; it has begun, and has its id."""
        ...

    async def read(self) -> bytes | None:
        """Return the next message, None after the last. Raises `ClientDisconnectedError`, `ReadingStoppedError`."""
        ...

    def stop_reading(self) -> None:
        """Take no more messages of a stream than have come."""
        ...

    async def write(self, message: Response) -> None:
        """Send a message of a stream; returns when the client is ready for more. Raises `ClientDisconnectedError`."""
        ...

    async def send_response(self, response: Response) -> None:
        """Send the response of a unary call, unless it has got its status."""
        ...

    def end_stream(self) -> None:
        """End a stream successfully."""
        ...

    def refuse(self, refusal: "Refusal") -> None:
        """End the call with a failure."""
        ...

    def end_call(self, status: int, message: str) -> None:
        """End the call with this status, unless it has got one before."""
        ...

    def set_trailers(self, trailers: tuple[tuple[str, str], ...]) -> None:
        """Set the metadata that goes out with the status."""
        ...

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the call is over, however it ends."""
        ...


Handler: TypeAlias = Callable[..., Awaitable[Any]]


class Rpc(NamedTuple):
    """A row of the table of calls.

    The `handler` of a unary call takes its message and the `RpcCall`, and returns a message, or the parts of its bytes.
    That of a stream takes its one message, or none if the client streams, and the `RpcCall`. Both raise the error that
    the call fails with, or return it.
    """

    method: Method
    handler: Handler
    restriction: Restriction | None = None
    infers: bool = False
    """The handler takes its message as an `InferMessage`."""
    direct: bool = False
    """True if such a call is served without the handler where that is possible."""
    probes: bool = False
    """True for calls about health, which are counted nowhere: they would hide the failures of others."""


class Refusal(NamedTuple):
    """Status of a failed call. It holds no exception, and so none of the frames that one came through."""

    status: int
    message: str
    trailers: tuple[tuple[str, str], ...]
    request_id: str
