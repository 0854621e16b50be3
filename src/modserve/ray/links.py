"""Links between replicas: handles and actors of Ray."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ray import serve
from ray.exceptions import RayActorError, RayError

from modserve.core.errors import unavailable

from .replica_set import LedgerLostError

LEDGER = "ledger"
"""Name of the actor that numbers the changes."""
RECEIVE = "receive_call"
SEQUENCE = "receive_sequence"
"""Methods of a replica, for the others."""


def broadcast(deployment: str, app: str) -> Callable[[bytes, float], Awaitable[list[Any]]]:
    """Calls `RECEIVE` of each replica; what it returns has exceptions of replicas that are lost meanwhile."""
    handle = serve.get_deployment_handle(deployment, app)

    async def call(data: bytes, seconds: float) -> list[Any]:
        try:
            responses = handle.broadcast(RECEIVE, data)
            results: list[Any] = await responses.results_async(timeout_s=seconds, return_exceptions=True)
        except (RayError, serve.exceptions.RayServeException, TimeoutError):
            return []
        return results

    return call


class LedgerLink:
    """The ledger of the deployment that this replica belongs to. Implements `replica_set.LedgerCalls`."""

    async def change(self, change: bytes) -> bytes:
        outcome: bytes = await self._call("change", change)
        return outcome

    async def since(self, number: int) -> tuple[int, list[bytes]]:
        number, changes = await self._call("since", number)
        return number, changes

    async def restore(self, number: int, changes: list[bytes]) -> None:
        await self._call("restore", number, changes)

    async def _call(self, method: str, *arguments: object) -> Any:
        try:
            actor = serve.get_deployment_actor(LEDGER)
            return await getattr(actor, method).remote(*arguments)
        except (RayActorError, ValueError) as error:  # the latter while a new one is started
            raise LedgerLostError(str(error)) from None


class SequenceLink:
    """Sends requests of sequences to the replicas that have them."""

    def __init__(self, deployment: str, app: str) -> None:
        self._handle = serve.get_deployment_handle(deployment, app).options(stream=True, method_name=SEQUENCE)

    async def send(self, session: str, data: bytes) -> AsyncIterator[tuple[bool, bytes]]:
        """Send a request; yield True for the last outcome, and its bytes. Raises UNAVAILABLE where the replica is
        lost.
        """
        try:
            async for outcome in self._handle.options(session_id=session).remote(data):
                yield outcome
        except RayError:
            raise unavailable("the replica that has the sequence has ended: start the sequence again") from None
