"""Cooperation of a replica's server with other replicas."""

from dataclasses import replace

from modserve.core.configuration.trace_settings import TraceSettings
from modserve.core.runtime.background import Background
from modserve.core.servable import Servable
from modserve.routing.router import RouteRollback
from modserve.server.local import LocalServer
from modserve.workers.control import EngineControl

from .replica_set import ReplicaSet
from .sequences import SequenceRoutes, SessionModel

_REFUSED = "it runs in one of several replicas, and the others would not do the same. Let a client do it"


class ReplicaMember:
    """Implements `server.member.ServerMember`."""

    def __init__(self, peers: ReplicaSet, routes: SequenceRoutes | None) -> None:
        """`routes`: None if Ray cannot determine the owner of a sequence."""
        self.count = 1  # each replica has its own process and resources
        self.place = 0, 1
        self._peers = peers
        self._routes = routes
        self._telling = Background("rollback")

    def with_owners(self, servable: Servable) -> Servable:
        return servable if servable.config.sequence_batching is None else SessionModel(servable, self._routes)

    def engine_control(self, own: LocalServer) -> EngineControl:
        return EngineControl(own, _REFUSED)

    def trace(self, settings: TraceSettings) -> TraceSettings:
        """Return settings with a file of the replica's own: replicas on one node would overwrite each other's."""
        return replace(settings, file=f"{settings.file}.replica-{self._peers.name}") if settings.file else settings

    def roll_back_elsewhere(self, rollback: RouteRollback) -> None:
        self._telling.start(self._tell(rollback))

    async def _tell(self, rollback: RouteRollback) -> None:
        await self._peers.ask("roll_back", rollback)
