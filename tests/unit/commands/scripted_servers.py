"""Servers in this process, for commands over several of them: each has models, and fails as a test says."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from modserve.client.transport import (
    CONFIG,
    DRAIN,
    HEALTH,
    INDEX,
    LOAD,
    SERVER,
    STATISTICS,
    UNLOAD,
    Operation,
    Parameters,
)
from modserve.commands.errors import RefusedError, UnreachableError
from modserve.commands.remote_server import RemoteServer

ROLL_BACK = Operation("POST", "{model}/routing", "")


@dataclass
class ScriptedModel:
    """`files` are the versions in the repository, `ready` those that serve, with `config`."""

    files: tuple[str, ...] = ("1",)
    ready: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=lambda: {"backend": "b"})
    repository: dict[str, Any] = field(default_factory=lambda: {"backend": "b"})

    def load(self, config: dict[str, Any] | None) -> None:
        self.config = dict(self.repository if config is None else config)
        policy = self.config.get("version_policy", {})
        chosen = policy.get("specific", {}).get("versions")
        self.ready = self.files[-1:] if chosen is None else tuple(map(str, chosen))


class ScriptedServer(RemoteServer):
    """`on_call` is run before each call, with its operation, and may raise. Later calls wait for none."""

    def __init__(self, url: str, models: Mapping[str, ScriptedModel]) -> None:
        self.url = url
        self.models = dict(models)
        self.calls: list[str] = []
        self.counts: dict[str, Any] = {}
        self.rolled_back: dict[str, str | None] = {}
        """By version, what was said last."""
        self.unsaved: dict[str, str] = {}
        self.drained: dict[str, Any] = {"drained": True, "in_flight": {}, "seconds": 0.002}
        self.on_call: Callable[[Operation], None] = lambda operation: None
        self._lock = threading.Lock()

    def within(self, seconds: float) -> "ScriptedServer":
        return self

    def call(
        self, operation: Operation, model: str = "", version: int | None = None, parameters: Parameters | None = None
    ) -> Any:
        with self._lock:
            self.calls.append(operation.rpc)
        self.on_call(operation)
        if operation is SERVER:
            return {"name": "modserve", "version": "1.0"}
        if operation is HEALTH:
            return {"ready": True}
        if operation is DRAIN:
            return self.drained
        if operation is STATISTICS:
            return self.counts
        if operation is INDEX:
            return self._index()
        return self._control(operation, self.models[model], parameters or {})

    def roll_back(self, model: str, version: str, reason: str | None) -> Any:
        self.calls.append("roll_back")
        self.on_call(ROLL_BACK)
        self.rolled_back[version] = reason
        return {} if reason is None else {"rolled_back": {version: {"reason": reason, **self.unsaved}}}

    def _index(self) -> list[dict[str, str]]:
        rows = []
        for name, model in self.models.items():
            rows += [{"name": name, "version": each, "state": "READY"} for each in model.ready]
            rows += [{"name": name}] if not model.ready else []
        return rows

    def _control(self, operation: Operation, model: ScriptedModel, parameters: Parameters) -> Any:
        if operation is CONFIG:
            return dict(model.config)
        if operation is LOAD:
            config = parameters.get("config")
            model.load(None if config is None else json.loads(str(config)))
        elif operation is UNLOAD:
            model.ready = ()
        return {}

    def close(self) -> None: ...


def refusing(*operations: Operation, times: int = 1_000_000) -> Callable[[Operation], None]:
    """The first calls of these operations are refused."""
    left = [times]

    def on_call(operation: Operation) -> None:
        if operation in operations and left[0] > 0:
            left[0] -= 1
            raise RefusedError("not allowed")

    return on_call


def silent(*operations: Operation, times: int = 1_000_000) -> Callable[[Operation], None]:
    """The first calls of these operations, or of all without any, have no response."""
    left = [times]

    def on_call(operation: Operation) -> None:
        if (operation in operations or not operations) and left[0] > 0:
            left[0] -= 1
            raise UnreachableError("no response within 1 s")

    return on_call
