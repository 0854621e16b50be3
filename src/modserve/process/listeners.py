"""The ports of a server: its listeners, and the order in which they open, stop and close."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from modserve.core.errors import ModserveError
from modserve.core.servable import Finisher
from modserve.core.statistics.metrics import MetricStore
from modserve.frontends.certificates import CertificateEnds
from modserve.frontends.grpc.listener import GrpcListener
from modserve.frontends.http import probes
from modserve.frontends.http.wire.context import AsgiApp
from modserve.frontends.http.wire.listener import HttpListener
from modserve.frontends.metrics import MetricsApplication, OpenMetrics
from modserve.observability import prometheus
from modserve.observability.families import Family, family, format_labels
from modserve.observability.logging import Logs
from modserve.observability.watchdog import Watchdog
from modserve.resources import posix
from modserve.resources.machine_memory import container_memory, read_memory_limit
from modserve.server import Server
from modserve.server.local import LocalServer
from modserve.settings import GrpcSettings, HttpSettings, Settings
from modserve.settings.listen_addresses import ListenAddress, admin_address_of, listen_addresses, metrics_address_of

from .metrics_page import MetricsPage
from .ports import PortOpenings, probe_port

if TYPE_CHECKING:
    from modserve.access.authority import AccessControl, Authority
    from modserve.observability.audit_log import AuditLog
    from modserve.workers.member import Member

    from .load_reporter import LoadReporter

_log = logging.getLogger(__name__)

_FAREWELL = 1.0
"""Seconds for clients with idle connections to send a last request."""
_POLL_INTERVAL = 0.02
"""Seconds between checks for arriving requests while the server stops."""
_LAST_SCRAPE = 0.1
"""Seconds for the last clients of the metrics and admin ports to send a request."""

_LONGEST_GRPC_MESSAGE = 512 * 1024 * 1024
"""Default limit of a gRPC message in bytes: enough for tensors of 300 MB."""


def access_control(settings: Settings) -> "AccessControl | None":
    """Return the server's access rules; None for open access. Raises INVALID_ARG for an invalid key or key file."""
    key = settings.api_key
    if not settings.auth_file and key is None:
        return None
    from modserve.access.authority import AccessControl

    single = "" if key is None else key.get_secret_value()
    return AccessControl(settings.auth_file, single, "health" in settings.auth_open)


def audit_log(settings: Settings, logs: Logs | None) -> "AuditLog | None":
    """Return the audit log, which SIGHUP reopens; None if it is off. Raises OSError."""
    if not settings.audit_log:
        return None
    from modserve.observability.audit_log import AuditLog

    logs = logs or Logs()
    audit = AuditLog(settings.audit_log, logs.worker, settings.proxies)

    def reopen() -> None:
        logs.reopen()
        audit.reopen()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reopen)
    return audit


