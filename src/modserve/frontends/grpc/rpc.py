"""gRPC calls as the front end sees them, whatever library or listener they come through."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from modserve.core.tensor import Buffer
from modserve.pb.descriptors import Method
from modserve.protocol.restricted import Restriction
from modserve.server import Server
from modserve.settings import GrpcSettings

if TYPE_CHECKING:
    from modserve.frontends.call import Call

    from .plain import PlainInferences


class ClientGoneError(Exception):
    """The client has ended the call, and takes nothing more."""


Response: TypeAlias = bytes | list[Buffer]
"""A message, or the parts of one."""


class RpcCall(Protocol):
    """One call: what a handler needs of it."""

    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]: ...

    @property
    def deadline_ns(self) -> int:
        """When the client stops waiting, on the monotonic clock; 0 for never."""
        ...

    @property
    def peer(self) -> object:
        """The client's address, as a socket has it, or a text; None where it is unknown."""
        ...

    @property
    def request_id(self) -> str:
        """That of `core.request_ids`; empty while nobody needs it."""
        ...

    def identify(self) -> str:
        """The same, made now if there is none: the call has failed, or is a stream."""
        ...

    def serving(self, call: "Call") -> None:
        """The inference that the call is has begun, and has its id."""
        ...

    async def read(self) -> bytes | None:
        """The next message, None after the last one. Raises `ClientGoneError`."""
        ...

    async def write(self, message: Response) -> None:
        """Send a message of a stream; returns when the client is ready for more. Raises `ClientGoneError`."""
        ...

    def set_trailers(self, trailers: tuple[tuple[str, str], ...]) -> None:
        """Metadata that goes out with the status."""
        ...

    async def refuse(self, refusal: "Refusal") -> bytes:
        """End a unary call that failed. What it returns, if it does not raise, is the call's response."""
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
    plain: "PlainInferences | None" = None
    """What serves such calls in place of the handler, where it can."""


class Refusal(NamedTuple):
    """How a call ends that failed. It holds no exception, and so none of the frames that one came through."""

    status: int
    message: str
    trailers: tuple[tuple[str, str], ...]
    early: bool
    """It ended before its message came, and is not in the log yet."""
    request_id: str = ""


class GrpcListener(Protocol):
    """A port, whatever serves it."""

    def __init__(self, server: Server, address: str, port: int, options: GrpcSettings) -> None: ...

    @property
    def connections(self) -> int | None:
        """How many are open; None if the library does not say."""
        ...

    @property
    def responses(self) -> dict[str, int]:
        """How many calls ended, by the names of their status."""
        ...

    @property
    def endings(self) -> dict[str, int]:
        """How many connections it has ended before their time, by the reason; empty if the library does not say."""
        ...

    async def start(self) -> int:
        """Open the port and return its number. Raises OSError, or CertificateError."""
        ...

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, and let those under way finish for `grace` seconds; None: none.

        Streams read no more requests, and end when those they have read are settled.
        """
        ...

    async def take_backlog(self) -> None:
        """Return when every call that has arrived is under way, or after some seconds."""
        ...
