"""Parses a routing from the JSON of clients and configurations. Each mistake is refused with its place."""

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.configuration.routing_config import Rollback, Routing, Shadow
from modserve.core.errors import ModserveError, invalid

LABEL: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
_STICKY = re.compile(r"sequence|(?:header|parameter):[\x21-\x7e]{1,128}")
_MOST = 100
"""Labels, and routes of a split."""
_MOST_LOOKED_AT = 1000
"""Requests of a route that the rule for a rollback looks at: their latencies are sorted now and then."""
_MOST_COPIES = 1000
_MAX_WEIGHT = 1e9
_MOST_REASON = 2000
"""Characters."""
_MAX_SECONDS = 86400.0

ROLLED_BACK: Final = "rolled_back"
_MEMBERS = ("labels", "split", "sticky", "shadow", "rollback", "allow_missing")


def read_text(text: str) -> Routing:
    """Raises INVALID_ARG, also for a text that is not JSON."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(f"routing is not JSON: {error}") from None
    return read(document)


def read(document: object) -> Routing:
    """Raises INVALID_ARG with the place of the first mistake."""
    top = _object(document, "routing", _MEMBERS)
    labels = _labels(top.get("labels", {}))
    split = _split(top.get("split", {}), labels)
    shadow = _shadow(top["shadow"], labels, split) if "shadow" in top else None
    rollback = _rollback(top["rollback"], split) if "rollback" in top else None
    allow_missing = top.get("allow_missing", False)
    if not isinstance(allow_missing, bool):
        raise _wrong("routing.allow_missing", allow_missing, "true or false")
    return Routing(labels, split, _sticky(top.get("sticky", "")), shadow, rollback, allow_missing, top)


def rollbacks(document: object) -> dict[int, str]:
    """The versions that a document rolls back instead of being a routing, with the reasons: `{"rolled_back": {…}}`.

    None of them for a routing. An empty reason stands for a version that is no longer rolled back. Raises INVALID_ARG.
    """
    if not isinstance(document, Mapping) or ROLLED_BACK not in document:
        return {}
    if others := sorted(str(name) for name in document if name != ROLLED_BACK):
        raise invalid(f"routing.{ROLLED_BACK} stands alone, and keeps the routing as it is; beside it is: {others[0]}")
    versions: dict[int, str] = {}
    for name, reason in _object(document[ROLLED_BACK], f"routing.{ROLLED_BACK}").items():
        if _VERSION.fullmatch(name) is None:
            raise invalid(f"routing.{ROLLED_BACK} has '{name[:100]}', expected a version such as 2")
        if reason is not None and not (isinstance(reason, str) and 0 < len(reason) <= _MOST_REASON):
            raise _wrong(f"routing.{ROLLED_BACK}.{name}", reason, f"the reason, a text of 1 to {_MOST_REASON}, or null")
        versions[int(name)] = reason or ""
    if not versions:
        raise invalid(f"routing.{ROLLED_BACK} is empty, expected a version with the reason, or with null")
    return versions


def missing(routing: Routing, versions: Collection[int], unserved: str = "") -> str:
    """Message about a version in the routing that is not one of `versions`; empty if there is none.

    `unserved` is added to it: the message about versions that the policy leaves out.
    """
    if routing.allow_missing:
        return ""
    named = {f"routing.labels.{label}": version for label, version in routing.labels.items()}
    named |= {f"routing.split.{route}": routing.version(route) for route in routing.split}
    if routing.shadow is not None:
        named["routing.shadow.version"] = routing.version(routing.shadow.route)
    for place, version in named.items():
        if version not in versions:
            listed = ", ".join(map(str, sorted(versions))) or "none"
            return (
                f"{place} is version {version}, which is not there; the versions are: {listed}. "
                '"allow_missing": true accepts versions that are to come' + (f"; {unserved}" if unserved else "")
            )
    return ""


def check(routing: Routing, config: ModelConfig) -> None:
    """Raises INVALID_ARG for what the model cannot have."""
    if reason := unfit(routing, decoupled=config.decoupled, sequences=config.sequence_batching is not None):
        raise invalid(reason)


def unfit(routing: Routing, *, decoupled: bool, sequences: bool) -> str:
    """Return the part of a routing that a model cannot have if it is decoupled or has sequences; empty if none."""
    if routing.shadow is not None and decoupled:
        return "routing.shadow is not possible for a decoupled model: it may send any number of responses to a request"
    if routing.shadow is not None and sequences:
        return "routing.shadow is not possible for a model with sequences: a sequence cannot be copied in part"
    return ""


def _labels(value: object) -> dict[str, int]:
    labels: dict[str, int] = {}
    for name, version in _object(value, "routing.labels").items():
        if LABEL.fullmatch(name) is None:
            raise invalid(
                f"routing.labels has the label '{name[:100]}', expected a lower-case letter and then at most 63 "
                "lower-case letters, digits, '_' and '-'"
            )
        if type(version) is not int or not 1 <= version < 10**18:
            raise _wrong(f"routing.labels.{name}", version, "a version, such as 2")
        labels[name] = version
    return labels


def _split(value: object, labels: Mapping[str, int]) -> dict[str, float]:
    split: dict[str, float] = {}
    routes: dict[int, str] = {}
    for name, weight in _object(value, "routing.split").items():
        version = _version(name, labels, "routing.split")
        if version in routes:
            raise invalid(f"routing.split has '{routes[version]}' and '{name}', which are both version {version}")
        routes[version] = name
        split[name] = _number(weight, f"routing.split.{name}", 0, _MAX_WEIGHT)
    if split and not any(split.values()):
        raise invalid("routing.split has no weight above 0, so that no version would take a request")
    return split


def _version(route: object, labels: Mapping[str, int], place: str) -> int:
    """Return the version of a label, or in digits."""
    text = str(route) if type(route) is int else route
    if isinstance(text, str) and text in labels:
        return labels[text]
    if isinstance(text, str) and _VERSION.fullmatch(text) is not None:
        return int(text)
    known = f"a label ({', '.join(labels)})" if labels else "a label of routing.labels, which has none,"
    raise _wrong(place, route, f"{known} or a version such as 2")


def _sticky(value: object) -> str:
    """Return the name of the parameter. Headers are parameters where the server forwards them."""
    if value == "":
        return ""
    if not isinstance(value, str) or _STICKY.fullmatch(value) is None:
        raise _wrong("routing.sticky", value, "'sequence', 'header:<name>' or 'parameter:<name>'")
    kind, _, name = value.partition(":")
    return {"sequence": "sequence_id", "header": f"header:{name.lower()}", "parameter": name}[kind]


def _shadow(value: object, labels: Mapping[str, int], split: Mapping[str, float]) -> Shadow:
    here = "routing.shadow"
    members = _object(value, here, ("version", "share", "tolerance", "max_in_flight"), needed=("version", "share"))
    version = _version(members["version"], labels, f"{here}.version")
    if not split:
        raise invalid(f"{here} needs a routing.split, which selects the version that responds to clients")
    for route, weight in split.items():
        if weight and _version(route, labels, here) == version:
            raise invalid(
                f"{here}.version is {version}, to which routing.split gives a weight: copies would delay "
                "the requests of clients. Leave it out of the split, or give it a weight of 0"
            )
    share = _number(members["share"], f"{here}.share", 0, 1)
    if not share:
        raise _wrong(f"{here}.share", members["share"], "a number above 0 and at most 1")
    return Shadow(
        str(members["version"]),
        share,
        _number(members.get("tolerance", 0), f"{here}.tolerance", 0, _MAX_WEIGHT),
        _whole(members.get("max_in_flight", 8), f"{here}.max_in_flight", 1, _MOST_COPIES),
    )


def _rollback(value: object, split: Mapping[str, float]) -> Rollback:
    here = "routing.rollback"
    limits = ("error_share", "p95_ms", "p95_ratio")
    known = ("version", "baseline", *limits, "last_requests", "last_seconds", "least_requests")
    members = _object(value, here, known, needed=("version",))
    route = _route(members["version"], f"{here}.version", split)
    others = {name: weight for name, weight in split.items() if name != route and weight}
    if not others:
        raise invalid(f"{here} needs another version with a weight in routing.split to take over the requests")
    baseline = _route(members.get("baseline", max(others, key=others.__getitem__)), f"{here}.baseline", split)
    if baseline == route:
        raise invalid(f"{here}.baseline is '{baseline}' itself, expected another route of routing.split")
    if not any(name in members for name in limits):
        raise invalid(f"{here} has no limit, expected one at least of: {', '.join(limits)}")
    error_share = _positive(members, here, "error_share", 1)
    last = _whole(members.get("last_requests", 200), f"{here}.last_requests", 1, _MOST_LOOKED_AT)
    least = _whole(members.get("least_requests", min(20, last)), f"{here}.least_requests", 1, _MOST_LOOKED_AT)
    if least > last:
        raise invalid(f"{here}.least_requests is {least}, which is more than last_requests, {last}")
    return Rollback(
        route,
        baseline,
        error_share,
        round(_positive(members, here, "p95_ms", _MAX_SECONDS * 1e3) * 1e6),
        _positive(members, here, "p95_ratio", 1e6),
        last,
        round(_positive(members, here, "last_seconds", _MAX_SECONDS) * 1e9),
        least,
    )


def _route(value: object, place: str, split: Mapping[str, float]) -> str:
    """Return a name in the split."""
    name = str(value) if type(value) is int else value
    if not isinstance(name, str) or name not in split:
        routes = ", ".join(split) or "none, since there is no split"
        raise _wrong(place, value, f"a route of routing.split: {routes}")
    return name


def _positive(members: Mapping[str, Any], path: str, name: str, most: float) -> float:
    """Return a number above 0; 0 where there is none."""
    if name not in members:
        return 0.0
    number = _number(members[name], f"{path}.{name}", 0, most)
    if not number:
        raise _wrong(f"{path}.{name}", members[name], f"a number above 0 and at most {most:g}")
    return number


def _object(
    value: object, place: str, known: tuple[str, ...] | None = None, needed: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    """Return a JSON object; with `known`, of these members, and otherwise of any at most `_MOST`."""
    if not isinstance(value, dict):
        raise _wrong(place, value, "a JSON object")
    if known is None:
        if len(value) > _MOST:
            raise invalid(f"{place} has {len(value)} members, at most {_MOST} are possible")
        return value
    for name in value:
        if name not in known:
            raise invalid(f"{place} has the unknown member '{str(name)[:100]}', known are: {', '.join(known)}")
    for name in needed:
        if name not in value:
            raise invalid(f"{place} lacks '{name}'")
    return value


def _number(value: object, place: str, least: float, most: float) -> float:
    if type(value) not in (int, float) or not math.isfinite(float(_clamp(value))) or not least <= value <= most:  # type: ignore[operator]
        raise _wrong(place, value, f"a number from {least:g} to {most:g}")
    return float(value)  # type: ignore[arg-type]


def _clamp(value: Any) -> Any:
    """Return an integer that a float can hold: JSON may have any number of digits."""
    return max(-(10**300), min(10**300, value)) if type(value) is int else value


def _whole(value: object, place: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _wrong(place, value, f"a whole number from {least} to {most}")
    return value


def _wrong(place: str, value: object, expected: str) -> ModserveError:
    try:
        shown = json.dumps(value)
    except (TypeError, ValueError):
        shown = str(value)
    return invalid(f"{place} is {shown if len(shown) <= 100 else shown[:100] + '…'}, expected {expected}")
