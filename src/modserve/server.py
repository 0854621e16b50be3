"""The one object behind every front end: data plane and control plane of a server, without sockets."""

import asyncio
import enum
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .__about__ import __version__
from .core.errors import Code, ModserveError, invalid, unavailable
from .core.lifecycle import IndexEntry, State
from .core.request import InferenceRequest, ParameterValue
from .core.response import InferenceResponse
from .core.servable import Servable
from .core.tensor import Array, Tensor
from .observability.logging import Logs
from .repository import source
from .repository.manager import ModelManager

_log = logging.getLogger(__name__)

EXTENSIONS = ("classification", "model_configuration", "binary_tensor_data", "parameters", "statistics")
"""The protocol extensions served so far, as server metadata lists them."""


class Phase(enum.Enum):
    """Where a server is in its life."""

    STARTING = "starting"
    """Until every model of the first load is READY or has failed. Models that are READY are served."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Nothing new is accepted; what was accepted is finished."""


class Server:
    """Models, and what can be asked of them. Everything runs on one event loop's thread."""

    def __init__(
        self,
        manager: ModelManager,
        repositories: Sequence[Path],
        *,
        name: str,
        strict_readiness: bool = True,
        logs: Logs | None = None,
    ) -> None:
        self.name = name
        self.version = __version__
        self.phase = Phase.STARTING
        self._manager = manager
        self._repositories = tuple(repositories)
        self._strict_readiness = strict_readiness
        self._logs = logs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.phase.value}, {self._manager!r})"

    # Inference

    def model(self, name: str, version: int | None = None) -> Servable:
        """The READY model version that would answer; requests are given to its `submit`.

        Raises NOT_FOUND, or UNAVAILABLE if it is not READY or the server is stopping.
        """
        if self.phase is Phase.STOPPING:
            raise _not_ready()
        return self._manager.get(name, version)

    async def infer(
        self,
        model_name: str,
        inputs: Mapping[str, Array | Tensor],
        *,
        outputs: Sequence[str] = (),
        version: int | None = None,
        request_id: str = "",
        parameters: Mapping[str, ParameterValue] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it bounds the wait in the queue, not this call
    ) -> InferenceResponse:
        """Run one inference and return its response.

        `inputs` are numpy arrays by input name, with the batch dimension if the model has one. `outputs` names the
        wanted outputs, all by default. `version` is the latest ready one by default. `timeout` (seconds) is how long
        the request may wait before it runs. Cancelling the caller cancels the request.

        Raises `ModserveError`: INVALID_ARG, NOT_FOUND, UNAVAILABLE (also past the timeout) or INTERNAL.
        """
        now_ns = time.monotonic_ns()
        tensors = {
            name: value if isinstance(value, Tensor) else Tensor.from_array(value) for name, value in inputs.items()
        }
        request = InferenceRequest(
            model_name,
            tensors,
            tuple(outputs),
            version,
            request_id,
            dict(parameters or {}),
            0 if timeout is None else now_ns + int(timeout * 1e9),
        )
        return await self.run(self.model(model_name, version), request, now_ns)

    async def run(self, servable: Servable, request: InferenceRequest, now_ns: int) -> InferenceResponse:
        """Submit a request that arrived at `now_ns` and await its one answer. Cancelling the caller cancels it."""
        sink = _FutureSink(asyncio.get_running_loop())
        inflight = servable.submit(request, sink, now_ns)
        try:
            return await sink.future
        except asyncio.CancelledError:
            inflight.cancel()
            raise

    # Health

    @property
    def live(self) -> bool:
        return self.phase is not Phase.STOPPING

    @property
    def ready(self) -> bool:
        """Whether inference may be sent: running, and (strictly) every model version READY or unloaded on purpose."""
        return self.phase is Phase.RUNNING and not (self._strict_readiness and self._manager.unready())

    def unready_reasons(self) -> list[IndexEntry]:
        """The model versions that keep the server from being ready."""
        return self._manager.unready()

    def model_ready(self, name: str, version: int | None) -> bool:
        """Whether a model (version) takes requests. Raises NOT_FOUND for one that is not there."""
        return self._manager.state(name, version).state is State.READY and self.live

    # What there is

    @property
    def extensions(self) -> Sequence[str]:
        return EXTENSIONS if self._logs is None else (*EXTENSIONS, "logging")

    def model_names(self) -> list[str]:
        return self._manager.names()

    def index(self) -> list[IndexEntry]:
        """Every model version with its state and reason."""
        return self._manager.index()

    def repository_index(self, only_ready: bool) -> list[IndexEntry]:
        """`index` as clients may ask for it. Raises UNAVAILABLE if the server is stopping."""
        if self.phase is Phase.STOPPING:
            raise _not_ready()
        return [entry for entry in self.index() if entry.state is State.READY or not only_ready]

    def models(self, name: str | None = None, version: int | None = None) -> list[Servable]:
        """The READY versions of a model, or of all models for None, by name and version.

        Raises NOT_FOUND or UNAVAILABLE if `name` has none, or `version` is given and is not READY.
        """
        if self.phase is Phase.STOPPING:
            raise _not_ready()
        if name is None:
            return self.ready_models()
        latest = self._manager.get(name, version)
        return self._manager.ready_versions(name) if version is None else [latest]

    def ready_models(self) -> list[Servable]:
        """Every READY version of every model, whatever the server's phase: what the metrics page shows."""
        return [servable for name in self.model_names() for servable in self._manager.ready_versions(name)]

    def with_statistics(self, name: str = "", version: int | None = None) -> list[Servable]:
        """The READY model versions whose statistics a call asks for. Raises INVALID_ARG, as Triton does here."""
        try:
            return self.models(name or None, version)
        except ModserveError as error:
            if error.code is Code.UNAVAILABLE and self.phase is Phase.STOPPING:
                raise
            if self._manager.ready_versions(name):
                raise invalid(f"requested model version is not available for model '{name}'") from None
            raise invalid(f"requested model '{name}' is not available") from None

    # Control by clients

    def load_model(self, name: str) -> None:
        """Raises UNAVAILABLE: what is loaded is settled at the start."""
        raise _not_ready() if self.phase is Phase.STOPPING else _no_model_control()

    def unload_model(self, name: str) -> None:
        """Raises UNAVAILABLE, as `load_model` does."""
        raise _not_ready() if self.phase is Phase.STOPPING else _no_model_control()

    @property
    def logs(self) -> Logs:
        """The log whose settings clients may change. Raises UNAVAILABLE if they are not this server's to change."""
        if self._logs is None:
            raise unavailable("the server does not support dynamic logging")
        return self._logs

    # Life

    async def load(self) -> None:
        """Load every model of the repositories, and be RUNNING. Models that fail are states with reasons.

        Raises INVALID_ARG if a repository can not be read.
        """
        scan = await asyncio.to_thread(source.scan, self._repositories)
        for name in scan.duplicates:
            _log.error("model '%s' appears in two or more repositories, none of them is served", name)
            self._manager.refuse(name, "model appears in two or more repositories")
        await self._manager.reconcile(scan.models)
        if self.phase is Phase.STARTING:
            self.phase = Phase.RUNNING

    def stop_accepting(self) -> None:
        """Not ready from now on, and nothing new is accepted; what was accepted goes on."""
        self.phase = Phase.STOPPING

    async def drain(self) -> None:
        """Accept nothing new, finish what was accepted, and unload everything."""
        self.stop_accepting()
        await self._manager.reconcile({})


def _not_ready() -> ModserveError:
    return unavailable("Server not ready")


def _no_model_control() -> ModserveError:
    return unavailable("explicit model load / unload is not allowed if polling is enabled")


class _FutureSink:
    """Hands the one answer of a request to whoever awaits it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[InferenceResponse] = loop.create_future()

    def respond(self, response: InferenceResponse, final: bool) -> None:
        if not self.future.done():
            self.future.set_result(response)

    def fail(self, error: ModserveError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
