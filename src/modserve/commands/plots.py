"""Self-contained HTML pages with SVG plots and tables, in light and dark."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 560, 280, 60, 16, 34, 44
_COLOURS = ("#2f6fb0", "#d98b3a", "#3a8f5c", "#a8473f", "#7a5ba8", "#4fb0a5", "#b05f92", "#7a8b99")
_LINES = 5
_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2b3a; --soft: #5b6b7a; --line: #dfe6ec; --paper: #fff; --panel: #f6f8fa }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dbe4ec; --soft: #93a3b1; --line: #2c3947; --paper: #121a22; --panel: #1a242e }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1180px;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.verdict { font-size: 1.1rem; padding: .8rem 1rem; background: var(--panel); border-left: 4px solid #2f6fb0 }
.plots { display: flex; flex-wrap: wrap; gap: 1rem }
svg { background: var(--panel); border-radius: 6px; max-width: 100%; height: auto }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft) }
svg .title { font-size: 13px; fill: var(--ink) }
svg .grid { stroke: var(--line) }
svg polyline { fill: none; stroke-width: 2 }
svg .goal { stroke: #a8473f; stroke-dasharray: 5 4 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
.wide { overflow-x: auto }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th:first-child, td:first-child { text-align: left }
pre { background: var(--panel); padding: 1rem; overflow-x: auto }
footer { margin-top: 2rem; color: var(--soft); font-size: .85rem }
"""


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines by name, each of points (x, y), in the order of x. Both scales begin at 0 unless one is logarithmic."""

    title: str
    x_label: str
    series: Mapping[str, Points]
    goal: float | None = None
    """A line across, which the scale has room for."""
    log_y: bool = False
    dots_only: bool = False


def scale(most: float) -> list[float]:
    """Return a few round steps from 0 up to `most` or somewhat more."""
    if not 0 < most < math.inf:
        most = 1.0
    power = 10.0 ** math.floor(math.log10(most / _LINES))
    step = next(power * factor for factor in _ROUND if power * factor * _LINES >= most * (1 - 1e-9))
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def decades(values: Sequence[float]) -> list[float]:
    """Return the powers of ten around the values above 0."""
    above = [value for value in values if value > 0] or [1.0]
    low = math.floor(math.log10(min(above)))
    high = max(math.ceil(math.log10(max(above))), low + 1)
    return [10.0**power for power in range(low, high + 1)]


def draw(plot: Plot) -> str:
    """Return the plot as an SVG element."""
    points = [point for line in plot.series.values() for point in line]
    marks_x = scale(max((x for x, _ in points), default=1.0))
    heights = [y for _, y in points] + ([] if plot.goal is None else [plot.goal])
    marks_y = decades(heights) if plot.log_y else scale(max(heights, default=1.0))
    right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x_of(x: float) -> float:
        return _LEFT + x / marks_x[-1] * (right - _LEFT)

    def y_of(y: float) -> float:
        if plot.log_y:
            low, high = math.log10(marks_y[0]), math.log10(marks_y[-1])
            share = (math.log10(max(y, marks_y[0])) - low) / (high - low)
        else:
            share = y / marks_y[-1]
        return floor - share * (floor - _TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" '
        f'aria-label="{escape(plot.title)}">',
        f'<text class="title" x="{_LEFT}" y="18">{escape(plot.title)}</text>',
    ]
    for mark in marks_y:
        y = y_of(mark)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(mark)}</text>')
    for mark in marks_x:
        parts.append(f'<text x="{x_of(mark):.1f}" y="{floor + 16}" text-anchor="middle">{short(mark)}</text>')
    parts.append(f'<text x="{right}" y="{floor + 34}" text-anchor="end">{escape(plot.x_label)}</text>')
    if plot.goal is not None:
        y = y_of(plot.goal)
        parts.append(f'<line class="goal" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
    for index, (name, line) in enumerate(plot.series.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        places = [(x_of(x), y_of(y)) for x, y in line]
        if not plot.dots_only:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline points="{path}" stroke="{colour}"/>')
        for (x, y), (value_x, value_y) in zip(places, line, strict=True):
            hint = escape(f"{name}: {short(value_y)} at {short(value_x)}")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{hint}</title></circle>')
    parts += _legend(plot)
    return "\n".join([*parts, "</svg>"])


def _legend(plot: Plot) -> Iterator[str]:
    """Yield the legend below the plot; names that do not fit are in the hints of the points."""
    x = float(_LEFT)
    for index, name in enumerate(plot.series):
        width = 24 + 6.2 * len(name)
        if x + width > _WIDTH - _RIGHT - 6.2 * len(plot.x_label):
            return
        colour = _COLOURS[index % len(_COLOURS)]
        yield f'<rect x="{x:.1f}" y="{_HEIGHT - 19}" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 14:.1f}" y="{_HEIGHT - 10}">{escape(name)}</text>'
        x += width


def short(value: float) -> str:
    """Format a number with about three digits: 0.042, 7.3, 812, 6.5k."""
    if abs(value) >= 10_000:
        return f"{value / 1000:.3g}k"
    if abs(value) >= 1000:
        return f"{value / 1000:.2f}".rstrip("0").rstrip(".") + "k"
    return f"{value:.3g}"


def html_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def document(title: str, parts: Sequence[str], end: str) -> str:
    """Return a whole page; `parts` are HTML."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *parts,
            f"<footer>{escape(end)}</footer></body></html>\n",
        ]
    )
