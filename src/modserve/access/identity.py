"""Identity and permissions of a caller: kinds of calls, by patterns of models' names."""

import fnmatch
import math
import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias, cast, get_args

from modserve.core.errors import invalid
from modserve.core.tenants import Tenant

CallKind: TypeAlias = Literal["infer", "read", "control", "admin"]
"""Action of a call: run a model, read about models, change what is served, or run the server itself."""
KINDS: Final = cast(tuple[CallKind, ...], get_args(CallKind))
Scopes: TypeAlias = Mapping[str, frozenset[CallKind]]
"""Kinds of calls by a pattern of models' names, in which ``*`` stands for any characters and ``?`` for one."""

_ALL: Final = "*"
_REMEMBERED: Final = 1024
"""Decisions that an identity remembers: clients choose the names."""


def kinds(words: Iterable[object], place: str) -> frozenset[CallKind]:
    """Return the kinds with these names. Raises INVALID_ARG, with `place`."""
    names = list(words)
    for name in names:
        if name not in KINDS:
            raise invalid(f"{place}: there is no kind of call '{name}', expected some of {', '.join(KINDS)}")
    return frozenset(cast(list[CallKind], names))


class Identity:
    """A caller by the name of its key. Immutable but for what it remembers.

    `expires` is in seconds since 1970, infinity for never. `origin` is what the caller has shown: a key, a token or a
    certificate.
    """

    __slots__ = ("_decisions", "_everywhere", "_patterns", "expires", "name", "origin", "scopes", "tenant")

    def __init__(
        self, name: str, tenant: Tenant, scopes: Scopes, expires: float = math.inf, origin: str = "key"
    ) -> None:
        self.name = name
        self.tenant = tenant
        self.scopes = scopes
        self.expires = expires
        self.origin = origin
        self._everywhere = scopes.get(_ALL, frozenset())
        self._patterns: dict[CallKind, re.Pattern[str]] = {}
        for kind in KINDS:
            patterns = [fnmatch.translate(_literal(each)) for each, allowed in scopes.items() if kind in allowed]
            if patterns:
                self._patterns[kind] = re.compile("|".join(patterns))
        self._decisions: dict[tuple[CallKind, str], bool] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.origin} {self.name!r}, tenant {self.tenant.name!r})"

    def allows(self, kind: CallKind, model: str) -> bool:
        """True if calls of the kind may concern the model."""
        decision = self._decisions.get((kind, model))
        return self._decide(kind, model) if decision is None else decision

    def _decide(self, kind: CallKind, model: str) -> bool:
        pattern = self._patterns.get(kind)
        decision = pattern is not None and pattern.match(model) is not None
        if len(self._decisions) >= _REMEMBERED:
            self._decisions.clear()
        self._decisions[kind, model] = decision
        return decision

    def sees(self, model: str) -> bool:
        """True if any call may concern the model. A model out of sight is like one that does not exist."""
        return any(self.allows(kind, model) for kind in self._patterns)

    def may(self, kind: CallKind) -> bool:
        """True if calls of the kind may concern some models."""
        return kind in self._patterns

    def may_everywhere(self, kind: CallKind) -> bool:
        """True if calls of the kind may concern all models: what the whole server is about."""
        return kind in self._everywhere


def _literal(pattern: str) -> str:
    """Return the pattern for `fnmatch`, in which a bracket stands for itself."""
    return pattern.replace("[", "[[]")
