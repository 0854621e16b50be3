"""The routings of all models: their origin, their lifetime, and the operations on them."""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from modserve.core.configuration.routing_config import RouteFigures, Routing, ShadowFigures
from modserve.core.errors import ModserveError, invalid, not_found
from modserve.core.requests.memory import MemoryBudget
from modserve.core.servable import SequenceKeeper, Servable

from . import reading
from .choice import Route
from .router import Routed, Router, RouteRollback

_log = logging.getLogger(__name__)

API, CONFIG, ENDED = "api", "config", ""


class Routings:
    """By the names of models. What a client has set takes the place of the configuration's until it is deleted, or
    no version of the model is READY any more.

    Copies of requests take from `memory`. `on_rollback` is called when a rule of a routing has rolled back a version.
    """

    def __init__(
        self,
        memory: MemoryBudget | None = None,
        on_rollback: Callable[[RouteRollback], None] = lambda rollback: None,
    ) -> None:
        self._routers: dict[str, Router] = {}
        self._memory = MemoryBudget() if memory is None else memory
        self._on_rollback = on_rollback

    def _router(self, name: str, routing: Routing, source: str) -> Router:
        return Router(name, routing, source, self._memory, on_rollback=self._on_rollback)

    def front(self, name: str, served: Mapping[int, Servable], latest: Servable | None) -> Servable | None:
        """What takes the requests that name no version, if these versions are READY: `latest` without a routing."""
        router = self._routers.get(name)
        if latest is None:
            self._routers.pop(name, None)
            return None
        if router is None or router.source != API:
            router = self._configured(name, latest.config.routing, router, served)
        return latest if router is None else Routed(router, served, latest)

    def _configured(
        self, name: str, routing: Routing | None, router: Router | None, served: Mapping[int, Servable]
    ) -> Router | None:
        """The router of a configuration's routing, which goes on as it is if that has not changed."""
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
        """Raises INVALID_ARG for a routing to other versions than `versions`, unless it allows missing ones."""
        reason = "" if document is None else reading.missing(reading.read(document), versions, unserved)
        if reason:
            raise invalid(f"model '{name}': {reason}")

    def set(self, name: str, latest: Servable, document: object) -> None:
        """Route as `document` says, which is JSON; None goes back to the configuration's routing, if it has one.

        `front` has to be called then. Raises INVALID_ARG, and changes nothing.
        """
        if document is None:
            former = self._routers.get(name)
            if former is not None and former.source == API:
                self._routers[name] = self._router(name, Routing(), ENDED)
                _log.info("model '%s': deleted the routing that a client had set", name)
            return
        routing = reading.read(document)
        reading.check(routing, latest.config)
        self._routers[name] = self._router(name, routing, API)
        _log.info("model '%s': a client has set the routing %s", name, json.dumps(routing.document))

    @property
    def rollbacks(self) -> list[RouteRollback]:
        """What has been rolled back, of all models."""
        return [rollback for router in self._routers.values() for rollback in router.rollbacks]

    def roll_back(self, rollback: RouteRollback) -> None:
        """Do what a rule has done in another worker, if the model still has the same routing."""
        router = self._routers.get(rollback.model)
        if router is not None and router.routing.document == rollback.document:
            router.roll_back(rollback.route, rollback.reason)

    def labelled(self, name: str, text: str, failure: ModserveError) -> int:
        """The version of a model with the label `text`, which is no number.

        Raises NOT_FOUND for an unknown label, and `failure` for a model without labels or a text that cannot be one.
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
        """As `Router.report`. Raises NOT_FOUND for a model without a routing."""
        router = self._routers.get(name)
        if router is None or router.source == ENDED:
            raise not_found(f"model '{name}' has no routing: requests that name no version go to the latest one")
        return router.report(trouble)

    def figures(self, ready: Callable[[str, int], bool]) -> Iterator[RouteFigures | ShadowFigures]:
        """Of all routings, for the metrics page. `ready`: whether a version of a model is READY."""
        for name, router in self._routers.items():

            def is_ready(route: Route, name: str = name) -> bool:
                return ready(name, route.version)

            yield from router.figures(is_ready)