def grpc_settings(settings: Settings, reuse_port: bool) -> GrpcSettings:
    """Return the settings of gRPC, with a message limit: a message is complete in memory before it is parsed."""
    grpc = settings.grpc
    most = min(_LONGEST_GRPC_MESSAGE, read_memory_limit() // 8) if grpc.max_message is None else grpc.max_message
    return replace(grpc, max_message=most, reuse_port=grpc.reuse_port or reuse_port)


def http_settings(settings: Settings, reuse_port: bool) -> HttpSettings:
    """Return the settings of HTTP, with as many connections as the system permits."""
    http = settings.http
    most = posix.connections(http.max_connections)
    return replace(http, max_connections=most, reuse_port=http.reuse_port or reuse_port)


def metrics_settings(settings: Settings, own: ListenAddress, reuse_port: bool) -> HttpSettings:
    """Return the settings of the metrics port: HTTP's, but without TLS and inference settings."""
    return HttpSettings(
        address=own.address,
        port=own.port,
        reuse_port=reuse_port,
        client_timeout=settings.http.client_timeout,
        idle_timeout=settings.http.idle_timeout,
        max_connections=posix.connections(settings.http.max_connections),
        allow_host=settings.http.allow_host,
    )


def admin_settings(http: HttpSettings, own: ListenAddress, reuse_port: bool) -> HttpSettings:
    """Return the settings of the admin port: HTTP's, but without access from other origins."""
    return replace(
        http,
        address=own.address,
        port=own.port,
        reuse_port=reuse_port,
        cors_allow_origin=frozenset(),
        for_operators=True,
        use_ssl=own.secure and http.use_ssl,
        use_ssl_mutual=own.secure and http.use_ssl_mutual,
    )


@dataclass(frozen=True, slots=True)
class Ports:
    """The open ports: 0 for a Unix socket, None for a disabled front end."""

    http: int | None
    grpc: int | None
    metrics: int | None
    admin: int | None = None

    @property
    def by_name(self) -> Mapping[str, int]:
        """Ports by name of the front end, without disabled ones."""
        names = {"HTTP": self.http, "gRPC": self.grpc, "metrics": self.metrics, "admin": self.admin}
        return {name: port for name, port in names.items() if port is not None}


class Listeners:
    """The open ports of a server, closed from the outside in. Implements `server.drain.DrainedPorts`.

    `metrics`: engine metrics on the metrics page. `access`: access rules, if any. `audit`: the audit log, closed at the
    end.
    """

    def __init__(
        self,
        server: LocalServer,
        metrics: MetricStore,
        settings: Settings,
        tasks: asyncio.TaskGroup,
        watchdog: Watchdog,
        member: "Member | None" = None,
        access: "AccessControl | None" = None,
        audit: "AuditLog | None" = None,
    ) -> None:
        self._access = access
        self._audit = audit
        self._server = server
        self._opened: dict[str, int] = {}
        server.draining.ports = self
        self._member = member
        self._settings = settings
        self._http: HttpListener | None = None
        self._grpc: GrpcListener | None = None
        self._metrics: HttpListener | None = None
        self._admin: HttpListener | None = None
        self._addresses = listen_addresses(settings)
        used = [each.tls for each in (settings.http, settings.grpc) if each.allow and each.tls is not None]
        self._certificate_ends = CertificateEnds(
            path for tls in used for path in (tls.certificate, tls.root) if path is not None
        )
        authority = None if access is None else access.authority
        ports = self.connections, self._responses
        front: Server = server if member is None else member.server(server)
        page = self.page = MetricsPage(
            server, metrics, settings, *ports, [watchdog.collect, self._left_out_lines, self._limits], self._endings
        )
        admin = admin_address_of(settings)
        is_worker = member is not None
        http = http_settings(settings, is_worker)
        parts: Any = {"tasks": tasks, "authority": authority, "audit": audit}
        if settings.grpc.allow:
            grpc = grpc_settings(settings, is_worker)
            self._grpc = GrpcListener(
                front, grpc.address, grpc.port, grpc, authority, audit, without_admin=admin is not None
            )
        app: AsgiApp | None = None
        if settings.allow_metrics:
            render = page.text if member is None else member.page
            openmetrics = OpenMetrics(partial(render, True), prometheus.OPENMETRICS, page.has_exemplars)
            fine = partial(render, False, True)
            health = {"/v2/health/live": partial(probes.live, front), "/v2/health/ready": partial(probes.ready, front)}
            app = MetricsApplication(render, prometheus.CONTENT_TYPE, openmetrics, fine, self._elsewhere, health)
            if authority is not None:
                app = guard_page(app, authority, server, open_page="metrics" in settings.auth_open)
        if http.allow:
            own, public = (http, False) if admin is None else (replace(http, console=False), True)
            page_here = None if public else app
            self._http = HttpListener(
                front, http.address, http.port, own, metrics=page_here, without_admin=public, **parts
            )
        alone = metrics_address_of(settings)
        if app is not None and alone is not None:
            options = metrics_settings(settings, alone, is_worker)
            self._metrics = HttpListener(front, alone.address, alone.port, options, tasks, app)
        if admin is not None:
            options = admin_settings(http, admin, is_worker)
            self._admin = HttpListener(front, admin.address, admin.port, options, metrics=app, **parts)
        reporting = [
            port
            for port, option in ((self._http, settings.http.orca), (self._grpc, settings.grpc.orca))
            if port is not None and option != "off"
        ]
        self._reporter: LoadReporter | None = None
        if reporting:
            from .load_reporter import load_reporter

            self._reporter = load_reporter(server, reporting, 1 if member is None else member.identity.count, access)

    def connections(self) -> dict[str, int]:
        """Return the number of open connections by protocol."""
        ports = {"http": self._http, "grpc": self._grpc}
        return {name: port.connections for name, port in ports.items() if port is not None}

    def _responses(self) -> dict[str, dict[str, int]]:
        ports = {"http": self._http, "grpc": self._grpc}
        return {name: port.responses for name, port in ports.items() if port is not None}

    def _endings(self) -> dict[str, int]:
        return self._grpc.endings if self._grpc is not None else {}

    def _elsewhere(self) -> str:
        """Return the end of a message of the metrics port."""
        ports = [f"{name} at port {port}" for name in ("HTTP", "gRPC") if (port := self._opened.get(name))]
        return f"; other calls: {' and '.join(ports)}" if ports else ""

    def _left_out_lines(self) -> Iterator[Family]:
        """Yield the dropped lines of the enabled logs."""
        server, counts = self._server, {}
        with suppress(ModserveError):
            counts["server"] = server.logs.dropped
        if server.access_log is not None:
            counts["access"] = server.access_log.lost
        if self._audit is not None:
            counts["audit"] = self._audit.dropped
        if server.tracer.figures is None:  # which reports dropped spans
            counts["trace"] = server.tracer.dropped
        rows = [(format_labels({"log": name}), count) for name, count in counts.items()]
        yield family("modserve_log_lines_dropped_total", "counter", "Lines of logs that were left out", rows)

    def _limits(self) -> Iterator[Family]:
        """Yield metrics of exhaustible resources: memory, certificates, keys, and unreadable public keys."""
        if (memory := container_memory()) is not None:
            text = "Memory that the container may use in bytes; 0: any"
            yield family("modserve_container_memory_limit_bytes", "gauge", text, [("", memory.limit)])
            text = "Memory that the container uses in bytes, without files that can be dropped"
            yield family("modserve_container_memory_used_bytes", "gauge", text, [("", memory.used)])
        ends = self._certificate_ends.read()
        text = "When the first certificate of a file ends, in seconds since 1970"
        yield _times("modserve_certificate_end_timestamp_seconds", text, "file", ends)
        if self._access is not None:
            authority = self._access.authority
            text = "When a key ends, in seconds since 1970"
            yield _times("modserve_key_end_timestamp_seconds", text, "key", authority.key_ends)
            text = "When the public keys of an issuer could be read last, in seconds since 1970; 0: never"
            yield _times("modserve_key_set_read_timestamp_seconds", text, "issuer", authority.key_sets_read)

    async def start(self) -> Ports:
        """Open every port. Raises PortError, which names all refused ports, or CertificateError.

        Ports shared with other servers accept connections only after `accept`; until then, the others get all of them.
        """
        listeners: dict[str, HttpListener | GrpcListener | None]
        listeners = {"HTTP": self._http, "gRPC": self._grpc, "metrics": self._metrics, "admin": self._admin}
        if self._access is not None:
            self._access.start()
        openings = PortOpenings()
        opened = self._opened
        for name, address, port, _, shared in self._addresses:
            listener = listeners[name]
            assert listener is not None, "made by the same addresses: this is a bug"
            with openings.opening(name, address, port):
                if openings.failed:
                    await probe_port(address, port)
                else:
                    opened[name] = await listener.start(not shared)
        openings.end()
        if any(each.shared for each in self._addresses):
            _log.info("the ports that other servers may share take connections when the models have loaded")
        if self._reporter is not None:
            self._reporter.start()
        return Ports(opened.get("HTTP"), opened.get("gRPC"), opened.get("metrics"), opened.get("admin"))

    async def accept(self) -> None:
        """Accept connections at all ports, after the models have loaded."""
        for port in (self._http, self._grpc):
            if port is not None:
                await port.accept()

    async def end(self, shut_down: Callable[[float], Coroutine[None, None, bool]]) -> bool:
        """Drain the server unless a client has done so, unload, and close everything, metrics and admin last.

        `shut_down` unloads within the given seconds. Return False if the time was too short.
        """
        draining = self._server.draining
        drained_before = draining.over
        if self._member is not None and not await self._member.give_notice():
            draining.hurry()
        await draining.run(replaced=self._member is not None)
        spent = 0.0 if drained_before else asyncio.get_running_loop().time() - draining.closed_at
        in_time = await shut_down(max(0.0, draining.times.grace - spent))
        await self.stop()
        if not in_time:
            _log.error("Exit timeout expired. Exiting immediately.")
        return in_time

    async def retire(self, seconds: float, replaced: bool) -> None:
        """Stop accepting connections, but keep ports open while sequences go on, since these may need new connections.

        If other workers accept HTTP connections, they forward requests of sequences.
        """
        loop = asyncio.get_running_loop()
        end, farewell = loop.time() + seconds, min(_FAREWELL, seconds)
        keepers = self._server.sequence_keepers()
        async with asyncio.TaskGroup() as retiring:
            if self._http:
                retiring.create_task(self._http.retire(farewell, closing=replaced or not keepers))
            if self._admin and replaced:
                retiring.create_task(self._admin.retire(farewell, closing=True))
            if self._grpc and not keepers:
                retiring.create_task(self._grpc.retire(farewell))
        ports = [port for port in (self._http, self._grpc) if port]
        while any(port.arriving() for port in ports) and loop.time() < end:  # noqa: ASYNC110 - or each request must notify
            await asyncio.sleep(_POLL_INTERVAL)

    async def finish(self, end: float) -> None:
        """Let begun sequences go on to their ends, and then end connections and streams."""
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                for keeper in self._server.sequence_keepers():
                    if isinstance(keeper, Finisher):
                        await keeper.idle()
        if self._http:
            await self._http.stop_accepting()
        if self._grpc:
            await self._grpc.finish(max(0.0, end - loop.time()))

    async def stop(self) -> None:
        """Close all ports at once."""
        if self._access is not None:
            self._access.stop()
        if self._reporter is not None:
            self._reporter.stop()
        if self._http:
            await self._http.close()
        if self._grpc:
            await self._grpc.close()
        for port in (self._admin, self._metrics):
            if port:
                await port.retire(_LAST_SCRAPE)
                await port.close()
        if self._member is not None:
            await self._member.stop()
        await asyncio.to_thread(self._server.tracer.close)
        if self._server.access_log is not None:
            await asyncio.to_thread(self._server.access_log.close)
        if self._audit is not None:
            await asyncio.to_thread(self._audit.close)


def _times(name: str, text: str, label: str, times: Mapping[str, float]) -> Family:
    return family(name, "gauge", text, [(format_labels({label: of}), time_s) for of, time_s in times.items()])


def guard_page(app: AsgiApp, authority: "Authority", server: Server, *, open_page: bool) -> AsgiApp:
    """Return the metrics page for callers that may read about all models, with health as at other ports."""
    from modserve.access.permissions import HEALTH, METRICS, OPEN
    from modserve.frontends.http.guard import GuardedApp

    page = OPEN if open_page else METRICS
    return GuardedApp(
        app, authority, server, lambda method, path: (HEALTH if path.startswith("/v2/health/") else page, "")
    )
