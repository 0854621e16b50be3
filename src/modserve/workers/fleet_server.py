"""Several workers as one server: the interface to front ends, in whichever worker a call arrives."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from modserve.core.configuration.trace_settings import TraceChange
from modserve.core.errors import ModserveError, unavailable
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.observability.logging import Logs
from modserve.pb import inference as pb
from modserve.routing.reading import rollbacks
from modserve.server import DrainPhase, DrainReport, Phase, Readiness
from modserve.server.interface import Region, RegionT
from modserve.server.local import LocalServer

from . import sums
from .journal import ServerChange
from .peers import PeerLostError
from .tally import CONSOLE, ROUTINGS, STATISTICS, PeerCaller, Tally


class FleetPlace(Protocol):
    """Place of this process: its index, the number of processes, and the number of its earlier starts."""

    @property
    def index(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def starts(self) -> int: ...


class PeerClient(PeerCaller, Protocol):
    """Interface of `Peers`."""

    async def unready(self) -> list[IndexEntry]: ...
    def drain(self) -> Awaitable[list[DrainReport]]:
        """Raises at once where the processes are not the server's to drain."""
        ...


class ChangeCoordinator(Protocol):
    """Makes a change in all processes or in none. Raises as `Coordinator` does."""

    async def change(self, change: ServerChange) -> None: ...


class FleetServer:
    """Implements `Server`: inferences are served by this worker, questions answered by all, changes made in all.

    This worker answers first, since it knows what is wrong with a call. One that is stopping answers for itself.
    """

    def __init__(
        self,
        server: LocalServer,
        identity: FleetPlace,
        peers: PeerClient,
        coordinator: ChangeCoordinator,
        tally: Tally,
        noun: str = "worker",
    ) -> None:
        """`noun`: what people call one of the processes."""
        self._server = server
        self._noun = noun
        self._identity = identity
        self._peers = peers
        self._coordinator = coordinator
        self._tally = tally
        self.name, self.version, self.tenant = server.name, server.version, server.tenant
        self.changes, self.routings = server.changes, server.routings
        self.quotas = server.quotas
        self.memory, self.shared_memory, self.model_memory = server.memory, server.shared_memory, server.model_memory
        self.tracer, self.failure_log, self.access_log = server.tracer, server.failure_log, server.access_log
        self.model, self.borrow, self.pace = server.model, server.borrow, server.pace  # without a call in between
        self.models, self.ready_models, self.model_names = server.models, server.ready_models, server.model_names
        self.index, self.tracer_for, self.folder = server.index, server.tracer_for, server.folder
        self.check_model_ready, self.engine_metrics = server.check_model_ready, server.engine_metrics
        self.recorder = server.recorder

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

    # Questions

    async def readiness(self) -> Readiness:
        own = await self._server.readiness()
        if not own.ready:
            return own
        reasons = await self._peers.unready()
        return Readiness(not reasons, reasons)

    async def model_trouble(self, name: str, version: int | None) -> str | None:
        own = await self._server.model_trouble(name, version)
        if own is not None or self.phase is Phase.STOPPING:
            return own
        for answer in (await self._peers.ask("model_trouble", name, version)).values():
            if isinstance(answer, ModserveError):
                raise answer
            if answer is not None:
                return str(answer)
        return None

    async def statistics(self, name: str = "", version: int | None = None) -> pb.ModelStatisticsResponse:
        own = await self._server.statistics(name, version)
        whole = pb.ModelStatisticsResponse(**await self._tally.document(STATISTICS))
        if not name:
            return whole
        named = {(each.name, each.version) for each in own.model_stats}
        return pb.ModelStatisticsResponse(
            model_stats=[each for each in whole.model_stats if (each.name, each.version) in named]
        )

    async def repository_index(self, only_ready: bool) -> list[IndexEntry]:
        own = await self._server.repository_index(False)
        others = await self._others("repository_index", False)
        index = sums.index({self._identity.index: own} | others, self._noun)
        return [entry for entry in index if entry.state is LifecycleState.READY or not only_ready]

    async def regions(self, kind: type[RegionT], name: str = "", tenant: str = "") -> Sequence[RegionT]:
        """A region that was unregistered while a request uses it is still there, in that worker."""
        others = await self._others("regions", kind, name, tenant)
        try:
            own = await self._server.regions(kind, name, tenant)
        except ModserveError:
            if not others:
                raise
            own = []
        regions = {each.name: each for regions in (own, *others.values()) for each in regions}
        return sorted(regions.values(), key=lambda region: region.name)

    async def routing(self, name: str) -> dict[str, Any]:
        own, revision = await self._server.routing(name), self.routings.revision(name)
        rows = (await self._tally.document(ROUTINGS)).get("routings", ())
        total = next((row for row in rows if (row["name"], row["revision"]) == (name, revision)), None)
        if total is None:  # another one was set meanwhile
            return own
        routes = {each["name"]: each for each in total["routes"]}
        for each in routes.values():
            each["share"] = round(each["share"] / total["workers"], 6)
        more = {key: total[key] for key in ("requests_without_key", "shadow") if key in total}
        return {**own, **more, "routes": [routes[each["name"]] for each in own["routes"]]}

    async def failures(self) -> list[dict[str, Any]]:
        return sums.failures([await self._server.failures(), *(await self._others("failures")).values()])

    async def reading(self, own: Callable[[], Any]) -> tuple[Any, Mapping[str, int] | None]:
        whole = await self._tally.document(CONSOLE)
        processes = whole.pop("processes")
        restarts = sum(each["starts"] for each in processes["by_number"].values())
        workers = {"serving": processes["serving"], "count": self._identity.count, "restarts": restarts}
        return whole, workers

    async def _others(self, method: str, *arguments: object) -> dict[int, Any]:
        """Return the responses of the other workers that do not refuse."""
        if self.phase is Phase.STOPPING:
            return {}
        answers = await self._peers.ask(method, *arguments)
        return {index: answer for index, answer in answers.items() if not isinstance(answer, ModserveError)}

    # Changes

    async def drain(self) -> DrainReport:
        """Drain all workers at once: none takes what another refuses. Workers that start later are drained, too."""
        drained = self._peers.drain()
        own, others = await asyncio.gather(self._server.drain(), drained)
        return sums.drain([own, *others])

    async def load_model(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        await self._change("load_model", name, config, files)

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        await self._change("unload_model", name, unload_dependents)

    async def set_routing(self, name: str, document: object) -> None:
        if rollbacks(document):
            await self._server.set_routing(name, document)  # which tells the others
            return
        self._server.check_routing(name, document)
        await self._change("set_routing", name, document, uuid.uuid4().hex)
        await self._server.forget_rollbacks(name)

    async def change_log_settings(self, change: Mapping[str, Any]) -> None:
        await self._change("change_log_settings", change)

    async def change_trace_settings(self, change: TraceChange, model: str) -> None:
        await self._change("change_trace_settings", change, model)

    async def register_region(self, region: Region, handle: bytes = b"") -> None:
        await self._change("register_region", region, handle)

    async def unregister_region(self, kind: type[Region], name: str, tenant: str = "") -> None:
        await self._change("unregister_region", kind, name, tenant)

    async def _change(self, method: str, *arguments: Any) -> None:
        if self.phase is Phase.STOPPING:
            await getattr(self._server, method)(*arguments)
            return
        try:
            await self._coordinator.change(ServerChange(method, arguments))
        except PeerLostError:  # this worker is about to end
            raise unavailable("Server not ready") from None
