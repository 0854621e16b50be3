"""Server of one process: data plane and control plane, without sockets."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any

from modserve.__about__ import __version__
from modserve.core.configuration.routing_config import RouteFigures, ShadowFigures
from modserve.core.configuration.trace_settings import TraceChange
from modserve.core.errors import Code, ModserveError, invalid, unavailable
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.core.loading import Repository
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import ParameterValue
from modserve.core.requests.response import InferenceResponse
from modserve.core.servable import Handle, ReadinessChecker, Servable, base
from modserve.core.tenants import Tenant
from modserve.core.tensors.shared_memory import CudaRegion
from modserve.core.tensors.tensor import Array, Tensor
from modserve.observability.logging import Logs
from modserve.observability.trace import Tracer
from modserve.pb import inference as pb
from modserve.protocol.control import statistics
from modserve.repository.control import ControlOptions, ModelControl
from modserve.repository.manager import ModelManager
from modserve.resources import flow

from .drain import Drain, DrainPhase, DrainReport
from .in_process import make_request, outcomes, response
from .interface import EXTENSIONS, Phase, Readiness, Region, RegionT, Services


class LocalServer:
    """Implements `Server` in one process: models and all calls of clients, on one event loop's thread."""

    def __init__(
        self,
        manager: ModelManager,
        repositories: Sequence[Repository],
        services: Services | None = None,
        *,
        name: str,
        strict_readiness: bool = True,
        control: ControlOptions | None = None,
    ) -> None:
        services = Services() if services is None else services
        self.name = name
        self.version = __version__
        self.phase = Phase.STARTING
        self.loop: asyncio.AbstractEventLoop | None = None
        """The server's event loop, once loading has begun."""
        self.tenant: Tenant | None = None
        self.retiring = False
        self.leaving = False
        self.draining = Drain(self)
        self._table = manager.table
        self.changes = manager.table.changes
        self.model_names, self.index = manager.table.names, manager.table.index
        self.folder = manager.table.folder
        self.failed_loads = manager.table.count_failed_loads
        self.unready_reasons = manager.table.unready
        """Model versions that keep the server from being ready."""
        self.sequence_keepers = manager.table.keepers
        """Models with begun sequences, READY or not."""
        self.routings, self.check_routing = manager.table.routings, manager.table.check_routing
        self._control = ModelControl(manager, repositories, control or ControlOptions())
        self.repository_reads = self._control.outages.read_s
        self.rank, self.forget_rollbacks = manager.table.rank, self._control.keep_rollback
        self._strict_readiness = strict_readiness
        self._logs = services.logs
        self.tracer = services.tracer
        self.shared_memory = services.shared_memory
        self.memory, self.quotas = services.memory, services.quotas
        self.model_memory = services.model_memory
        self.failure_log, self.access_log = services.failure_log, services.access_log
        self.recorder, self.engine_metrics = services.recorder, services.engine_metrics
        if self._logs is not None:
            self.tracer.change_verbosity(self._logs.settings.verbose_level)

    def _check_running(self) -> None:
        if self.phase is Phase.STOPPING:
            raise unavailable("Server not ready")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.phase.value}, {self._table!r})"

    # Inference

    def model(self, name: str, version: int | None = None) -> Servable:
        """Return the READY model version that serves requests, by its `submit`.

        A version that is being unloaded accepts requests while it has open sequences, even when the server is stopping.
        Raises NOT_FOUND, or UNAVAILABLE if it is not READY or the server is stopping.
        """
        if self.phase is Phase.STOPPING:
            servable = self._table.continuing(name, version)
            if servable is None:
                raise unavailable("Server not ready")
            return servable
        return self._table.get(name, version)

    def borrow(self, name: str, version: int | None = None) -> Handle:
        """Return the model like `model`, but keep the version alive until the handle is released.

        Until then it accepts requests, even while it is replaced or unloaded, or the server is stopping. For callers
        that submit in a later turn of the event loop.
        """
        return self._table.lend(self.model(name, version))

    async def infer(
        self,
        model_name: str,
        inputs: Mapping[str, Array | Tensor],
        *,
        outputs: Sequence[str] = (),
        version: int | None = None,
        request_id: str = "",
        parameters: Mapping[str, ParameterValue] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the wait in the queue, not this call
    ) -> InferenceResponse:
        """Run one inference and return its response.

        `inputs`: numpy arrays by input name, with the batch dimension if the model has one. `outputs`: names of
        requested outputs, by default all. `version`: by default the latest ready one. `timeout`: maximum wait in
        seconds before the request runs. Cancelling the caller cancels the request.

        Raises `ModserveError`: INVALID_ARG, NOT_FOUND, UNAVAILABLE (also past the timeout) or INTERNAL.
        """
        now_ns = time.monotonic_ns()
        request = make_request(model_name, inputs, outputs, version, request_id, parameters, timeout, now_ns)
        return await response(self.model(model_name, version), request, now_ns)

    async def infer_stream(
        self,
        model_name: str,
        inputs: Mapping[str, Array | Tensor],
        *,
        outputs: Sequence[str] = (),
        version: int | None = None,
        request_id: str = "",
        parameters: Mapping[str, ParameterValue] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the wait in the queue, not this call
    ) -> AsyncGenerator[InferenceResponse]:
        """Run one inference and iterate over its responses: any number for decoupled models, one for others.

        Arguments as for `infer`. Closing the iterator cancels the request. Raises the errors of `infer`, possibly after
        some responses, which ends the iteration.
        """
        now_ns = time.monotonic_ns()
        request = make_request(model_name, inputs, outputs, version, request_id, parameters, timeout, now_ns)
        async with aclosing(outcomes(self.model(model_name, version), request, now_ns, self.memory)) as stream:
            async for outcome in stream:
                if isinstance(outcome, ModserveError):
                    raise outcome
                yield outcome

    def pace(self, inflight: Inflight) -> None:
        """Keep the engine of a request with many responses from running ahead of its client (`resources.flow`)."""
        flow.pace(inflight, self.memory, asyncio.get_running_loop())

    # Version routing

    async def routing(self, name: str) -> dict[str, Any]:
        self._table.get(name, None)
        return self.routings.report(name, lambda version: self._trouble(name, version))

    def routing_counts(self) -> list[dict[str, Any]]:
        """Return the counts of all routings, for sums over workers."""
        return self.routings.counts(self._trouble)

    async def set_routing(self, name: str, document: object, revision: str = "") -> None:
        """Set the routing. `revision`: name of this setting in all workers, one of which has checked it."""
        self._check_running()
        await self._control.set_routing(name, document, revision)

    def _trouble(self, name: str, version: int | None) -> str:
        """Return the reason why a version accepts no requests; empty if it does."""
        try:
            return self.model(name, version).unready_reason or ""
        except ModserveError as error:
            return error.message

    def routing_figures(self) -> list[RouteFigures | ShadowFigures]:
        """Return the figures of all routings for the metrics page."""
        return list(self.routings.figures(lambda name, version: not self._trouble(name, version)))

    # Health

    @property
    def live(self) -> bool:
        return self.phase is not Phase.STOPPING

    @property
    def ready(self) -> bool:
        """True if ready for inference: running, and if strict, every model version READY or unloaded on purpose."""
        if self.phase is not Phase.RUNNING or self.leaving:
            return False
        return not (self._strict_readiness and self._table.unready())

    def model_ready(self, name: str, version: int | None) -> bool:
        """Return True if a model (version) accepts requests, to the server's knowledge. Raises NOT_FOUND if unknown."""
        return self._table.is_ready(name, version) and self.live

    async def check_model_ready(self, name: str, version: int | None) -> bool:
        """Return `model_ready`, but also ask the engine if its instances can report their readiness."""
        return self.model_ready(name, version) and await self.check_callable(name, version) and self.live

    async def check_callable(self, name: str, version: int | None) -> bool:
        """Return `check_model_ready` for calls from other models, accepted even while the server is stopping."""
        servable = self._table.ready(name, version)
        if not isinstance(servable, ReadinessChecker):
            return servable is not None
        return await servable.check_ready() and self._table.is_ready(name, version)

    async def readiness(self) -> Readiness:
        return Readiness(True) if self.ready else Readiness(False, self.unready_reasons())

    async def model_trouble(self, name: str, version: int | None) -> str | None:
        return None if await self.check_model_ready(name, version) else self._trouble(name, version)

    # Index

    @property
    def extensions(self) -> Sequence[str]:
        return EXTENSIONS if self._logs is None else (*EXTENSIONS, "logging")

    async def repository_index(self, only_ready: bool) -> list[IndexEntry]:
        """Return `index` with never loaded models in the repositories. Raises UNAVAILABLE when stopping."""
        self._check_running()
        if only_ready:
            return [entry for entry in self.index() if entry.state is LifecycleState.READY]
        return await self._control.index()

    @property
    def waiting_models(self) -> Sequence[str]:
        """Models in the repositories that were not loaded at the start, since no request had named them."""
        return self._control.waiting

    def models(self, name: str | None = None, version: int | None = None) -> list[Servable]:
        """Return the READY versions of a model, or of all models for None, by name and version.

        Raises NOT_FOUND or UNAVAILABLE if `name` has none, or `version` is not None and not READY.
        """
        self._check_running()
        if name is None:
            return self.ready_models()
        servable = self._table.get(name, version)
        return self._table.ready_versions(name) if version is None else [servable]

    def ready_models(self) -> list[Servable]:
        """Return every READY version of every model, in any phase of the server: for the metrics page."""
        return [servable for name in self.model_names() for servable in self._table.ready_versions(name)]

    def count_ended_requests(self) -> int:
        """Return the number of requests to READY models that have succeeded or failed."""
        return sum(each.statistics.success.count + each.statistics.fail.count for each in self.ready_models())

    def in_flight(self) -> dict[str, int]:
        """Return the unsettled requests of READY models, by model; models without any are omitted."""
        counts: Counter[str] = Counter()
        for servable in self.ready_models():
            counts[servable.id.name] += getattr(servable, "outstanding", 0)  # of a `RequestHolder`
        return +counts

    async def statistics(self, name: str = "", version: int | None = None) -> pb.ModelStatisticsResponse:
        tenants = [] if name else self.quotas.reports(map(base, self.ready_models()))
        try:
            return statistics.message(self.models(name or None, version), tenants)
        except ModserveError as error:
            if error.code is Code.UNAVAILABLE and self.phase is Phase.STOPPING:
                raise
            if self._table.ready_versions(name):
                raise invalid(f"requested model version is not available for model '{name}'") from None
            raise invalid(f"requested model '{name}' is not available") from None

    async def regions(self, kind: type[RegionT], name: str = "", tenant: str = "") -> Sequence[RegionT]:
        return self.shared_memory.status(kind, name, tenant)

    async def failures(self) -> list[dict[str, Any]]:
        return [asdict(failure) for failure in self.failure_log.recent.latest()]

    async def reading(self, own: Callable[[], Any]) -> tuple[Any, Mapping[str, int] | None]:
        return own(), None

    # Control

    @property
    def control_mode(self) -> str:
        """Model control mode: ``explicit`` if clients may load and unload models."""
        return self._control.mode.value

    async def load_model(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Load or reload a model of the repositories; it is READY on return.

        Versions that have not changed since they were loaded are left alone. Serving versions continue until their
        replacement is READY, or permanently if that fails; of several versions all are replaced or none. The models of
        an ensemble are loaded before it. `config`, a model configuration as JSON, replaces the configuration in the
        repository. `files`, by ``<version>/<path>``, are all files of the model, which then needs a `config` and need
        not be in a repository. Both apply to this load only. Cancelling the caller does not end the load.

        Raises `ModserveError`: INVALID_ARG (with the reason of each failed version), INTERNAL if the model is missing
        or its configuration cannot be read, or UNAVAILABLE if the model control mode is not explicit or the server is
        stopping.
        """
        self._check_running()
        await self._control.load(name, config, files)

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        """Take a model out of service. Accepted requests are finished after this returns, and then it is unloaded.

        `unload_dependents` also unloads the models that only this ensemble needs and that were not loaded by name. A
        model that is not loaded is no error. Raises UNAVAILABLE like `load_model`.
        """
        self._check_running()
        await self._control.unload(name, unload_dependents)

    @property
    def logs(self) -> Logs:
        """The log, for changes of its settings by clients. Raises UNAVAILABLE if the server cannot change them."""
        if self._logs is None:
            raise unavailable("the server does not support dynamic logging")
        return self._logs

    async def change_log_settings(self, change: Mapping[str, Any]) -> None:
        settings = replace(self.logs.settings, **change)
        self.logs.change(settings)
        self.tracer.change_verbosity(settings.verbose_level)

    async def change_trace_settings(self, change: TraceChange, model: str) -> None:
        self.tracer_for(model).change(change, model)

    async def register_region(self, region: Region, handle: bytes = b"") -> None:
        if isinstance(region, CudaRegion):
            await asyncio.to_thread(self.shared_memory.register_cuda, region, handle)  # the first may take a second
        else:
            self.shared_memory.register_system(region)

    async def unregister_region(self, kind: type[Region], name: str, tenant: str = "") -> None:
        await asyncio.to_thread(self.shared_memory.unregister, kind, name, tenant)  # CUDA's driver may wait for the GPU

    def tracer_for(self, model: str) -> Tracer:
        if model and not self._table.ready_versions(model):
            raise invalid(f"Request for unknown model : {model}")
        return self.tracer

    # Lifecycle

    async def load(self) -> None:
        """Load the initial models, then be RUNNING. Failed models have a state with the reason.

        Raises INVALID_ARG if a repository cannot be read.
        """
        self.loop = asyncio.get_running_loop()
        await self._control.start()
        if self.phase is Phase.STARTING:
            self.phase = Phase.RUNNING
            self.changes.notify()

    @property
    def drain_phase(self) -> DrainPhase:
        return self.draining.phase

    async def drain(self) -> DrainReport:
        """Take the server out of service permanently, and finish accepted requests, like `Drain.run`."""
        return await self.draining.run()

    def give_notice(self) -> None:
        """Become not ready; everything else continues."""
        self.leaving = True
        self.changes.notify()

    def retire(self) -> None:
        """Notify watchers that this server is about to stop; everything else continues."""
        self.retiring = True
        self.changes.notify()

    def stop_accepting(self) -> None:
        """Become not ready and refuse new requests; accepted requests continue."""
        self.phase, self.leaving = Phase.STOPPING, True
        self.changes.notify()

    async def finish(self) -> None:
        """Abandon loads, and wait until no accepted request is in flight."""
        await self._control.finish()

    async def end(self) -> None:
        """Refuse new requests, finish accepted ones, and unload everything."""
        self.draining.hurry()
        self.stop_accepting()
        await self._control.stop()
