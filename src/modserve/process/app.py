"""The composition root: creates all objects, and orders start and shutdown."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from modserve import backends
from modserve.backends.api import Backend
from modserve.backends.registry import BackendRegistry
from modserve.core.configuration.log_settings import AccessMode
from modserve.core.errors import ModserveError
from modserve.core.lifecycle import any_ready
from modserve.core.requests.memory import MemoryBudget
from modserve.core.residency import MemoryLimit
from modserve.core.statistics.metrics import MetricStore
from modserve.execution.placement import available_cores
from modserve.execution.rate_limit import RateLimiter
from modserve.frontends.certificates import CertificateError
from modserve.frontends.offload import background_threads
from modserve.models.loading.loader import Loader
from modserve.models.residency.admission import Residency
from modserve.models.residency.memory import Growth, Meter
from modserve.models.residency.waiting import Borrowers
from modserve.models.serving.caching import VersionCaches, make_cache
from modserve.observability import prometheus
from modserve.observability.access_log import access_log
from modserve.observability.failures import FailureLog
from modserve.observability.logging import Logs
from modserve.observability.progress import LaterLoads, LoadingProgress
from modserve.observability.trace import Tracer
from modserve.observability.watchdog import Watchdog
from modserve.repository.control import ControlMode, ControlOptions
from modserve.repository.manager import ModelManager
from modserve.repository.table import ModelTable
from modserve.resources import allocator
from modserve.resources.garbage import Freezer, freeze_uncollected, last_collection_ns
from modserve.resources.machine_memory import read_memory_limit
from modserve.resources.quotas import Quotas
from modserve.resources.shared_memory import SharedMemory
from modserve.routing.routings import Routings
from modserve.server import Phase
from modserve.server.drain import DrainTimes
from modserve.server.interface import Services
from modserve.server.local import LocalServer
from modserve.server.member import ServerMember
from modserve.settings import Settings

from .listeners import Listeners, Ports, access_control, audit_log
from .model_setup import backend_options, loader_options, models_to_load, repositories
from .ports import PortError
from .record_setup import make_recorder, open_folder

if TYPE_CHECKING:
    from modserve.workers.member import Member

_log = logging.getLogger(__name__)


class InferenceServer(LocalServer):
    """A server as a library: models loaded by their settings, inference by calls, no sockets.

    ::

        async with InferenceServer(Settings(model_repository=["model_repository"])) as server:
            response = await server.infer("simple", {"INPUT0": a, "INPUT1": b})
            print(response.outputs["OUTPUT0"].array)

    Functions and classes decorated with `modserve.model` are models, too: ``Settings(python_model=double)``.

    Entering loads all models; `index` lists failed ones with the reason. Leaving finishes requests in flight, for at
    most `exit_timeout_secs`, and unloads. `backends` adds engines by name to the installed ones. `logs` lets clients
    change log settings; without it these calls are refused. `member` is set in one of several workers or replicas.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        backends: dict[str, Backend] | None = None,
        logs: Logs | None = None,
        member: ServerMember | None = None,
    ) -> None:
        self.settings = settings
        threads, memory_limit = settings.model_load_thread_count, settings.request_memory_limit
        workers = 1 if member is None else member.count
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="load")
        self._ending = asyncio.Lock()
        self._ended_in_time: bool | None = None
        registry = BackendRegistry(backends)
        if not {"", *registry.names}.issuperset(settings.backend_config):
            from modserve.models.diagnosis.advice import absent_backends

            for warning in absent_backends(settings.backend_config, registry.names):
                _log.warning("%s", warning)
        engine_metrics = MetricStore(prometheus.RESERVED, prometheus.GENERATION)
        self.cores = max(1, available_cores() // workers)
        """Cores for this process; workers divide the available cores equally."""
        memory = MemoryBudget((read_memory_limit() // 2 if memory_limit is None else memory_limit) // workers)
        routings = Routings(memory) if member is None else Routings(memory, member.roll_back_elsewhere)
        table = ModelTable(settings.strict_version_readiness, routings)
        table.suggests_names = not (settings.auth_file or settings.api_key)
        table.expect(None)  # until the repositories have been read
        library = allocator.glibc()
        meter = Meter() if library is None else Meter(lambda: library.malloc_trim(0))
        residency = self._residency(table, workers, meter)
        self._caches = VersionCaches(make_cache(settings.cache), backend_options(settings, registry.names))
        options = replace(
            loader_options(settings, registry.names, self.cores),
            caches=self._caches,
            limiter=RateLimiter(settings.rate_limit_resource) if settings.rate_limit != "off" else None,
            metrics=engine_metrics,
            around=None if member is None else member.with_owners,
            residency=residency,
            growth=Growth(meter),
        )
        loader = Loader(
            registry,
            options,
            self._executor,
            table.borrow,
            self if member is None else member.engine_control(self),
            lambda: self.changes.notify(),
            table.borrower,
        )
        self.later_loads = LaterLoads(logs)
        requests = settings.access
        self._recorder = make_recorder(settings, (0, 1) if member is None else member.place)
        super().__init__(
            ModelManager(table, loader, threads, settings.model_load_retry_count, self.later_loads),
            repositories(settings),
            Services(
                logs=logs,
                tracer=Tracer(settings.trace if member is None else member.trace(settings.trace), name=settings.id),
                shared_memory=SharedMemory(settings.allow_client_shm),
                memory=memory,
                quotas=Quotas(-(-settings.max_accepted_requests // workers), workers),
                model_memory=lambda: residency.report,
                failure_log=FailureLog(enabled=requests.mode is not AccessMode.OFF, proxies=settings.proxies),
                access_log=access_log(requests, logs, settings.proxies),
                recorder=self._recorder,
                engine_metrics=engine_metrics,
            ),
            name=settings.id,
            strict_readiness=settings.strict_readiness,
            control=ControlOptions(
                ControlMode(settings.model_control_mode), models_to_load(settings), settings.repository_poll_secs
            ),
        )

        self.draining.times = DrainTimes(
            float(settings.shutdown_delay_secs), float(settings.exit_timeout_secs), 1 / workers
        )

    def _residency(self, table: ModelTable, workers: int, meter: Meter) -> Residency:
        """Return the residency of models in memory. Workers divide the limit, since each has its own models."""
        settings = self.settings
        limit = settings.model_memory_limit.of(read_memory_limit()) // workers
        if settings.model_memory_limit != MemoryLimit() and not limit:
            _log.warning("--model-memory-limit has no effect: the system does not report the size of its memory")
        return Residency(
            limit,
            lazy=settings.load_lazily == "true" or (settings.load_lazily == "auto" and bool(limit)),
            idle_ns=settings.model_idle_unload_secs * 10**9,
            wait_ns=settings.model_memory_wait_secs * 10**9,
            borrowers=Borrowers(table.loans.lent, table.loans.wait_until_returned),
            meter=meter,
            on_health=lambda: self.changes.notify(),
        )

    async def load(self) -> None:
        """Load like `LocalServer.load`. Also raises INVALID_ARG if the directory for records is not writable."""
        if self._recorder is not None:
            await asyncio.to_thread(open_folder, self._recorder)
        await super().load()

    async def __aenter__(self) -> Self:
        try:
            await self.load()
        except BaseException:
            await self.shut_down()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shut_down()

    async def shut_down(self, seconds: float | None = None) -> bool:
        """Finish requests in flight, then unload, within `seconds`; return False if the time was too short.

        The default is `exit_timeout_secs`. Idempotent: all calls return the same outcome.
        """
        async with self._ending:
            if self._ended_in_time is None:
                self._ended_in_time = await self._end(self.settings.exit_timeout_secs if seconds is None else seconds)
        return self._ended_in_time

    async def _end(self, seconds: float) -> bool:
        self._caches.ending()
        try:
            async with asyncio.timeout(seconds):
                await self.end()
        except TimeoutError:
            # Engines may hang in a call; their threads are daemons, and do not delay the end of the process.
            return False
        finally:
            await self._caches.close()
            if self._recorder is not None:
                await asyncio.to_thread(self._recorder.close)
            self._executor.shutdown(wait=False, cancel_futures=True)
        return True


async def serve(
    settings: Settings,
    *,
    logs: Logs | None = None,
    on_open: Callable[[Ports], None] = lambda ports: None,
    on_loaded: Callable[[InferenceServer], None] = lambda server: None,
    on_refused: Callable[[PortError], None] = lambda error: _log.error("%s", error),
    member: "Member | None" = None,
    of_terminal: bool = False,
) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code of the process.

    The ports open first, and `on_open` is called; then the models load, shared ports accept connections, and
    `on_loaded` is called. On the first signal the server becomes not ready, continues for `shutdown_delay_secs`,
    accepts nothing new, finishes requests in flight for at most `exit_timeout_secs`, and returns 0 (1 if the time was
    too short). On a second signal the process exits at once. Returns 1 if a port or repository cannot be opened, or,
    with `exit_on_error`, if a model fails to load; `on_refused` is called for ports that cannot be opened, instead of a
    log entry. `logs` lets clients change log settings.

    `of_terminal`: SIGHUP stops the server like SIGTERM, as it does other programs when their terminal closes.

    As one of several workers (`member`), it takes part in their common operations; `on_loaded` is called when all have
    loaded. A replacement worker opens its ports last, after it has loaded the same models as the others.
    """
    stopping = asyncio.Event()
    _handle_signals(stopping, logs, of_terminal)
    server = InferenceServer(settings, logs=logs, member=member)
    loop = asyncio.get_running_loop()
    freezer = Freezer(loop, server.ready_models, server.count_ended_requests)
    freeze_uncollected()  # otherwise imports of large engines cause repeated full collections
    backends.registry.after_import = freeze_uncollected
    if (library := allocator.glibc()) is not None:
        allocator.tune(library)
    try:
        access, audit = access_control(settings), audit_log(settings, logs)
    except ModserveError as error:
        _log.error("%s", error.message)
        return 1
    except OSError as error:
        _log.error("cannot open the audit log; '--audit-log' names another: %s", error)
        return 1
    with ExitStack() as stack:
        stack.enter_context(background_threads(server.cores))
        watchdog = Watchdog(settings.event_loop_warning_ms, backends.registry.imports_since, last_collection_ns)
        async with asyncio.TaskGroup() as tasks:
            listeners = Listeners(server, server.engine_metrics, settings, tasks, watchdog, member, access, audit)
            if member is not None:
                await member.start(server, tasks, listeners.page.families, settings.http.max_json)

            async def open_ports() -> bool:
                try:
                    on_open(await listeners.start())
                except PortError as error:
                    on_refused(error)
                    return False
                except CertificateError as error:
                    _log.error("%s", error)
                    return False
                return True

            async def load() -> bool:
                if member is None:
                    return await _load(server, settings, freezer, logs, on_loaded, listeners.accept)
                loaded = await _load(server, settings, freezer, logs)
                if loaded:
                    await member.catch_up()
                    if member.drained:
                        await server.drain()
                    elif not opened and not await open_ports():
                        return False
                    member.on_served()
                    await member.all_served()
                    await listeners.accept()
                if opened and server.phase is Phase.RUNNING:
                    on_loaded(server)
                return loaded

            opened = member is None or not member.replaces
            if opened and not await open_ports():
                await listeners.stop()
                return 1
            stack.enter_context(watchdog)
            if library is not None:
                stack.callback(allocator.Trimmer(loop, library, allocator.usage(library)).stop)
            stack.enter_context(server.changes.listening(freezer.on_change))
            stack.enter_context(listeners.page.counting())
            loading = tasks.create_task(load())
            waiting = tasks.create_task(stopping.wait())
            await asyncio.wait((loading, waiting), return_when=asyncio.FIRST_COMPLETED)
            failed = loading.done() and not loading.result()
            if not failed:
                await waiting
            if failed or server.phase is Phase.STARTING:
                server.draining.hurry()
            waiting.cancel()
            loading.cancel()
            await asyncio.wait((loading,))
            in_time = await listeners.end(server.shut_down)
            return 0 if in_time and not failed else 1


async def _load(
    server: InferenceServer,
    settings: Settings,
    freezer: Freezer,
    logs: Logs | None,
    on_loaded: Callable[[InferenceServer], None] = lambda server: None,
    accept: Callable[[], Awaitable[None]] | None = None,
) -> bool:
    """Load all models and `accept` connections; return False if the server should stop."""
    try:
        with LoadingProgress(server.index, logs):
            await server.load()
    except ModserveError as error:
        _log.error("%s", error.message)
        return False
    server.later_loads.start()
    freezer.freeze()
    useless = _useless(server, settings)
    if accept is not None and not useless:
        await accept()
    on_loaded(server)
    if useless:
        _log.error("%s", useless)
    return not useless


def _useless(server: InferenceServer, settings: Settings) -> str:
    """Return the reason to stop a server that has loaded; empty for none."""
    if settings.exit_on_error and (failed := server.unready_reasons()):
        return f"a model failed to load and --exit-on-error is set: {', '.join(entry.name for entry in failed)}"
    named = (settings.model_file or settings.python_model) and not settings.repositories
    fixed = ControlMode(settings.model_control_mode) is ControlMode.NONE
    if named and fixed and not server.waiting_models and not any_ready(server.index()):
        return (
            "no model has loaded, so there is nothing to serve, and the server ends; the reasons are above. "
            "With --model-control-mode=poll it would wait until the files change"
        )
    return ""


def _handle_signals(stopping: asyncio.Event, logs: Logs | None, of_terminal: bool) -> None:
    """Stop in order on the first signal, and end the process at once on the second.

    SIGHUP reopens the log file. With `of_terminal` it also requests the stop, but never ends the process at once, since
    the shell and the system may both send it.
    """
    loop = asyncio.get_running_loop()

    def ask() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    loop.add_signal_handler(signal.SIGHUP, ask if of_terminal else (logs or Logs()).reopen)
