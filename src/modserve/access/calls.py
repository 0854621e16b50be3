"""Permissions that calls need: the kind of each call and its subject. All paths and RPCs, in one place.

The paths are those of `protocol.restricted`, by category. `docs/access.md` shows the table, and a test compares it with
the routes and RPCs that are served: one that is missing here fails it.
"""

import enum
import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from modserve.protocol.restricted import DRAIN, METHOD_CATEGORY, METRICS_PAGE, OPEN_PATHS, PATH_CATEGORY, RPC_CATEGORY

from .identity import CallKind


class CallScope(enum.Enum):
    """Subject of a call."""

    OPEN = "open"
    """Public information: no key is needed."""
    HEALTH = "health"
    """Liveness and readiness of the server itself: open, unless an option closes it."""
    ANY = "any key"
    """Information for every caller."""
    MODEL = "one model"
    """The model that it names in its path or its message."""
    LIST = "models seen"
    """The models that the caller may see: the response has no others."""
    SERVER = "all models"
    """The server as a whole."""


class CallNeed(NamedTuple):
    """A call needs `kind` for what it is about."""

    kind: CallKind
    reach: CallScope


class PathNeed(NamedTuple):
    """Permissions that a path needs. `others`: of methods that differ from most of its methods."""

    usual: CallNeed
    others: Mapping[str, CallNeed]

    def of(self, method: str) -> CallNeed:
        return self.others.get(method, self.usual)


OPEN: Final = CallNeed("read", CallScope.OPEN)
ANY: Final = CallNeed("read", CallScope.ANY)
"""Also what paths need that no route has, and methods that a path has not: nothing runs for them."""
METRICS: Final = CallNeed("read", CallScope.SERVER)
"""Figures of the server as a whole: the page of metrics, at whichever port."""
_LIST: Final = CallNeed("read", CallScope.LIST)

_BY_CATEGORY: Final[Mapping[str, CallNeed]] = {
    "health": CallNeed("read", CallScope.MODEL),
    "metadata": CallNeed("read", CallScope.MODEL),
    "inference": CallNeed("infer", CallScope.MODEL),
    "shared-memory": CallNeed("control", CallScope.SERVER),
    "model-config": CallNeed("read", CallScope.MODEL),
    "model-repository": CallNeed("control", CallScope.MODEL),
    "statistics": CallNeed("read", CallScope.MODEL),
    "trace": CallNeed("admin", CallScope.MODEL),
    "logging": CallNeed("admin", CallScope.SERVER),
}
"""Permission that most calls of a category need."""

HEALTH: Final = CallNeed("read", CallScope.HEALTH)
_SERVER_HEALTH: Final = ("/", "/health", "/v2/health/live", "/v2/health/ready")
_PATHS: Final[Mapping[str, CallNeed]] = {
    **dict.fromkeys(OPEN_PATHS, OPEN),
    **dict.fromkeys(_SERVER_HEALTH, HEALTH),
    **dict.fromkeys(("/v2", "/info", "/version"), ANY),
    **dict.fromkeys(("/v2/models", "/v1/models", "/openai/v1/models", "/v2/models/stats"), _LIST),
    **dict.fromkeys(("/v2/repository/index", "/v2/repository/{repository}/index"), _LIST),
    **dict.fromkeys(("/v2/trace/setting", DRAIN), CallNeed("admin", CallScope.SERVER)),
    "/models": CallNeed("control", CallScope.SERVER),
    **dict.fromkeys(("/v2/memory", "/console/events", "/console/peers", METRICS_PAGE), METRICS),
}
"""Paths that need something else."""
_METHODS: Final[Mapping[str, Mapping[str, CallNeed]]] = {
    "/v2/models/{model}/routing": {"GET": CallNeed("read", CallScope.MODEL)},
    **{path: {method: _BY_CATEGORY[category]} for (method, path), category in METHOD_CATEGORY.items()},
}

RPC_NEEDS: Final[Mapping[str, CallNeed]] = {
    **{rpc: _BY_CATEGORY[category] for rpc, category in RPC_CATEGORY.items()},
    **dict.fromkeys(("ServerLive", "ServerReady", "Check", "Watch"), HEALTH),
    "ServerReflectionInfo": OPEN,
    "StreamCoreMetrics": METRICS,
    "ServerMetadata": ANY,
    "List": _LIST,
    "ModelStatistics": _LIST,
    "RepositoryIndex": _LIST,
}
"""Permissions by RPC name. `Check` and `Watch` know no model where there is no key; ``ModelStatistics`` and
``TraceSetting`` may name a model or none."""

PATH_NEEDS: Final[Mapping[str, PathNeed]] = {
    **{
        template: PathNeed(_PATHS.get(template, _BY_CATEGORY[category]), _METHODS.get(template, {}))
        for template, category in PATH_CATEGORY.items()
    },
    **{template: PathNeed(OPEN, {}) for template in sorted(OPEN_PATHS)},
}
"""Permissions by path template, in which a name in braces stands for any one part of a path."""


SLASH: Final = "\udc2f"
"""Stands in a decoded path for a slash that was sent as ``%2F``: part of a name, which separates nothing.

No text of a client holds it, since it is no character.
"""
OWNED: Final = f"(?:[^/]+/)?(?:[^/]*{SLASH})?"
"""Owner that may stand before a model's name in `OWNED_PATHS`, as in ``org/model``. Names here have no slashes."""
OWNED_PATHS: Final = frozenset({"/v1/models/{model}", "/openai/v1/models/{model}"})


def _pattern(template: str) -> re.Pattern[str]:
    pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(template))
    if template in OWNED_PATHS:
        pattern = pattern.replace("(?P<model>[^/]+)", f"{OWNED}(?P<model>[^/{SLASH}]+)")
    return re.compile(pattern)


_PATTERNS: Final = [
    (_pattern(template), template)
    for template in sorted(PATH_NEEDS, key=lambda template: (template.count("{"), -len(template)))
    if "{" in template
]
"""The special before the general."""


def template_of(method: str, path: str) -> tuple[str, str]:
    """Return the template of a decoded path, and the model that the path names; both empty where there is none.

    Permissions, restrictions and the audit log go by it, and a route with another template does not run. What reads
    ``/v1/models/m:predict`` is about a model of that whole name.
    """
    reads = method in ("GET", "HEAD")
    if path in PATH_NEEDS and "{" not in path:
        return path, ""
    for pattern, template in _PATTERNS:
        if not (reads and ":" in template) and (match := pattern.fullmatch(path)) is not None:
            return template, match.groupdict().get("model", "")
    return "", ""


def need_of(method: str, path: str, hidden: Collection[str] = ()) -> tuple[CallNeed, str]:
    """Return what a call to a decoded path needs, and the model that it names; empty for none.

    The `hidden` templates are served by another port: their paths are treated as unknown.
    """
    template, model = template_of(method, path)
    if not template or template in hidden:
        return ANY, ""
    return PATH_NEEDS[template].of(method), model
