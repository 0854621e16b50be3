"""What a server asks of its part among several: those of one machine, or replicas."""

from typing import Any, Protocol

from modserve.core.configuration.trace_settings import TraceSettings
from modserve.core.servable import Servable
from modserve.routing.router import RouteRollback

from .local import LocalServer


class ServerMember(Protocol):
    """One of several servers that act as one."""

    @property
    def count(self) -> int:
        """Those that share the machine's resources."""
        ...

    @property
    def place(self) -> tuple[int, int]:
        """Which of how many it is, of those that share files."""
        ...

    def with_owners(self, servable: Servable) -> Servable:
        """The model, or one before it that sends requests of sequences to the servers that have these."""
        ...

    def engine_control(self, own: LocalServer) -> Any:
        """What the engines of this server may do to its models: a `models.serving.calls.ModelControl`."""
        ...

    def trace(self, settings: TraceSettings) -> TraceSettings:
        """The settings of this server's traces."""
        ...

    def roll_back_elsewhere(self, rollback: RouteRollback) -> None:
        """Tell the others what a rule of a routing has done here."""
        ...
