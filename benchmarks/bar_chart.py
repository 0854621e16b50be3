"""Groups of bars as an SVG picture: a grid of small panels, each with a scale of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HIGH, _HEAD, _FOOT, _MARGIN = 300, 128, 34, 22, 10
_COLOURS = ("#2f6fb0", "#8fb8de", "#d98b3a", "#7a8b99")
_STYLE = """
  text { font-family: system-ui, sans-serif; font-size: 11px; fill: #1d2b3a; text-anchor: middle }
  .title { font-size: 13px; text-anchor: start }
  .value { font-size: 9px; fill: #5b6b7a }
  .legend { text-anchor: start }
  line { stroke: #9fb2c4; stroke-width: 1 }
"""


@dataclass(frozen=True)
class Panel:
    """`groups`: by the label below it, the value of each series; series that a group lacks leave a gap."""

    title: str
    groups: Mapping[str, Mapping[str, float]]


def draw(rows: Sequence[Sequence[Panel]], series: Sequence[str]) -> str:
    """A row of panels for each of `rows`, with a legend of the `series` above all of them."""
    columns = max(len(row) for row in rows)
    width = columns * (_WIDTH + _MARGIN) + _MARGIN
    height = _HEAD + len(rows) * (_HIGH + _HEAD + _FOOT) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for index, name in enumerate(series):
        x = _MARGIN + index * 200
        parts.append(f'<rect x="{x}" y="10" width="12" height="12" fill="{_colour(index)}"/>')
        parts.append(f'<text class="legend" x="{x + 18}" y="20">{escape(name)}</text>')
    for row, panels in enumerate(rows):
        for column, panel in enumerate(panels):
            left, top = _MARGIN + column * (_WIDTH + _MARGIN), _HEAD + row * (_HIGH + _HEAD + _FOOT)
            parts += _panel(panel, series, left, top)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, series: Sequence[str], left: float, top: float) -> list[str]:
    floor = top + _HEAD + _HIGH
    parts = [
        f'<text class="title" x="{left}" y="{top + 16}">{escape(panel.title)}</text>',
        f'<line x1="{left}" y1="{floor}" x2="{left + _WIDTH}" y2="{floor}"/>',
    ]
    most = max((value for values in panel.groups.values() for value in values.values()), default=0.0) or 1.0
    group = _WIDTH / max(1, len(panel.groups))
    bar = group * 0.86 / max(1, len(series))
    for number, (label, values) in enumerate(panel.groups.items()):
        start = left + number * group + group * 0.07
        parts.append(f'<text x="{left + (number + 0.5) * group:.1f}" y="{floor + 14}">{escape(label)}</text>')
        for index, name in enumerate(series):
            if name in values:
                x, high = start + index * bar, values[name] / most * (_HIGH - 14)
                parts.append(
                    f'<rect x="{x:.1f}" y="{floor - high:.1f}" width="{bar - 2:.1f}" height="{high:.1f}" '
                    f'fill="{_colour(index)}"/>'
                )
                middle, text = x + bar / 2 - 1, short(values[name])
                parts.append(f'<text class="value" x="{middle:.1f}" y="{floor - high - 3:.1f}">{text}</text>')
    return parts


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def short(value: float) -> str:
    """Three digits or so: 0.42, 7.3, 812, 6.5k."""
    if value >= 10_000:
        return f"{value / 1000:.0f}k"
    if value >= 1000:
        return f"{value / 1000:.1f}k"
    if value >= 10:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"
