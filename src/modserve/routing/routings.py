"""The routings of all models: origin, lifetime, and operations."""

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from modserve.core.configuration.routing_config import RouteFigures, Routing, ShadowFigures
from modserve.core.errors import ModserveError, invalid, not_found
from modserve.core.requests.memory import MemoryBudget
from modserve.core.servable import SequenceKeeper, Servable
from modserve.core.version import RolledBack

from . import reading
from .router import Route, Routed, Router, RouteRollback

_log = logging.getLogger(__name__)

API, CONFIG, ENDED = "api", "config", ""
_SAME = ("model", "source", "routing")
"""Fields of reports that are the same in each worker."""


class Routings:
    """Routings by model name. A client's routing replaces the configuration's until it is deleted, or no version of the
    model is READY any more.

    Copies of requests take from `memory`. `on_rollback` is called when a version was rolled back here, by the rule of a
    routing or by a client. A rollback lasts until the routing is set again.
    """

    def __init__(
        self,
        memory: MemoryBudget | None = None,
        on_rollback: Callable[[RouteRollback], None] = lambda rollback: None,
    ) -> None:
        self._routers: dict[str, Router] = {}
        self._memory = MemoryBudget() if memory is None else memory
        self._on_rollback = on_rollback
        self._rolled_back: dict[str, dict[int, RolledBack]] = {}
        self.decisions = 0
        """Number of rollback decisions."""
        self.keep: Callable[[str, int, RolledBack], object] = lambda name, version, rolled_back: None
        """Callback that writes down a rollback made by a rule."""

    def _router(self, name: str, routing: Routing, source: str, revision: str = "") -> Router:
        router = Router(name, routing, source, self._memory, on_rollback=self._by_rule, revision=revision)
        for version, rolled_back in self.rollbacks_of(name).items():
            router.roll_back(version, rolled_back)
        return router

    def latest(self, name: str, served: Mapping[int, Servable]) -> Servable | None:
        """Return the highest READY version, without rolled-back ones if there are others."""
        good = [servable for version, servable in served.items() if version not in self.rollbacks_of(name)]
        return max(good or served.values(), key=lambda each: each.id.version, default=None)

    def front(self, name: str, served: Mapping[int, Servable], latest: Servable | None) -> Servable | None:
        """Return the target of requests without a version, if these versions are READY: `latest` without a routing."""
        router = self._routers.get(name)
        if latest is None:
            self._routers.pop(name, None)
            return None
        if router is None or router.source != API:
            router = self._configure(name, latest.config.routing, router, served)
        return latest if router is None else Routed(router, served, latest)

    def _configure(
        self, name: str, routing: Routing | None, router: Router | None, served: Mapping[int, Servable]
    ) -> Router | None:
        """Return the router of a configuration's routing; an unchanged one keeps its state."""
        if routing is not None and (router is None or router.source != CONFIG or router.routing != routing):
            router = self._router(name, routing, CONFIG)
        elif routing is None and router is not None:
            open_sequences = sum([each.open_sequences for each in served.values() if isinstance(each, SequenceKeeper)])
            router = self._router(name, Routing(), ENDED) if open_sequences else None
        if router is None:
            self._routers.pop(name, None)
        else:
            self._routers[name] = router
        return router

    def check_versions(self, name: str, document: object, versions: Collection[int], unserved: str = "") -> None:
        """Raise INVALID_ARG for a routing to other versions than `versions`, unless it allows missing ones."""
        reason = "" if document is None else reading.missing(reading.read(document), versions, unserved)
        if reason:
            raise invalid(f"model '{name}': {reason}")

    def set(self, name: str, latest: Servable, document: object, revision: str = "") -> None:
        """Set the routing by `document`, JSON values; None restores the configuration's routing, if any.

        `front` must be called afterwards. Raises INVALID_ARG without changing anything.
        """
        if document is None:
            former = self._routers.get(name)
            self.decisions += 1
            for version in self._rolled_back.pop(name, {}):
                if former is not None:
                    former.roll_back(version, None)
            if former is not None and former.source == API:
                self._routers[name] = self._router(name, Routing(), ENDED)
                _log.info("model '%s': deleted the routing that a client had set", name)
            return
        routing = reading.read(document)
        reading.check(routing, latest.config)
        self.decisions += 1
        self._rolled_back.pop(name, None)
        self._routers[name] = self._router(name, routing, API, revision)
        _log.info("model '%s': a client has set the routing %s", name, json.dumps(routing.document))

    # Rollbacks

    def rollbacks_of(self, name: str) -> Mapping[int, RolledBack]:
        return self._rolled_back.get(name, {})

    def note(self, name: str, version: int, latest: Servable | None) -> str:
        """Return the index's note on a READY version: its rollback, or for the latest version, others' rollbacks."""
        known = self.rollbacks_of(name)
        if version in known:
            return f"rolled back, and takes no requests that name no version: {known[version].reason}"
        if latest is None or latest.id.version != version:
            return ""
        return "; ".join(f"version {each} was rolled back: {of.reason}" for each, of in sorted(known.items()))

    def recall(self, name: str, rolled_back: Mapping[int, RolledBack]) -> None:
        """Set the rollbacks in a model's folder; rollbacks that could not be written there are kept."""
        unsaved = {version: each for version, each in self.rollbacks_of(name).items() if each.unsaved}
        self._rolled_back[name] = unsaved | dict(rolled_back)

    @property
    def rollbacks(self) -> list[RouteRollback]:
        """Return the rollbacks of all models."""
        return [
            RouteRollback(name, version, rolled_back.reason, self._document(name))
            for name, versions in self._rolled_back.items()
            for version, rolled_back in versions.items()
        ]

    def roll_back(self, rollback: RouteRollback) -> None:
        """Apply a rollback from another worker, if the model still has the same routing."""
        if self._document(rollback.model) == rollback.document:
            self._mark(rollback)

    def decide(self, name: str, versions: Mapping[int, str]) -> Mapping[int, RolledBack | None]:
        """Apply rollbacks read by `reading.rollbacks`, here and in other workers; return the resulting ones.

        `front` must be called afterwards.
        """
        for version, reason in versions.items():
            rollback = RouteRollback(name, version, reason, self._document(name))
            self._mark(rollback)
            self._on_rollback(rollback)
        return {version: self.rollbacks_of(name).get(version) for version in versions}

    def mark_unsaved(self, name: str, version: int, why: str) -> None:
        """Set the reason that a rollback could not be written; empty once it is."""
        known = self._rolled_back.get(name, {})
        if version in known:
            known[version] = replace(known[version], unsaved=why)

    def _by_rule(self, rollback: RouteRollback) -> None:
        self._mark(rollback)
        self._on_rollback(rollback)
        self.keep(rollback.model, rollback.version, self._rolled_back[rollback.model][rollback.version])

    def _mark(self, rollback: RouteRollback) -> None:
        self.decisions += 1
        name, version, reason, _ = rollback
        known, router = self._rolled_back.setdefault(name, {}), self._routers.get(name)
        if not reason:
            known.pop(version, None)
            _log.info("model '%s', version %d: no longer rolled back", name, version)
        elif version not in known or known[version].reason != reason:
            known[version] = RolledBack(reason, time.time_ns() // 1_000_000)
            text = "model '%s', version %d: rolled back, requests that name no version no longer go to it: %s"
            _log.warning(text, name, version, reason)
        if router is not None:
            router.roll_back(version, known.get(version))

    def _document(self, name: str) -> Mapping[str, Any]:
        router = self._routers.get(name)
        return {} if router is None else router.routing.document

    def resolve_label(self, name: str, text: str, failure: ModserveError) -> int:
        """Return the version of a model with the label `text`, which is not a number.

        Raises NOT_FOUND for an unknown label, and `failure` for a model without labels or an invalid label.
        """
        router = self._routers.get(name)
        labels: Mapping[str, int] = {} if router is None else router.routing.labels
        if text in labels:
            return labels[text]
        if not labels or reading.LABEL.fullmatch(text) is None:
            raise failure
        known = ", ".join(f"'{label}' (version {version})" for label, version in labels.items())
        raise not_found(f"model '{name}' has no version with the label '{text}', its labels are: {known}")

    def has_labels(self, name: str) -> bool:
        router = self._routers.get(name)
        return router is not None and bool(router.routing.labels)

    def report(self, name: str, trouble: Callable[[int], str]) -> dict[str, Any]:
        """Return the report of `Router.report`. Raises NOT_FOUND for a model without a routing."""
        router, rolled_back = self._routers.get(name), self.rollbacks_of(name)
        if router is not None and router.source != ENDED:
            report = router.report(trouble)
        elif rolled_back:
            report = {"model": name, "source": ENDED, "routing": {}, "routes": []}
        else:
            raise not_found(f"model '{name}' has no routing: requests that name no version go to the latest one")
        versions = {str(version): _document_of(each) for version, each in sorted(rolled_back.items())}
        return {**report, "rolled_back": versions} if versions else report

    def revision(self, name: str) -> str:
        """Name of a model's routing in all workers; a different one counts from 0."""
        router = self._routers.get(name)
        return "" if router is None else router.revision or json.dumps(router.routing.document)

    def counts(self, trouble: Callable[[str, int], str]) -> list[dict[str, Any]]:
        """Return the parts of all reports that differ between workers."""
        return [
            {"name": name, "revision": self.revision(name), "workers": 1}
            | {key: value for key, value in router.report(partial(trouble, name)).items() if key not in _SAME}
            for name, router in self._routers.items()
        ]

    def figures(self, ready: Callable[[str, int], bool]) -> Iterator[RouteFigures | ShadowFigures]:
        """Yield the figures of all routings, for the metrics page. `ready`: True if a version of a model is READY."""
        for name, router in self._routers.items():

            def is_ready(route: Route, name: str = name) -> bool:
                return ready(name, route.version)

            yield from router.figures(is_ready)


def _document_of(rolled_back: RolledBack) -> dict[str, Any]:
    document = {"reason": rolled_back.reason, "at_ms": rolled_back.at_ms}
    return {**document, "unsaved": rolled_back.unsaved} if rolled_back.unsaved else document
