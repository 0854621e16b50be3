"""The deployment's class: a server in the process of a Ray replica."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from functools import partial
from typing import Any

import ray
from ray import serve
from ray.serve.config import DeploymentActorConfig, RequestRouterConfig

from modserve.access.authority import AccessControl
from modserve.core.errors import unavailable
from modserve.frontends.http.application import guard_app, scope_server
from modserve.frontends.http.mounted import MountedApp
from modserve.frontends.http.rest.app import create_app
from modserve.process.app import InferenceServer
from modserve.process.listeners import access_control
from modserve.settings import Settings
from modserve.workers.control import WorkerControl
from modserve.workers.fleet_server import FleetServer
from modserve.workers.tally import Tally

from . import sequences
from .ledger import Ledger
from .lifespan import without_lifespan
from .links import LEDGER, LedgerLink, SequenceLink, broadcast
from .member import ReplicaMember
from .metrics import with_page
from .proxied_calls import ProxyCalls, WireMessage
from .replica_set import PeerCalls, ReplicaSet
from .router import SessionRouter
from .scaling import PENDING
from .sequences import NearSender, SequenceRoutes
from .servicers import SERVICES
from .sessions import list_replicas

_MOST_WAITING = 1000
"""Maximum waiting calls of the ledger: by starting replicas, and for changes by clients."""


class Replica:
    """A server called by Ray's proxies and other replicas, through its public methods."""

    async def __init__(self, settings: Settings, revision: str = "", sticky: bool = True) -> None:  # type: ignore[misc]
        """`revision`: distinguishes deployments with the same settings. `sticky`: calls of a session go to one replica.

        Raises for failed models according to `exit_on_error`.
        """
        context = serve.get_replica_context()
        name, place = context.replica_id.unique_id, (context.deployment, context.app_name)
        ledger = LedgerLink()
        peers = ReplicaSet(name, broadcast(*place), ledger)
        self._peers = peers
        self._sequences = NearSender(name, list_replicas, self.receive_sequence, SequenceLink(*place))
        member = ReplicaMember(peers, SequenceRoutes(self._sequences) if sticky else None)
        server = self._server = InferenceServer(settings, member=member)
        tally = Tally(peers)
        tally.serve(server)
        control = WorkerControl(server, tally.tell, lambda: None)
        control.caught_up.set()
        self._peer_calls = PeerCalls(name, control, ledger, partial(sequences.holds, server))
        self._access: AccessControl | None = access_control(settings)
        await server.__aenter__()
        if settings.exit_on_error and (failed := server.unready_reasons()):
            reasons = "; ".join(f"{each.name}: {each.reason}" for each in failed)
            await server.shut_down()
            raise unavailable(f"models failed to load: {reasons}")
        await self._peer_calls.start()
        self._following = asyncio.create_task(self._peer_calls.follow())
        if self._access is not None:
            self._access.start()
        authority = None if self._access is None else self._access.authority
        fleet = FleetServer(server, peers, peers, peers, tally, "replica")
        named = scope_server(fleet, authority)
        self._calls = ProxyCalls(named, settings.grpc, authority)
        app = create_app(named, settings.http, authority=authority)
        self._stop_streams = app.state.streams.stop
        served = guard_app(app, fleet, authority)
        if settings.allow_metrics:
            served = with_page(served, server, settings, tally, authority, name)
        self._http = MountedApp(served, fleet)

    def __serve_build_asgi_app__(self) -> Any:
        """Return the application that `serve.ingress` serves over HTTP."""
        return without_lifespan(self._http)

    async def __del__(self) -> None:
        """Shut down; Ray calls this when the replica has finished its calls."""
        self._stop_streams()
        self._calls.stop()
        self._following.cancel()
        if self._access is not None:
            self._access.stop()
        await self._server.shut_down()

    def check_health(self) -> None:
        """Check the server; Ray replaces a replica that raises here."""
        if not self._server.live:
            raise RuntimeError("the server has stopped")

    def record_autoscaling_stats(self) -> Mapping[str, int]:
        return {PENDING: sum(self._server.in_flight().values())}

    async def receive_call(self, data: bytes) -> bytes:
        return await self._peer_calls.receive(data)

    async def receive_sequence(self, data: bytes) -> AsyncGenerator[tuple[bool, bytes]]:
        async for outcome in sequences.receive(self._server, data, self._peers, self._sequences):
            yield outcome

    @property
    def calls(self) -> ProxyCalls:
        return self._calls


def _unary(path: str) -> Any:
    async def method(self: Replica, data: bytes, grpc_context: Any) -> WireMessage:
        return await self.calls.unary(path, data, grpc_context)

    return method


def _stream(path: str) -> Any:
    async def method(
        self: Replica, messages: AsyncIterator[bytes] | bytes, grpc_context: Any
    ) -> AsyncGenerator[WireMessage]:
        async for message in self.calls.stream(path, messages, grpc_context):
            yield message

    return method


for _service, _methods in SERVICES:
    for _name, _row in _methods.items():
        _path = f"/{_service}/{_name}"
        setattr(Replica, _name, _stream(_path) if _row.server_streaming else _unary(_path))


class LedgerActor(Ledger):
    """The ledger of a deployment, as its actor."""

    def __init__(self) -> None:
        context = serve.get_deployment_actor_context()
        super().__init__(broadcast(context.deployment, context.app_name))


def deployment_class(sticky: bool) -> Any:
    """Return the deployment with its HTTP application, router, and the actor that numbers changes.

    Only with its own router it is `sticky`; Ray does not use that in HAProxy mode.
    """
    router = {"request_router_config": RequestRouterConfig(request_router_class=SessionRouter)} if sticky else {}
    options = {"num_cpus": 0, "max_concurrency": _MOST_WAITING}
    actor = DeploymentActorConfig(name=LEDGER, actor_class=ray.remote(LedgerActor), actor_options=options)
    return serve.deployment(
        serve.ingress()(Replica),
        name="modserve",
        deployment_actors=[actor],
        **router,
    )
