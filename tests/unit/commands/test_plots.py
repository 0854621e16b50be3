"""Plots as SVG: scales that people read, and pages that are well formed."""

import xml.etree.ElementTree as ET

import pytest

from modserve.commands.plots import Plot, decades, document, draw, html_table, scale, short


@pytest.mark.parametrize(
    ("most", "marks"),
    [
        (10.0, [0, 2, 4, 6, 8, 10]),
        (7.0, [0, 2, 4, 6, 8]),
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (64.0, [0, 20, 40, 60, 80]),
        (0.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
    ],
)
def test_a_scale(most: float, marks: list[float]) -> None:
    assert scale(most) == pytest.approx(marks)


def test_decades() -> None:
    assert decades([0.5, 30, 0]) == pytest.approx([0.1, 1, 10, 100])
    assert decades([]) == [1, 10]


def test_numbers() -> None:
    assert [short(value) for value in (0.0421, 7.25, 812, 6500, 12_345, 0)] == [
        "0.0421",
        "7.25",
        "812",
        "6.5k",
        "12.3k",
        "0",
    ]


@pytest.mark.parametrize("log_y", [True, False])
def test_points_lie_inside_the_plot(log_y: bool) -> None:
    plot = Plot("a < b", "x", {"one": [(0, 1), (5, 300)], "two": [], "zero": [(1, 0)]}, goal=20, log_y=log_y)
    root = ET.fromstring(draw(plot))
    circles = [each for each in root.iter() if each.tag.endswith("circle")]
    assert len(circles) == 3
    for circle in circles:
        assert 0 <= float(circle.attrib["cx"]) <= 560
        assert 0 <= float(circle.attrib["cy"]) <= 280
    titles = [each.text for each in root.iter() if each.tag.endswith("title")]
    assert "one: 300 at 5" in titles


def test_a_plot_of_nothing() -> None:
    ET.fromstring(draw(Plot("t", "x", {})))


def test_a_page_shows_texts_as_they_are() -> None:
    page = document("<t>", [html_table(["<n>"], [["<c>"]])], "<e>")
    for text in ("&lt;t&gt;", "&lt;n&gt;", "&lt;c&gt;", "&lt;e&gt;"):
        assert text in page
