"""The packages of modserve and their imports: as numbers for tests, and as a picture for docs/design.md.

    python scripts/module_graph.py docs/design/packages.svg

A package stands on the floor above the highest of those that it imports, so that every arrow points down. Arrows that
other arrows make plain (A imports B and C, and B imports C) are left out of the picture.
"""

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import source_modules
from source_modules import SOURCE

_HIDDEN = {"__about__", "__main__", "__init__", "testing"}
"""Left out: a version number, an entry, public names, and what only tests import."""

_WIDTH, _FLOOR, _BOX, _HIGH, _GAP = 1040, 108, 128, 46, 22
_STYLE = """
  text { font-family: system-ui, sans-serif; font-size: 14px; fill: #1d2b3a; text-anchor: middle }
  .size { font-size: 11px; fill: #5b6b7a }
  rect { fill: #eef4fa; stroke: #7b98b5; rx: 6 }
  line { stroke: #9fb2c4; stroke-width: 1.3; marker-end: url(#arrow) }
"""


@dataclass(frozen=True)
class Package:
    """A package, or a module that stands beside the packages; `lines` are those of all of its files."""

    name: str
    files: int
    lines: int


def packages(source: Path = SOURCE) -> dict[str, Package]:
    """By name."""
    sizes: dict[str, list[int]] = {}
    for path in sorted(source.rglob("*.py")):
        name = path.relative_to(source).with_suffix("").parts[0]
        sizes.setdefault(name, []).append(path.read_text(encoding="utf-8").count("\n"))
    return {name: Package(name, len(lines), sum(lines)) for name, lines in sizes.items() if name not in _HIDDEN}


@functools.cache
def imports(source: Path = SOURCE) -> dict[str, set[str]]:
    """The packages that each package imports."""
    graph: dict[str, set[str]] = {name: set() for name in packages(source)}
    for module, (text, is_package) in source_modules.texts(source).items():
        name = module.split(".")[0]
        if name in graph:
            names = [each.split(".") for each in source_modules.imports_of(module, text, is_package)]
            graph[name] |= {each[1] for each in names if each[0] == "modserve"} & graph.keys() - {name}
    return graph


def floors(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """The floor of each package: 0 for those that import none. Raises RecursionError where imports go in a circle."""
    heights: dict[str, int] = {}

    def height(name: str) -> int:
        if name not in heights:
            heights[name] = 1 + max((height(other) for other in graph[name]), default=-1)
        return heights[name]

    return {name: height(name) for name in graph}


def _plain(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The graph without the arrows that follow from others."""

    def reached(name: str) -> set[str]:
        return graph[name].union(*(reached(other) for other in graph[name]))

    return {name: others - set().union(*map(reached, others)) for name, others in graph.items()}


def draw(source: Path = SOURCE) -> str:
    """The picture, as SVG."""
    sizes, graph = packages(source), imports(source)
    level = floors(graph)
    top = max(level.values())
    places: dict[str, tuple[float, float]] = {}
    for floor in range(top + 1):
        row = sorted(name for name in graph if level[name] == floor)
        if floor:  # each above the middle of what it imports
            row.sort(key=lambda name: sum(places[other][0] for other in graph[name]) / len(graph[name]))
        step = min(_BOX + _GAP, _WIDTH / len(row))
        for index, name in enumerate(row):
            places[name] = _WIDTH / 2 + (index - (len(row) - 1) / 2) * step, (top - floor) * _FLOOR + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {(top + 1) * _FLOOR}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#9fb2c4"/></marker></defs>',
        f'<rect width="{_WIDTH}" height="{(top + 1) * _FLOOR}" style="fill:#fff;stroke:none"/>',
    ]
    for name, others in sorted(_plain(graph).items()):
        x, y = places[name]
        for other in sorted(others):
            to_x, to_y = places[other]
            parts.append(f'<line x1="{x:.0f}" y1="{y + _HIGH / 2:.0f}" x2="{to_x:.0f}" y2="{to_y - _HIGH / 2:.0f}"/>')
    for name, (x, y) in sorted(places.items()):
        package = sizes[name]
        size = f"{package.lines:,} lines" if package.files == 1 else f"{package.files} files, {package.lines:,} lines"
        parts += [
            f'<rect x="{x - _BOX / 2:.0f}" y="{y - _HIGH / 2:.0f}" width="{_BOX}" height="{_HIGH}" rx="6"/>',
            f'<text x="{x:.0f}" y="{y - 2:.0f}">{name}</text>',
            f'<text class="size" x="{x:.0f}" y="{y + 14:.0f}">{size}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(Path(sys.argv[2]) if len(sys.argv) > 2 else SOURCE), encoding="utf-8")
