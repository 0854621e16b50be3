"""Which models need which: pure rules over a graph from each model to those that it is made of."""

from collections.abc import Container, Iterable, Mapping
from typing import TypeAlias

Graph: TypeAlias = Mapping[str, Iterable[str]]


def needed(names: Iterable[str], graph: Graph) -> set[str]:
    """All that `names` need, directly or not."""
    needs: set[str] = set()
    pending = list(names)
    while pending:
        for need in graph.get(pending.pop(), ()):
            if need not in needs:
                needs.add(need)
                pending.append(need)
    return needs


def dependents(names: Iterable[str], graph: Graph) -> set[str]:
    """All that need one of `names`, directly or not."""
    reverse: dict[str, list[str]] = {}
    for name, needs in graph.items():
        for need in needs:
            reverse.setdefault(need, []).append(name)
    return needed(names, reverse)


def circle(name: str, graph: Graph) -> str:
    """A model through which `name` needs itself; empty if there is none."""
    return next((other for other in sorted({name} | needed([name], graph)) if name in graph.get(other, ())), "")


def turns(targets: Graph, served: Graph) -> dict[str, set[str]]:
    """The models that each one waits for when many change in one go; none of them waits in a circle.

    A model waits for what it is to be made of (`targets`), unless that leads back to it, and for what it is made of now
    (`served`), unless that waits for it.
    """
    first = {name: set() if circle(name, targets) else set(needs) for name, needs in targets.items()}
    both = {name: first.get(name, set()) | set(served.get(name, ())) for name in {**targets, **served}}
    return {
        name: {need for need in needs if need in first.get(name, ()) or name not in needed([need], both)}
        for name, needs in both.items()
    }


def orphans(name: str, graph: Graph, keep: Container[str]) -> list[str]:
    """The models that no other needs when `name` is gone, but `keep`: Triton's ``DependencyGraph::RemoveNodes``."""
    gone = [name]
    for model in gone:  # which grows
        for need in sorted(graph.get(model, ())):
            others = {other for other, needs in graph.items() if need in needs}
            if need not in keep and need not in gone and others <= set(gone):
                gone.append(need)
    return gone[1:]
