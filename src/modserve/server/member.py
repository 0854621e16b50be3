"""Interface of a server that is part of several: workers of one machine, or replicas."""

from typing import Any, Protocol

from modserve.core.configuration.trace_settings import TraceSettings
from modserve.core.servable import Servable
from modserve.routing.router import RouteRollback

from .local import LocalServer


class ServerMember(Protocol):
    """Interface of one of several servers that act as one."""

    @property
    def count(self) -> int:
        """Number of servers that share the machine's resources."""
        ...

    @property
    def place(self) -> tuple[int, int]:
        """Position among the servers that share files, and their number."""
        ...

    def with_owners(self, servable: Servable) -> Servable:
        """Return the model, or one before it that sends requests of sequences to the servers that have these."""
        ...

    def engine_control(self, own: LocalServer) -> Any:
        """Return the `models.serving.calls.ModelControl` of this server's engines over its models."""
        ...

    def trace(self, settings: TraceSettings) -> TraceSettings:
        """Return the settings of this server's traces."""
        ...

    def roll_back_elsewhere(self, rollback: RouteRollback) -> None:
        """Tell the others what a rule of a routing has done here."""
        ...
