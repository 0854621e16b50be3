"""What clients have changed in a server since it started, so that it can be done again elsewhere, and undone."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from modserve.core.configuration.trace_settings import OPENTELEMETRY
from modserve.core.errors import ModserveError
from modserve.frontends.http.wire.asgi import SLASH
from modserve.pb import inference as pb
from modserve.protocol.control import logging_settings, trace_settings
from modserve.server import Server


class Change(NamedTuple):
    """A call that changes something: the target and the body of a POST at a worker's own socket."""

    target: str
    body: bytes


class Subject(NamedTuple):
    """What a change is about: a model or its routing, the log, traces, or a region of memory; and what it does."""

    kind: str
    name: str
    verb: str


RPC_PREFIX = "/rpc"
"""Before the path of an RPC at a worker's own socket."""
NO_ROUTING = b"null"
"""The body of a change that deletes a routing."""
_SERVICE = f"/{pb.SERVICE}/"

_PATHS = (
    ("model", re.compile(r"/v2/repository(?:/[^/]+)?/models/(?P<name>[^/]+)/(?P<verb>load|unload)")),
    ("routing", re.compile(r"/v2/models/(?P<name>[^/]+)/routing")),
    ("log", re.compile(r"/v2/logging")),
    ("trace", re.compile(r"/v2(?:/models/(?P<name>[^/]+))?/trace/setting")),
    ("system", re.compile(r"/v2/systemsharedmemory(?:/region/(?P<name>[^/]+))?/(?P<verb>register|unregister)")),
    ("cuda", re.compile(r"/v2/cudasharedmemory(?:/region/(?P<name>[^/]+))?/(?P<verb>register|unregister)")),
)

_RPCS: Mapping[str, Callable[[Any], Subject | None]] = {
    "RepositoryModelLoad": lambda message: Subject("model", message.model_name, "load"),
    "RepositoryModelUnload": lambda message: Subject("model", message.model_name, "unload"),
    "LogSettings": lambda message: Subject("log", "", "") if message.settings else None,
    "TraceSetting": lambda message: Subject("trace", message.model_name, "") if message.settings else None,
    "SystemSharedMemoryRegister": lambda message: Subject("system", message.name, "register"),
    "SystemSharedMemoryUnregister": lambda message: Subject("system", message.name, "unregister"),
    "CudaSharedMemoryRegister": lambda message: Subject("cuda", message.name, "register"),
    "CudaSharedMemoryUnregister": lambda message: Subject("cuda", message.name, "unregister"),
}


def http_subject(path: str) -> Subject | None:
    """What a POST to a decoded path changes; None if nothing."""
    for kind, pattern in _PATHS:
        match = pattern.fullmatch(path)
        if match is not None:
            parts = match.groupdict()
            return Subject(kind, (parts.get("name") or "").replace(SLASH, "/"), parts.get("verb") or "")
    return None


def rpc_subject(path: str, message: Any) -> Subject | None:
    """What an RPC changes; None if nothing, like a call that only asks for settings."""
    subject = _RPCS.get(path.removeprefix(_SERVICE))
    return None if subject is None else subject(message)


def is_shared_rpc(path: str) -> bool:
    return path.removeprefix(_SERVICE) in _RPCS


class Journal:
    """The changes of one worker that still hold, and for each subject what would undo the last one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._models: dict[str, Change] = {}
        """The last load or unload of each model, the latest at the end."""
        self._routings: dict[str, Change] = {}
        """What clients have set, by model."""
        self._regions: dict[tuple[str, str], Change] = {}
        self._log = False
        self._traces: set[str] = set()
        """The models whose trace settings were changed; empty for those of all models."""
        self._undo: dict[str, tuple[str, list[Change]]] = {}
        """By the kind of its subject, the number of the latest change, and what undoes it."""

    def state(self) -> list[Change]:
        """The changes that bring a server that has just started to the state of this one."""
        changes = list(self._regions.values())
        if self._log:
            changes.append(self._log_settings())
        # Those of single models are on top of those of all.
        changes += [self._trace_settings(model) for model in sorted(self._traces) if not model]
        changes += self._models.values()
        changes += self._routings.values()
        changes += [self._trace_settings(model) for model in sorted(self._traces) if model]
        return changes

    def before(self, subject: Subject) -> list[Change]:
        """What would bring back the present state of `subject` after a change."""
        if subject.kind == "model":
            routing = self._routings.get(subject.name)
            lost = [routing] if routing is not None and subject.verb == "unload" else []
            return [self._models.get(subject.name) or self._as_it_is(subject.name), *lost]
        if subject.kind == "routing":
            return [self._routings.get(subject.name) or Change(_routing(subject.name), NO_ROUTING)]
        if subject.kind == "log":
            return [self._log_settings()]
        if subject.kind == "trace":
            return [self._trace_settings(subject.name)]
        if subject.verb == "register":
            return [Change(_region(subject.kind, subject.name, "unregister"), b"")]
        return [
            change
            for (kind, name), change in self._regions.items()
            if kind == subject.kind and subject.name in ("", name)
        ]

    def record(self, subject: Subject, change: Change, before: list[Change], number: str = "") -> None:
        """`change`, which has a `number` if it may be undone, was made; `before` undoes it."""
        self._undo[subject.kind] = number, before
        if subject.kind == "model":
            self._models.pop(subject.name, None)
            self._models[subject.name] = change
            if subject.verb == "unload":
                self._routings.pop(subject.name, None)
        elif subject.kind == "routing":
            self._routings.pop(subject.name, None)
            if change.body.strip() != NO_ROUTING:
                self._routings[subject.name] = change
        elif subject.kind == "log":
            self._log = True
        elif subject.kind == "trace":
            self._traces.add(subject.name)
        elif subject.verb == "register":
            self._regions[subject.kind, subject.name] = change
        else:
            for kind, name in list(self._regions):
                if kind == subject.kind and subject.name in ("", name):
                    del self._regions[kind, name]

    def undo(self, subject: Subject, number: str) -> list[Change]:
        """What undoes the change of `subject` with this number, once; nothing if it was not made here."""
        latest, changes = self._undo.pop(subject.kind, ("", []))
        return changes if number and latest == number else []

    def _as_it_is(self, model: str) -> Change:
        """Loads the model from its repository if it is served, and unloads it otherwise."""
        try:
            ready = self._server.model_ready(model, None)
        except ModserveError:
            ready = False
        return Change(f"/v2/repository/models/{quote(model, safe='')}/{'load' if ready else 'unload'}", b"")

    def _log_settings(self) -> Change:
        settings = logging_settings.json(self._server.logs.settings)
        del settings["log_file"]
        return Change("/v2/logging", orjson.dumps(settings))

    def _trace_settings(self, model: str) -> Change:
        settings = trace_settings.json(self._server.tracer.settings(model))
        settings.pop("trace_file", None)
        if settings["trace_count"] == "0":  # they have all been made, and none may be asked for
            if settings["trace_mode"] == OPENTELEMETRY:  # where those of clients that trace go on
                settings.update(trace_rate="0", trace_count="-1")
            else:
                settings["trace_level"] = ["OFF"]
        path = f"/v2/models/{quote(model, safe='')}/trace/setting" if model else "/v2/trace/setting"
        return Change(path, orjson.dumps(settings))


def _region(kind: str, name: str, verb: str) -> str:
    return f"/v2/{kind}sharedmemory/region/{quote(name, safe='')}/{verb}"


def _routing(model: str) -> str:
    return f"/v2/models/{quote(model, safe='')}/routing"
