"""A whole server without ports, in simulated time, on puppets; and everything that may happen to it.

Each method is one thing that happens, between two turns of the event loop; nothing that follows from it has happened
when it returns. `turn` lets the next turn happen, `run` all of them, with or without time that passes.
"""

import asyncio
import json
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from unittest.mock import patch

import numpy as np

from modserve import InferenceServer, ModserveError, Settings
from modserve.core.errors import Code, OverloadedError, PermissionDeniedError, UnauthenticatedError, internal
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.core.servable import Servable
from modserve.core.tensors.tensor import Tensor
from modserve.execution.rate_limit import RateLimiter
from modserve.models.residency.memory import Meter
from modserve.models.residency.on_demand import OnDemandModel
from modserve.models.serving.model import Model
from modserve.models.serving.wrappers import ModelWrapper
from modserve.repository.manager import ModelManager
from modserve.server import DrainPhase, DrainReport
from text_folders import write_folder

from .chats import FORMS, ChatClient
from .keys import KeyFile
from .ledger import Entry, Ledger, SinkError
from .models import MODELS, TENANTS, Variation
from .posts import Site
from .puppets import (
    WEIGHTS,
    BatchInstance,
    BlockingInstance,
    CallingInstance,
    Engines,
    Execution,
    PuppetBackend,
    RequestsInstance,
)
from .simulation import SimulatedLoop, ThrownError, simulated
from .texts import TextClient

_Client = TypeVar("_Client", TextClient, ChatClient)

LONG_S = 400.0
"""Everything is over by then that goes on by itself: the longest wait is that before a load which was too large."""


POLL_S = 1.1
"""After so long a server that polls has seen what was written."""

_MEANT = (SinkError, ThrownError, ValueError)
"""What the test throws."""

_STOPPING = "Server not ready"
"""The refusal of a server that takes nothing new."""


