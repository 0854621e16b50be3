"""Permissions required by all HTTP paths and RPCs: the kind and the subject of each call.

`protocol.restricted` lists the paths by category. `docs/access.md` shows the table, and a test fails for a served route
or RPC without an entry.
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
    """Public information. No key is needed."""
    HEALTH = "health"
    """Liveness and readiness of the server itself. Open unless an option requires a key."""
    ANY = "any key"
    """Information for every authenticated caller."""
    MODEL = "one model"
    """The model named in the path or the message."""
    LIST = "visible models"
    """The models that the caller may see. The response lists no others."""
    SERVER = "all models"
    """The server as a whole."""


class CallNeed(NamedTuple):
    """Required permission: the kind of call, and its subject."""

    kind: CallKind
    reach: CallScope


class PathNeed(NamedTuple):
    """Permissions of a path: `usual`, and `others` for the methods that differ."""

    usual: CallNeed
    others: Mapping[str, CallNeed]

    def of(self, method: str) -> CallNeed:
        return self.others.get(method, self.usual)


OPEN: Final = CallNeed("read", CallScope.OPEN)
ANY: Final = CallNeed("read", CallScope.ANY)
"""Also the need of unknown paths and methods, which run nothing."""
METRICS: Final = CallNeed("read", CallScope.SERVER)
"""Metrics page, on every port."""
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
"""Default permission of a category."""

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
"""Paths with another permission than their category."""
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
"""Permissions by RPC name. Without a key, `Check` and `Watch` know no models. ``ModelStatistics`` and ``TraceSetting``
may omit the model."""

PATH_NEEDS: Final[Mapping[str, PathNeed]] = {
    **{
        template: PathNeed(_PATHS.get(template, _BY_CATEGORY[category]), _METHODS.get(template, {}))
        for template, category in PATH_CATEGORY.items()
    },
    **{template: PathNeed(OPEN, {}) for template in sorted(OPEN_PATHS)},
}
"""Permissions by path template. A name in braces stands for one path segment."""


SLASH: Final = "\udc2f"
"""Stand-in for ``%2F`` in a decoded path: a slash inside a name, not a separator.

A lone surrogate, which client texts cannot contain.
"""
OWNED: Final = f"(?:[^/]+/)?(?:[^/]*{SLASH})?"
"""Optional owner before a model's name in `OWNED_PATHS`, as in ``org/model``. Names here have no slashes."""
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
"""Patterns of templates with parameters, most specific first."""


def template_of(method: str, path: str) -> tuple[str, str]:
    """Return the template of a decoded path, and the model that the path names; both empty if unknown.

    Permissions, restrictions and the audit log depend on the template, and a route with another template does not run.
    For GET and HEAD, ``/v1/models/m:predict`` names a model ``m:predict``.
    """
    reads = method in ("GET", "HEAD")
    if path in PATH_NEEDS and "{" not in path:
        return path, ""
    for pattern, template in _PATTERNS:
        if not (reads and ":" in template) and (match := pattern.fullmatch(path)) is not None:
            return template, match.groupdict().get("model", "")
    return "", ""


def need_of(method: str, path: str, hidden: Collection[str] = ()) -> tuple[CallNeed, str]:
    """Return the need of a call to a decoded path, and the model that the path names (empty for none).

    The `hidden` templates are served by another port: their paths are treated as unknown.
    """
    template, model = template_of(method, path)
    if not template or template in hidden:
        return ANY, ""
    return PATH_NEEDS[template].of(method), model
