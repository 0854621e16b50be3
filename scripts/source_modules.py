"""The modules of modserve as text: their names, what each imports, circles of imports, and chains of inheritance.

Read by tests/unit/test_architecture.py, by `scripts/module_graph.py` and by `scripts/figures.py`.
"""

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "modserve"


def modules(source: Path = SOURCE) -> Iterator[tuple[str, Path]]:
    """Every module with its dotted name below modserve; a package's `__init__` has the package's name."""
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts), path


def texts(source: Path = SOURCE) -> dict[str, tuple[str, bool]]:
    """Module → its text, and whether it is a package."""
    return {
        module: (path.read_text(encoding="utf-8"), path.name == "__init__.py" and path.parent != source)
        for module, path in modules(source)
    }


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node. Skipping the expressions saves most of the time."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(node, name, ()):
            yield statement
            yield from _statements(statement)


@functools.cache
def imports(text: str, package: str) -> tuple[str, ...]:
    """The absolute names of all that a module imports, inside functions and for type checkers as well.

    `package` is the dotted name of the package that the module is in, against which relative imports count. Names that
    are imported from a module stand behind a dot, whatever they are.
    """
    names: list[str] = []
    for node in _statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - (node.level - 1)] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names += (f"{base}.{alias.name}" for alias in node.names)
    return tuple(names)


def imports_of(module: str, text: str, is_package: bool = False) -> tuple[str, ...]:
    """`imports` of a module by its name below modserve."""
    name = f"modserve.{module}"
    return imports(text, name if is_package else name.rpartition(".")[0])


def import_graph(sources: Mapping[str, tuple[str, bool]]) -> dict[str, set[str]]:
    """Module → modules of its top-level package that it imports. `sources`: as `texts` returns them."""
    graph: dict[str, set[str]] = {}
    for module, (text, is_package) in sources.items():
        graph[module] = set()
        for name in imports_of(module, text, is_package):
            own, _, imported = name.partition(".")
            if own != "modserve":  # some distributions are called like a package of ours
                continue
            while imported and imported not in sources:  # a name inside a module
                imported = imported.rpartition(".")[0]
            if imported != module and imported.split(".")[0] == module.split(".")[0]:
                graph[module].add(imported)
    return graph


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The largest sets of modules each of which leads to all others."""

    def reachable(module: str) -> set[str]:
        seen: set[str] = set()
        pending = [module]
        while pending:
            new = graph[pending.pop()] - seen
            seen |= new
            pending += new
        return seen

    reach = {module: reachable(module) for module in graph}
    return {
        frozenset(other for other in others if module in reach[other])
        for module, others in reach.items()
        if module in others
    }


def chains(sources: Mapping[str, tuple[str, bool]]) -> dict[str, tuple[str, ...]]:
    """``module.Class`` → its longest chain of classes of modserve: itself first, then what it inherits from."""
    bases: dict[str, tuple[str, list[str]]] = {}
    for module, (text, _) in sources.items():
        for node in _statements(ast.parse(text)) if "class " in text else ():
            if isinstance(node, ast.ClassDef):
                bases[f"{module}.{node.name}"] = module, [_dotted(base) for base in node.bases]

    def defined(module: str, name: str) -> str:
        """The class that a module calls `name`; empty if it is none of modserve."""
        if f"{module}.{name}" in bases:
            return f"{module}.{name}"
        first, _, rest = name.partition(".")
        for imported in imports_of(module, *sources[module]):
            if imported.startswith("modserve.") and imported.endswith(f".{first}"):
                full = f"{imported}.{rest}".strip(".").removeprefix("modserve.")
                origin, _, last = full.rpartition(".")
                if full in bases:
                    return full
                if origin in sources:  # which imports it itself
                    return defined(origin, last)
        return ""

    def longest(name: str) -> tuple[str, ...]:
        module, names = bases[name]
        upwards = (longest(base) for each in names if (base := defined(module, each)) and base != name)
        return (name, *max(upwards, key=len, default=()))

    return {name: longest(name) for name in bases}


def _dotted(base: ast.expr) -> str:
    """A base as it is written, without type parameters."""
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
