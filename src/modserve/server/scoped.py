"""The server with the permissions of the current task's caller.

All access to a model goes through here, so handlers check nothing themselves: a model that the caller must not see does
not exist, and other calls without permission are refused. Without an identified caller, which is a bug, all calls are
refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from modserve.access.caller import current
from modserve.core.configuration.trace_settings import TraceChange
from modserve.core.errors import ModserveError
from modserve.core.lifecycle import IndexEntry
from modserve.core.servable import Handle, Servable
from modserve.core.tenants import Tenant
from modserve.observability.logging import Logs
from modserve.observability.trace import Tracer
from modserve.pb import inference as pb
from modserve.routing.routings import Routings
from modserve.server import DrainPhase, Phase, Readiness, Server
from modserve.server.interface import Region, RegionT


class _ScopedRoutings:
    """Labels of the models visible to the caller."""

    def __init__(self, routings: Routings) -> None:
        self._routings = routings

    def resolve_label(self, name: str, text: str, failure: ModserveError) -> int:
        if not current().sees(name):
            raise failure
        return self._routings.resolve_label(name, text, failure)

    def has_labels(self, name: str) -> bool:
        return current().sees(name) and self._routings.has_labels(name)


class ScopedServer:
    """Implements `Server`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.name, self.version = server.name, server.version
        self.quotas = server.quotas
        self.changes, self.memory, self.shared_memory = server.changes, server.memory, server.shared_memory
        self.tracer, self.failure_log, self.access_log = server.tracer, server.failure_log, server.access_log
        self.pace, self.ready_models, self.index = server.pace, server.ready_models, server.index
        self.recorder, self.engine_metrics = server.recorder, server.engine_metrics
        self.folder, self.model_memory = server.folder, server.model_memory
        self.failures, self.reading = server.failures, server.reading
        self.change_log_settings, self.drain = server.change_log_settings, server.drain
        self.routings = cast(Routings, _ScopedRoutings(server.routings))

    @property
    def tenant(self) -> Tenant | None:
        return current().tenant

    @property
    def phase(self) -> Phase:
        return self._server.phase

    @property
    def retiring(self) -> bool:
        return self._server.retiring

    @property
    def leaving(self) -> bool:
        return self._server.leaving

    @property
    def drain_phase(self) -> DrainPhase:
        return self._server.drain_phase

    @property
    def live(self) -> bool:
        return self._server.live

    @property
    def ready(self) -> bool:
        return self._server.ready

    @property
    def extensions(self) -> Sequence[str]:
        return self._server.extensions

    @property
    def control_mode(self) -> str:
        return self._server.control_mode

    @property
    def logs(self) -> Logs:
        return self._server.logs

    # One model

    def model(self, name: str, version: int | None = None) -> Servable:
        current().check(name)
        return self._server.model(name, version)

    def borrow(self, name: str, version: int | None = None) -> Handle:
        current().check(name)
        return self._server.borrow(name, version)

    def tracer_for(self, model: str) -> Tracer:
        self._check(model)
        return self._server.tracer_for(model)

    async def check_model_ready(self, name: str, version: int | None) -> bool:
        current().check(name)
        return await self._server.check_model_ready(name, version)

    async def model_trouble(self, name: str, version: int | None) -> str | None:
        current().check(name)
        return await self._server.model_trouble(name, version)

    async def routing(self, name: str) -> dict[str, Any]:
        current().check(name)
        return await self._server.routing(name)

    async def load_model(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        current().check(name)
        await self._server.load_model(name, config, files)

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        current().check(name)
        await self._server.unload_model(name, unload_dependents)

    async def set_routing(self, name: str, document: object) -> None:
        current().check(name)
        await self._server.set_routing(name, document)

    async def change_trace_settings(self, change: TraceChange, model: str) -> None:
        self._check(model)
        await self._server.change_trace_settings(change, model)

    def _check(self, model: str) -> None:
        """Check the permission for a call about the model; about the whole server if `model` is empty."""
        if model:
            current().check(model)
        else:
            current().check_server()

    # Models visible to the caller

    def models(self, name: str | None = None, version: int | None = None) -> list[Servable]:
        caller = current()
        if name is not None:
            caller.check(name)
            return self._server.models(name, version)
        return [each for each in self._server.models() if caller.may(each.id.name)]

    def model_names(self) -> list[str]:
        caller = current()
        return [name for name in self._server.model_names() if caller.may(name)]

    async def readiness(self) -> Readiness:
        caller, readiness = current(), await self._server.readiness()
        return Readiness(readiness.ready, [entry for entry in readiness.reasons if caller.may(entry.name)])

    async def statistics(self, name: str = "", version: int | None = None) -> pb.ModelStatisticsResponse:
        caller = current()
        if name:
            caller.check(name)
            return await self._server.statistics(name, version)
        figures = await self._server.statistics("", version)
        return pb.ModelStatisticsResponse(
            model_stats=[each for each in figures.model_stats if caller.may(each.name)],
            tenant_stats=[each for each in figures.tenant_stats if caller.may_ask_about(each.name)],
        )

    async def repository_index(self, only_ready: bool) -> list[IndexEntry]:
        caller = current()
        return [entry for entry in await self._server.repository_index(only_ready) if caller.may(entry.name)]

    async def regions(self, kind: type[RegionT], name: str = "", tenant: str = "") -> Sequence[RegionT]:
        return await self._server.regions(kind, name, _name_of(self.tenant))

    async def register_region(self, region: Region, handle: bytes = b"") -> None:
        await self._server.register_region(replace(region, tenant=_name_of(self.tenant)), handle)

    async def unregister_region(self, kind: type[Region], name: str, tenant: str = "") -> None:
        await self._server.unregister_region(kind, name, _name_of(self.tenant))


def _name_of(tenant: Tenant | None) -> str:
    return "" if tenant is None else tenant.name
