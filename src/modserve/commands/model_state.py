"""Snapshot of a model's versions and configuration on a server, and the return to it.

What is restored: a model that was not loaded is unloaded; one that was is loaded with its previous configuration and
versions, which the server keeps until the model's files change or it is unloaded. Not restored: files replaced in a
version's directory, and files sent by an earlier load call.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modserve.client.transport import CONFIG, LOAD, UNLOAD
from modserve.core.errors import ModserveError
from modserve.core.lifecycle import LifecycleState

from .errors import RefusedError
from .remote_server import RemoteServer
from .status_report import index

_READY = LifecycleState.READY.name
_SOON = 10.0
"""Seconds for calls that load nothing."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """Serving versions and configuration of a model. `config` is None if the model is not loaded or it is hidden."""

    versions: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    known: bool = True
    """True if the repository index has the model."""

    def __str__(self) -> str:
        if not self.versions:
            return "not loaded"
        return f"version{'s' * (len(self.versions) > 1)} {', '.join(self.versions)} READY"


def state_of(server: RemoteServer, model: str) -> ModelState:
    """Read the state. Raises UnreachableError, also if the server does not respond soon, and RefusedError."""
    server = server.within(_SOON)
    rows = [row for row in index(server) if row.model == model]
    versions = tuple(sorted((row.version for row in rows if row.state == _READY), key=lambda text: (len(text), text)))
    config: Mapping[str, Any] | None = None
    if versions:
        try:
            config = server.call(CONFIG, model, int(versions[-1]))
        except RefusedError:
            pass  # restricted, or gone meanwhile: the repository's own has to do
    return ModelState(versions, config, bool(rows))


def go_back(server: RemoteServer, model: str, before: ModelState, *, unsure: bool = False) -> ModelState:
    """Restore the model's previous state; return the state after it. Raises UnreachableError, RefusedError.

    `unsure`: a call had no response, so the server may yet carry it out; it does so before the next call for the model.
    """
    now = state_of(server, model)
    if not unsure and (now == before or not (now.versions or before.versions)):
        return now
    if not before.versions:
        server.call(UNLOAD, model, parameters={"unload_dependents": False})
    elif before.config is None:
        server.call(LOAD, model)
    else:
        pinned = unsure or now.versions != before.versions
        config = with_versions(before.config, before.versions) if pinned else before.config
        server.call(LOAD, model, parameters={"config": json.dumps(config)})
    return state_of(server, model)


def with_versions(config: Mapping[str, Any], versions: tuple[str, ...]) -> dict[str, Any]:
    """Return the configuration with a policy for exactly these versions."""
    others = {name: value for name, value in config.items() if name != "versionPolicy"}
    return {**others, "version_policy": {"specific": {"versions": [int(version) for version in versions]}}}


def is_back(now: ModelState, before: ModelState) -> bool:
    """Return True if the model has the same versions, and the same configuration except for the version policy."""
    return now.versions == before.versions and _apart_from_policy(now) == _apart_from_policy(before)


def _apart_from_policy(state: ModelState) -> Mapping[str, Any] | None:
    config = state.config
    return config and {name: value for name, value in config.items() if name not in ("version_policy", "versionPolicy")}


def last_state(server: RemoteServer, model: str) -> str:
    """Return the state in words, even if the server does not report it."""
    try:
        return str(state_of(server, model))
    except ModserveError as error:
        return f"unknown ({error.message})"