class World:
    """`limit`: bytes that all models together may take, so that they come and go; 0: all of them stay in memory.

    `keys`: clients need one. `polls`: the server watches the repository, and nobody tells it to load or unload.
    """

    def __init__(self, limit: int = 0, *, keys: bool = False, polls: bool = False) -> None:
        self.limit = limit
        self.polls = polls
        self.loop = SimulatedLoop()
        self._stack = ExitStack()
        self._root = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="product-")))
        self._stack.enter_context(simulated(self.loop))
        records = tempfile.TemporaryDirectory(prefix="product-records-", ignore_cleanup_errors=True)
        self.records = Path(self._stack.enter_context(records))
        self.engines = Engines(self.loop.call_soon)
        meter = Meter(own=lambda: self.engines.process_bytes, processes=frozenset, share=lambda pid: 0)
        self._stack.enter_context(patch("modserve.process.app.Meter", lambda *_: meter))
        self._stack.enter_context(patch("modserve.process.app.ModelManager", self._manager))
        self._stack.enter_context(patch("modserve.process.app.RateLimiter", self._limiter))
        self.backends: dict[str, Any] = {
            "puppet": PuppetBackend(self.engines, BatchInstance),
            "requests": PuppetBackend(self.engines, RequestsInstance),
            "blocking": PuppetBackend(self.engines, BlockingInstance),
            "calling": PuppetBackend(self.engines, CallingInstance),
        }
        self._settings = settings = Settings(
            model_repository=[self._root],
            model_control_mode="poll" if polls else "explicit",
            repository_poll_secs=1,
            cache_config=1_000_000,
            rate_limit="execution_count",
            exit_timeout_secs=300,
            record=f"dir={self.records},rate=1",
            **({"model_memory_limit": str(limit)} if limit else {}),
        )
        self.server: InferenceServer = self.loop.act(lambda: InferenceServer(settings, backends=self.backends))
        self.ledger = Ledger(self.server.memory)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="product-keys-")))
        self.keys = KeyFile(folder, self.loop) if keys else None
        self.key: tuple[str, bool, bool] | None = None
        """Who sends: the name of a key, whether it shows the former secret, and whether in a call that is open."""
        authority = None if self.keys is None else self.keys.authority
        self.site: Site = self.loop.act(lambda: Site(self.server, self.loop, authority))
        self.texts: list[TextClient | ChatClient] = []
        self.variations: dict[str, Variation] = {}
        self.wanted_instances: Counter[str] = Counter()
        """How often changes of the configuration can have needed another instance, by model."""
        self.operations: list[asyncio.Task[Any]] = []
        self.stopping: asyncio.Task[bool] | None = None
        self.draining: asyncio.Task[DrainReport] | None = None
        self.removed: set[str] = set()
        """Models whose folders their owner has removed since the drain began."""
        self.tenant = 0
        """Who sends, among `TENANTS`."""
        self.sent: Counter[tuple[str, str]] = Counter()
        """Requests by tenant, and by what became of them: accepted, or refused for being too many."""
        self._contents = 0
        self._stamp = 0
        self._log = _Watch(self.ledger.wrong)
        self._stack.enter_context(self._log.watching())
        self.complete(self.server.load())

    def _manager(self, *arguments: Any) -> ModelManager:
        self.manager = ModelManager(*arguments)
        return self.manager

    def _limiter(self, *arguments: Any) -> RateLimiter:
        self.limiter = RateLimiter(*arguments)
        return self.limiter

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.end()
        finally:
            self.dispose()

    def dispose(self) -> None:
        """Nothing happens any more."""
        for task in self.loop.tasks():
            task.cancel()
        if self.keys is not None:
            self.keys.stop()
        for entry in self.ledger.entries:
            entry.note = lambda text: None
            entry.react = lambda: None
        self.loop.hold_threads(False)
        try:
            self.loop.run()
        finally:
            self.loop.close()
            self._stack.close()

    # Time

    def turn(self) -> None:
        self.loop.turn()
        self.ledger.check()

    def run(self, seconds: float = 0.0) -> None:
        began_ns = self.loop.now_ns
        self.loop.run(seconds)
        if self.keys is not None and not self.loop.holds:
            self.keys.time_passed((self.loop.now_ns - max(began_ns, self.loop.last_thrown_ns)) / 1e9)
        self.ledger.check()

    def complete(self, work: Coroutine[Any, Any, Any], seconds: float = 0.0) -> Any:
        """Run something of the server's to its end."""
        task = self.loop.create_task(work)
        self.run(seconds)
        assert task.done(), f"it takes more than {seconds} s"
        return task.result()

    # Models

    def path(self, name: str) -> Path:
        return self._root / name

    def another_server(self) -> InferenceServer:
        """One of the same repository, after this one has stopped."""
        server: InferenceServer = self.loop.act(lambda: InferenceServer(self._settings, backends=self.backends))
        return server

    def write(self, name: str, variation: Variation | None = None) -> None:
        """Write a model's configuration, and its files if there are none."""
        kind = MODELS[name]
        former = self.variations.get(name)
        self.variations[name] = variation or former or kind.variation
        more = self.variations[name].count - (0 if former is None else former.count)
        self.wanted_instances[name] += max(0, more) * len(kind.versions)
        for version in kind.versions:
            folder = self.path(name) / str(version)
            if not folder.exists():
                folder.mkdir(parents=True)
                self._write_file(folder / WEIGHTS, str(self._contents))
                if kind.takes_texts:
                    write_folder(folder)
        self._write_file(self.path(name) / "config.pbtxt", kind.text(self.variations[name]))

    def _write_file(self, path: Path, text: str) -> None:
        """Write it, later than all before: the system's own stamps may be the same for several."""
        path.write_text(text)
        self._stamp += 1_000_000
        os.utime(path, ns=(self._stamp, self._stamp))

    def need(self, name: str) -> None:
        """Load a model that was never loaded, with those it needs."""
        if name in self.variations or self.stopping is not None or self.draining is not None:
            return
        for each in MODELS[name].needs:
            self.need(each)
        self.write(name)
        self._load(name)
        self.run(POLL_S if self.polls else 0.0)

    def _load(self, name: str) -> None:
        """Have a client ask for what the repository has now, unless the server sees it by itself."""
        if not self.polls:
            self.operate(self.server.load_model(name))

    def change(self, name: str, **fields: Any) -> None:
        """Load a model with another configuration: in place, where that can be."""
        former = self.variations.get(name, MODELS[name].variation)
        varied = {field: value for field, value in fields.items() if field in MODELS[name].varies}
        if varied.get("warm_up", former.warm_up) != former.warm_up:
            self.engines.remade.add(name)
        self.write(name, replace(former, **varied))
        self._load(name)

    def load_again(self, name: str, *, broken: bool = False) -> None:
        """Load a model with other files, which may be broken."""
        self.engines.remade.add(name)
        self.write(name)
        self._contents += 1
        for version in MODELS[name].versions:
            self._write_file(self.path(name) / str(version) / WEIGHTS, str(self._contents))
        self.engines.broken.discard(name)
        if broken:
            self.engines.broken.add(name)
        self._load(name)

    def unload(self, name: str, *, dependents: bool = False) -> None:
        self.engines.remade.update((name, *MODELS[name].needs))
        if self.polls:
            shutil.rmtree(self.path(name), ignore_errors=True)
            if self.draining is not None:
                self.removed.add(name)
            return
        self.operate(self.server.unload_model(name, dependents))

    def mend(self) -> None:
        """No file is broken any more, and no engine."""
        self.engines.broken.clear()
        self.engines.throws = ""

    def evict(self, name: str) -> None:
        """A model that comes and goes leaves memory now, if it can."""
        for each in self.served(name):
            if isinstance(each, OnDemandModel) and each.movable and not each.at_work and not each.borrowed:
                self.loop.act(partial(each.leave, "the test says so"))

    def move_executions(self, *, on_loop: bool) -> None:
        """Engines that block turn out to be so quick that they run on the event loop's thread, or no longer."""
        for model in self.models():
            for instance in model.pool._instances.values():
                if instance.inline_rule is not None:
                    instance.inline_rule.on_loop = on_loop

    def models(self, name: str = "") -> list[Model]:
        """The models with instances that are served: all, or those by one name."""
        rows = [self.manager.table.models.get(name)] if name else list(self.manager.table.models.values())
        served = [each for row in rows if row is not None for each in row.served.values()]
        return [layer for each in served for layer in layers(each) if isinstance(layer, Model)]

    def route(self, name: str, document: str | None) -> None:
        """Another routing, in place of the configuration's, or a rollback beside it."""
        self.operate(self.server.set_routing(name, None if document is None else json.loads(document)))

    def operate(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin something that a client asks of the server, beside whatever else goes on."""
        self.operations.append(self.loop.create_task(work))

    def served(self, name: str) -> list[Servable]:
        return self.manager.table.ready_versions(name)

    # Requests

    def submit(
        self,
        model: str,
        *,
        value: int | None = None,
        length: int = 1,
        version: int | None = None,
        timeout_s: float = 0.0,
        queue_timeout_ms: int = 0,
        reads: bool = True,
        reaction: str = "",
        **parameters: ParameterValue,
    ) -> Entry:
        """Send a request as front ends do. `timeout_s`: its client's patience; `reaction`: see `_reaction`.

        `length`: of its input, for models that pad.
        """
        self.need(model)
        entry = self.ledger.enter(model, value, MODELS[model].decoupled)
        entry.reads, entry.react = reads, self._reaction(reaction, entry)
        entry.in_sequence = MODELS[model].sequences
        entry.length = length if MODELS[model].padded else 1
        request = InferenceRequest(
            model,
            _inputs(entry),
            (),
            version,
            str(entry.number),
            parameters,
            self.loop.now_ns + round(timeout_s * 1e9) if timeout_s else 0,
            queue_timeout_ms * 1_000_000,
        )
        if self.key is None:
            request.tenant = TENANTS[self.tenant]
        if not entry.in_sequence or parameters.get("sequence_start"):  # others may go on where their sequence began
            entry.generation = self._generation(model)
        self.loop.act(partial(self._submit, entry, request))
        return entry

    def _generation(self, model: str) -> int:
        """The oldest files that are served under this name; 0 if these do not show."""
        pools = [each.pool for each in self.models(model) if MODELS[model].stamped]
        engines: list[Any] = [each.engine for pool in pools for each in pool._instances.values()]
        return min((each.generation for each in engines), default=0)

    def _submit(self, entry: Entry, request: InferenceRequest) -> None:
        open_to_all = self.stopping is None and self.server.drain_phase < DrainPhase.FINISHING
        closed = self.server.drain_phase >= DrainPhase.FINISHING and not entry.in_sequence
        self._accept(entry, request)
        if open_to_all and entry.refusal is not None and _STOPPING in entry.refusal.message:
            self.ledger.wrong.append(f"the server serves all, and refuses {entry!r}: {entry.refusal!r}")
        # Keys come first: those without one that is good enough do not hear that the server stops.
        by_key = self.key is not None and isinstance(entry.refusal, UnauthenticatedError | PermissionDeniedError)
        unseen = self.key is not None and entry.refusal is not None and entry.refusal.code is Code.NOT_FOUND
        if not closed or by_key or unseen:
            return
        if entry.refusal is None or entry.refusal.code is not Code.UNAVAILABLE:
            self.ledger.wrong.append(f"the server is drained, and does not refuse {entry!r}: {entry.refusal!r}")

    def _accept(self, entry: Entry, request: InferenceRequest) -> None:
        try:
            if self.keys is not None and self.key is not None:
                name, former, in_stream = self.key
                secret = self.keys.secret(name, former=former)
                request.tenant = self.keys.enter(self.server, name, secret, request.model_name, in_stream=in_stream)
            servable = self.server.model(request.model_name, request.version)
            submit = partial(self._submit_to, servable, entry)
            if request.tenant is None:
                entry.inflight = submit(request)
            else:
                entry.inflight = self.server.quotas.accept(request, 1, submit)
        except ModserveError as error:
            entry.refusal = error
            if request.tenant is not None and isinstance(error, OverloadedError):
                self.sent[request.tenant.name, "refused"] += 1
            return
        if request.tenant is not None:
            self.sent[request.tenant.name, "accepted"] += 1
        if entry.decoupled:
            self.server.pace(entry.inflight)

    def _submit_to(self, servable: Servable, entry: Entry, request: InferenceRequest) -> Inflight:
        recorder = self.server.recorder
        assert recorder is not None
        entry.recorded = True
        return recorder.sample(servable, request).submit(request, entry, self.loop.now_ns)

    def _reaction(self, name: str, entry: Entry) -> Callable[[], None]:
        """What a client's side does in the middle of its last outcome."""

        def nothing() -> None: ...

        def cancel() -> None:
            others = [each for each in self.ledger.open if each is not entry]
            if others:
                others[-1].cancel()

        def submit() -> None:
            other = self.ledger.enter(entry.model, None, entry.decoupled)
            other.length = entry.length
            self._submit(other, InferenceRequest(entry.model, _inputs(other), id=str(other.number)))

        def fail() -> None:
            raise SinkError("the receiver of a response has failed")

        return {"": nothing, "cancel": cancel, "submit": submit, "raise": fail}[name]

    def send_texts(self, model: str, counts: Sequence[int], timeout_s: float = 0.0) -> TextClient:
        """Send a request with a text of each number of words, as a client over HTTP does."""
        self.need(model)
        return self._begin(TextClient(model, counts, timeout_s, **self._way))

    def chat(
        self,
        model: str,
        *,
        stream: bool = False,
        choices: int = 1,
        timeout_s: float = 0.0,
        has_items: bool = False,
        form: str = FORMS[0],
    ) -> ChatClient:
        """Begin a chat, as a client over HTTP does."""
        self.need(model)
        client = ChatClient(
            model,
            form.replace("{}", str(len(self.texts))),
            stream=stream,
            choices=choices,
            timeout_s=timeout_s,
            has_items=has_items,
            **self._way,
        )
        return self._begin(client)

    @property
    def _way(self) -> dict[str, bool]:
        """Clients take turns: by the port, by the application, and by the path that a platform calls."""
        turn = len(self.texts) % 3
        return {"by_port": turn != 1, "by_platform": turn == 2}

    def _begin(self, client: _Client) -> _Client:
        if self.keys is not None:
            self.keys.shown(client.post, client.model)
        self.texts.append(client)
        client.post.begin(self.site)
        return client

    def leave_texts(self, index: int = -1) -> None:
        """One of the clients of texts that wait goes away."""
        waiting = [each for each in self.texts if not each.post.over]
        if waiting:
            self.loop.act(waiting[index % len(waiting)].post.leave)

    def leave_all(self) -> None:
        for client in self.texts:
            client.post.leave()

    def cancel(self, index: int = -1) -> Entry | None:
        """The client of one of the open requests goes, the latest by default."""
        entries = self.ledger.open
        if not entries:
            return None
        entry = entries[index % len(entries)]
        self.loop.act(entry.cancel)
        return entry

    def read(self, most: int) -> None:
        """Those that are slow read some of their responses."""
        for entry in self.ledger.entries:
            if entry.unread:
                self.loop.act(partial(entry.read, most))

    # Engines

    @property
    def executions(self) -> list[Execution]:
        return self.engines.executions

    def finish(self, index: int = 0, how: str = "ok") -> None:
        """End one of the executions under way."""
        if not self.executions:
            return
        execution = self.executions[index % len(self.executions)]
        error = None if how == "ok" else internal("the engine says no") if how == "error" else ValueError("unforeseen")
        self.loop.act(partial(execution.finish, error))

    def respond(self, index: int = 0, *, complete: bool = False) -> None:
        """One of the engines that respond to each request by itself says something."""
        running = [each for each in self.executions if each.open]
        if running:
            execution = running[index % len(running)]
            self.loop.act(execution.complete if complete else execution.respond)

    def lose(self, index: int = 0) -> None:
        """One of the engines' instances is gone, with what it runs."""
        if self.engines.instances:
            self.loop.act(self.engines.instances[index % len(self.engines.instances)].lose)

    # The end

    def drain(self, notice_s: float = 0.0) -> None:
        """A client has the server taken out of service, which is unready for `notice_s` before."""
        if self.draining is None and self.stopping is None:
            self.server.draining.times = self.server.draining.times._replace(notice=notice_s)
            self.draining = self.loop.create_task(self.server.drain())

    def stop(self) -> None:
        """The server is to stop."""
        if self.stopping is None:
            self.stopping = self.loop.create_task(self.server.shut_down())

    def end(self) -> None:
        """Let everything come to its end, and look whether all is as it was; then stop the server, and look again."""
        from . import invariants

        invariants.check_end(self)


def layers(servable: Servable) -> Iterator[Servable]:
    """A servable, and all that is behind it."""
    yield servable
    if isinstance(servable, ModelWrapper):
        yield from layers(servable.inner)
    elif isinstance(servable, OnDemandModel) and servable._inner is not None:
        yield from layers(servable._inner)


def _inputs(entry: Entry) -> dict[str, Tensor]:
    kind = MODELS[entry.model]
    if kind.chats:
        return {kind.input: Tensor.from_array(np.array([[str(entry.value).encode()]], object))}
    return {kind.input: Tensor.from_array(np.full((1, entry.length), entry.value, np.int64))}


class _Watch(logging.Handler):
    """Notes what the log says of failures that nobody has foreseen."""

    def __init__(self, wrong: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._wrong = wrong

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Nobody else gets to see the log: thousands of failures are meant."""
        logger = logging.getLogger("modserve")
        logger.addHandler(self)
        propagate, logger.propagate = logger.propagate, False
        try:
            yield
        finally:
            logger.propagate = propagate
            logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, _MEANT) or (error is None and record.levelno < logging.ERROR):
            return
        text = record.getMessage()
        if (error is not None and not isinstance(error, ModserveError)) or "this is a bug" in text:
            self._wrong.append(f"the log says: {text}: {error!r}")
