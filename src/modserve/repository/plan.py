"""Planning of model changes: pure rules from the current and the requested state of models to actions with reasons.

An `Update` brings some models to their requested state: a blueprint, or None for out of service. `begin` determines the
affected models: the requested ones, and their *dependents*, models made of these, directly or indirectly. Each gets
one turn, after the models that it needs; `decide` then chooses its action by their results. Like the version policies
of TF Serving, the rules are stateless and never wait: the same tables give the same actions.

Rules for a model in its turn:

- Not wanted: all of its versions are retired. Its dependents were retired first (`retirements`).
- *Renewed*: something that the model needs has changed in this update, or may yet change. A dependent that is not
  renewed is left alone.
- An unusable configuration and unmet needs change nothing in service, except for stale models.
- *Stale*: the model is in service, and something that it was made of has changed. It is loaded again, and if that fails
  it stops serving, because it no longer fits its parts.
- Otherwise all selected versions are loaded that are not in service as the repository has them, and all of them if the
  model is renewed. If it is not, a version of which only the configuration differs may be changed in place. When all
  have succeeded, the other versions are retired.
- *Together*: all loaded versions are taken or none. This always holds where other versions serve.

Dependencies between models: pure rules over a graph from each model to its parts.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from modserve.core.errors import ModserveError, internal, invalid
from modserve.core.lifecycle import UNLOADED
from modserve.core.loading import Blueprint, Needs, UnreadableModelError
from modserve.core.servable import Servable

from .table import ModelRow

Graph: TypeAlias = Mapping[str, Iterable[str]]


def find_needed(names: Iterable[str], graph: Graph) -> set[str]:
    """Return all models that `names` need, directly or indirectly."""
    needs: set[str] = set()
    pending = list(names)
    while pending:
        for need in graph.get(pending.pop(), ()):
            if need not in needs:
                needs.add(need)
                pending.append(need)
    return needs


def dependents(names: Iterable[str], graph: Graph) -> set[str]:
    """Return all models that need one of `names`, directly or indirectly."""
    reverse: dict[str, list[str]] = {}
    for name, needs in graph.items():
        for need in needs:
            reverse.setdefault(need, []).append(name)
    return find_needed(names, reverse)


def find_circle(name: str, graph: Graph) -> str:
    """Return a model through which `name` needs itself; empty if there is none."""
    return next((other for other in sorted({name} | find_needed([name], graph)) if name in graph.get(other, ())), "")


def load_turns(targets: Graph, served: Graph) -> dict[str, set[str]]:
    """Return the models that each one waits for when many change together; the waits form no cycle.

    A model waits for its future parts (`targets`), unless that leads back to it, and for its current parts (`served`),
    unless these wait for it.
    """
    first = {name: set() if find_circle(name, targets) else set(needs) for name, needs in targets.items()}
    both = {name: first.get(name, set()) | set(served.get(name, ())) for name in {**targets, **served}}
    return {
        name: {need for need in needs if need in first.get(name, ()) or name not in find_needed([need], both)}
        for name, needs in both.items()
    }


def orphans(name: str, graph: Graph, keep: Container[str]) -> list[str]:
    """Return the models not needed without `name`, except `keep`: Triton's ``DependencyGraph::RemoveNodes``."""
    gone = [name]
    for model in gone:  # grows in the loop
        for need in sorted(graph.get(model, ())):
            others = {other for other, needs in graph.items() if need in needs}
            if need not in keep and need not in gone and others <= set(gone):
                gone.append(need)
    return gone[1:]


class Before(NamedTuple):
    """A model before the update."""

    blueprint: Blueprint | None
    served: Mapping[int, Servable]
    made_of: Needs


@dataclass(frozen=True, slots=True)
class Update:
    """Changes of some models, made together."""

    requested: Mapping[str, Blueprint | None]
    together: bool
    """True if a client waits for the one model that it requested, and gets the reason for its failure."""
    names: set[str]
    """Models that the update may change or read: requested models, their dependents, and all that these need."""
    before: Mapping[str, Before]
    needs: Graph
    """Future parts of each of these models."""
    turns: Mapping[str, set[str]]
    """Affected models, each with the ones among them that have their turn before it."""

    def blueprint(self, name: str) -> Blueprint | None:
        return self.requested[name] if name in self.requested else self.former(name).blueprint

    def former(self, name: str) -> Before:
        return self.before.get(name) or Before(None, {}, {})


@dataclass(frozen=True, slots=True)
class Action:
    """Actions on one model, executed in the order of the fields."""

    model: str
    reason: str = ""
    """Reason for the log."""
    problem: str | None = None
    """New problem of the model in the index; None to keep the current one."""
    failure: ModserveError | None = None
    """Failure for the client that requested the change."""
    blueprint: Blueprint | None = None
    """Blueprint for loading `load`; None for an action that loads nothing."""
    load: tuple[int, ...] = ()
    together: bool = False
    """True if all versions of `load` are taken or none; otherwise each is taken once it is loaded."""
    anew: bool = False
    """True if nothing may be changed in place, since a part of the model has changed."""
    stale: bool = False
    """True if all versions are retired when a load fails."""
    retire: tuple[int, ...] = ()
    """Versions to take out of service after all loads have succeeded."""
    state_reason: str = UNLOADED
    """State reason of retired versions."""


def graph(models: Mapping[str, ModelRow], requested: Mapping[str, Blueprint | None]) -> Graph:
    """Return each model's needs once the request is fulfilled, and the parts of the versions in service."""
    links = {name: set(needs) for name, needs in _needs(models, requested).items()}
    for name, model in models.items():
        if model.made_of:
            links.setdefault(name, set()).update(model.made_of)
    return links


