"""Latency against throughput as an SVG picture: panels with a curve for each server, both axes logarithmic."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from bar_chart import short
from line_chart import STYLE

_WIDTH, _HIGH, _HEAD, _FOOT, _MARGIN, _LEFT = 380, 240, 40, 44, 20, 44
_COLUMNS, _LABEL = 4, 300
_COLOURS = (
    "#2f6fb0",
    "#143d66",
    "#8fb8de",
    "#d98b3a",
    "#a8473f",
    "#3a8f5c",
    "#7a5ba8",
    "#7a8b99",
    "#c2a13a",
    "#4fb0a5",
    "#b05f92",
    "#5c5c2e",
)


@dataclass(frozen=True)
class Curves:
    """A panel: by series, its points (x, y), all above 0. A panel without points stays empty."""

    title: str
    series: Mapping[str, Sequence[tuple[float, float]]]


def draw(rows: Sequence[Sequence[Curves]], x_label: str, y_label: str) -> str:
    names = list(dict.fromkeys(name for row in rows for panel in row for name in panel.series))
    columns = max(len(row) for row in rows)
    width = max(columns * (_LEFT + _WIDTH + _MARGIN), _COLUMNS * _LABEL) + _MARGIN
    legend = 22 * -(-len(names) // _COLUMNS) + 10
    height = legend + len(rows) * (_HEAD + _HIGH + _FOOT) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for index, name in enumerate(names):
        x, y = _MARGIN + index % _COLUMNS * _LABEL, 10 + index // _COLUMNS * 22
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{_colour(index)}"/>')
        parts.append(f'<text x="{x + 18}" y="{y + 10}">{escape(name)}</text>')
    for row, panels in enumerate(rows):
        for column, panel in enumerate(panels):
            left = _MARGIN + _LEFT + column * (_LEFT + _WIDTH + _MARGIN)
            parts += _panel(panel, names, left, legend + row * (_HEAD + _HIGH + _FOOT), x_label, y_label)
    return "\n".join([*parts, "</svg>", ""])


def decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten around the values, at least one decade."""
    low = math.floor(math.log10(min(values))) if values else 0
    high = math.ceil(math.log10(max(values))) if values else 1
    return low, max(high, low + 1)


def _panel(panel: Curves, names: Sequence[str], left: float, top: float, x_label: str, y_label: str) -> list[str]:
    floor = top + _HEAD + _HIGH
    points = [point for curve in panel.series.values() for point in curve]
    x_low, x_high = decades([x for x, _ in points])
    y_low, y_high = decades([y for _, y in points])

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = left + (math.log10(point[0]) - x_low) / (x_high - x_low) * _WIDTH
        return x, floor - (math.log10(point[1]) - y_low) / (y_high - y_low) * _HIGH

    parts = [f'<text class="title" x="{left}" y="{top + 20}">{escape(panel.title)}</text>']
    for power in range(y_low, y_high + 1):
        _, y = place((10.0**x_low, 10.0**power))
        parts.append(f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{left + _WIDTH}" y2="{y:.1f}"/>')
        parts.append(f'<text class="scale" x="{left - 6}" y="{y + 3:.1f}" text-anchor="end">{_number(power)}</text>')
    for power in range(x_low, x_high + 1):
        x, _ = place((10.0**power, 10.0**y_low))
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{floor}" x2="{x:.1f}" y2="{floor - _HIGH}"/>')
        parts.append(f'<text class="scale" x="{x:.1f}" y="{floor + 14}" text-anchor="middle">{_number(power)}</text>')
    parts.append(f'<text x="{left + _WIDTH}" y="{floor + 30}" text-anchor="end">{escape(x_label)}</text>')
    parts.append(f'<text x="{left}" y="{top + 34}">{escape(y_label)}</text>')
    for name, curve in panel.series.items():
        colour = _colour(names.index(name))
        places = [place(point) for point in curve]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" stroke="{colour}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    return parts


def _number(power: int) -> str:
    return short(10.0**power) if power >= 0 else f"{10.0**power:g}"


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]
