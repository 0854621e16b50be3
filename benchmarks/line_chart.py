"""Lines over a few steps (1, 2, 4, … clients) as an SVG picture: panels side by side, each with a scale of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from bar_chart import short

_WIDTH, _HIGH, _HEAD, _FOOT, _MARGIN, _LEFT = 400, 220, 40, 40, 20, 44
_COLOURS = ("#2f6fb0", "#d98b3a", "#3a8f5c", "#a8473f", "#7a5ba8", "#7a8b99", "#c2a13a")
STYLE = """
  text { font-family: system-ui, sans-serif; font-size: 11px; fill: #1d2b3a }
  .title { font-size: 13px }
  .scale { font-size: 9px; fill: #5b6b7a }
  .grid { stroke: #dfe6ec; stroke-width: 1 }
  polyline { fill: none; stroke-width: 2 }
"""


@dataclass(frozen=True)
class Lines:
    """A panel: by series, a value for each of the chart's steps. The scale begins at 0."""

    title: str
    series: Mapping[str, Sequence[float]]


def draw(rows: Sequence[Sequence[Lines]], steps: Sequence[str], below: str) -> str:
    """A row of panels for each of `rows`; `steps` are the labels below, and `below` says what they are."""
    names = list(dict.fromkeys(name for row in rows for panel in row for name in panel.series))
    columns = max(len(row) for row in rows)
    width = columns * (_LEFT + _WIDTH + _MARGIN) + _MARGIN
    legend = 22 * -(-len(names) // 4) + 10
    height = legend + len(rows) * (_HEAD + _HIGH + _FOOT) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for index, name in enumerate(names):
        x, y = _MARGIN + index % 4 * 220, 10 + index // 4 * 22
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{_colour(index)}"/>')
        parts.append(f'<text x="{x + 18}" y="{y + 10}">{escape(name)}</text>')
    for row, panels in enumerate(rows):
        for column, panel in enumerate(panels):
            left = _MARGIN + _LEFT + column * (_LEFT + _WIDTH + _MARGIN)
            parts += _panel(panel, names, steps, below, left, legend + row * (_HEAD + _HIGH + _FOOT))
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Lines, names: Sequence[str], steps: Sequence[str], below: str, left: float, top: float) -> list[str]:
    floor = top + _HEAD + _HIGH
    most = max((value for values in panel.series.values() for value in values), default=0.0) or 1.0
    parts = [f'<text class="title" x="{left}" y="{top + 20}">{escape(panel.title)}</text>']
    for quarter in range(5):
        y = floor - quarter / 4 * _HIGH
        parts.append(f'<line class="grid" x1="{left}" y1="{y}" x2="{left + _WIDTH}" y2="{y}"/>')
        label = short(most * quarter / 4) if quarter else "0"
        parts.append(f'<text class="scale" x="{left - 6}" y="{y + 3}" text-anchor="end">{label}</text>')
    step = _WIDTH / max(1, len(steps) - 1)
    for number, label in enumerate(steps):
        parts.append(
            f'<text x="{left + number * step:.1f}" y="{floor + 14}" text-anchor="middle">{escape(label)}</text>'
        )
    parts.append(f'<text x="{left + _WIDTH}" y="{floor + 28}" text-anchor="end">{escape(below)}</text>')
    for name, values in panel.series.items():
        colour = _colour(names.index(name))
        points = [(left + number * step, floor - value / most * _HIGH) for number, value in enumerate(values)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" stroke="{colour}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return parts


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]