def _needs(models: Mapping[str, ModelRow], requested: Mapping[str, Blueprint | None]) -> dict[str, Needs]:
    blueprints = {name: model.blueprint for name, model in models.items()} | dict(requested)
    return {name: blueprint.needs for name, blueprint in blueprints.items() if blueprint is not None}


def begin(models: Mapping[str, ModelRow], requested: Mapping[str, Blueprint | None], together: bool) -> Update:
    links = graph(models, requested)
    concerned = requested.keys() | dependents(requested, links)
    names = concerned | find_needed(concerned, links)
    near = {name: models[name] for name in names if name in models}
    before = {name: Before(model.blueprint, model.served, model.made_of) for name, model in near.items()}
    needs = _needs(near, requested)
    turns = load_turns(needs, {name: former.made_of for name, former in before.items()})
    own = {name: turns.get(name, set()) & concerned for name in sorted(concerned)}
    return Update(requested, together, names, before, needs, own)


def retirements(update: Update, models: Mapping[str, ModelRow]) -> list[Action]:
    """Return the actions that retire dependents before the models that they need."""
    gone = {name for name in update.turns if update.blueprint(name) is None}
    links = graph(models, update.requested)
    actions = []
    for name in sorted(dependents(gone, links) - gone):
        lost = ", ".join(f"'{need}'" for need in sorted(find_needed([name], links) & gone))
        why = f"for ensemble '{name}' depends on {lost}"
        if served := tuple(models[name].served) if name in models else ():
            actions.append(Action(name, f"goes, {why}", retire=served, state_reason=f"{UNLOADED}, {why}"))
    return actions


def decide(
    name: str,
    update: Update,
    models: Mapping[str, ModelRow],
    waiting: Container[str],
    failures: Mapping[str, ModserveError],
) -> Action:
    """Return the action on a model. `waiting`: models without a turn so far. `failures`: other models' errors."""

    def is_renewed(needs: Iterable[str]) -> bool:
        return any(
            need in waiting or (need in models and models[need].served != update.former(need).served) for need in needs
        )

    model, blueprint, is_requested = models[name], update.blueprint(name), name in update.requested
    served = tuple(model.served)
    circle = find_circle(name, update.needs) if blueprint is not None and blueprint.needs else ""
    stale = is_renewed(update.former(name).made_of)
    renewed = stale or (blueprint is not None and not circle and is_renewed(blueprint.needs))
    if not is_requested and not renewed:
        return Action(name)
    if blueprint is None:  # clears the problem of a failed replacement, which is no longer wanted
        return Action(name, "is no longer wanted", problem="" if served else None, retire=served)
    # A model that did not exist before a client's failed load does not exist after it: the client gets the reason.
    unlisted = update.together and is_requested and not served
    if blueprint.failure is not None:
        failure, state_reason = _unusable(blueprint, blueprint.failure), blueprint.failure.reason
        if stale:
            return Action(name, problem="", failure=failure, retire=served, state_reason=state_reason)
        return Action(name, problem="" if unlisted else state_reason, failure=failure)
    missing = tuple(each for each in blueprint.versions if renewed or not model.is_current(blueprint.listing, each))
    unmet = _unmet(name, blueprint.needs, models, failures)
    if circle:
        unmet = invalid(f"circular dependency between ensembles: {name} -> ... -> {circle} -> {name}")
    if unmet is not None and (renewed or missing):
        failure = invalid(f"load failed for model '{name}': {unmet.message}\n")
        reason = f"cannot be loaded: {unmet.message}"
        if served and not stale:
            return Action(name, reason, f"served as before, because it failed to load: {unmet.reason}", failure)
        problem = "" if unlisted or model.versions else unmet.reason
        return Action(name, reason, problem, failure, retire=served, state_reason=unmet.reason)
    return Action(
        name,
        f"loads versions {list(missing)} of {list(blueprint.versions)}"
        f"{', because a model that it needs has changed' * renewed}",
        problem="",
        blueprint=blueprint,
        load=missing,
        together=update.together or bool(served),
        anew=renewed,
        stale=stale,
        retire=tuple(version for version in served if version not in blueprint.versions),
    )


def _unmet(
    name: str, needs: Needs, models: Mapping[str, ModelRow], failures: Mapping[str, ModserveError]
) -> ModserveError | None:
    """Return the reason, in Triton's words, that needed models prevent a model's load."""
    rows = {need: models.get(need, ModelRow()) for need in needs}
    reasons = {
        need: row.failure or (failures[need].message.strip() if need in failures else "")
        for need, row in rows.items()
        if row.latest is None
    }
    absent = sorted(need for need, reason in reasons.items() if not reason)
    if absent:
        return invalid(f"ensemble {name} contains models that are not available or ambiguous: {', '.join(absent)}")
    for need, versions in needs.items():
        label = f"ensemble '{name}' depends on '{need}'"
        if need in reasons:
            failure = f"Model '{need}' loading failed with error: {reasons[need]}"
            return invalid(f"{label} which has no loaded version. {failure}")
        for version in versions - {None} - rows[need].served.keys():
            return invalid(f"{label} whose required version {version} is not loaded.")
    return None


def _unusable(blueprint: Blueprint, error: ModserveError) -> ModserveError:
    name = blueprint.listing.name
    if isinstance(error, UnreadableModelError):
        failure = internal if blueprint.listing.config is None else invalid  # the call had a configuration
        return failure(f"failed to load '{name}', failed to poll from model repository: {error.message}")
    return invalid(f"load failed for model '{name}': {error.message}\n")


def load_failed(name: str, failures: Mapping[int, ModserveError]) -> ModserveError:
    """Return the error of failed versions for the client that requested the load."""
    lines = [f"version {version} is at UNAVAILABLE state: {error.reason};\n" for version, error in failures.items()]
    return invalid(f"load failed for model '{name}': {''.join(lines)}")
