"""docs/design.md speaks of what there is."""

import re
from pathlib import Path

import module_graph
from source_modules import SOURCE

PAGES = Path(__file__).parents[2] / "docs"


def without_sizes(picture: str) -> str:
    return re.sub(r'^<text class="size".*\n', "", picture, flags=re.MULTILINE)


def test_the_picture_shows_every_package_and_import() -> None:
    picture = (PAGES / "design" / "packages.svg").read_text(encoding="utf-8")
    assert without_sizes(picture) == without_sizes(module_graph.draw()), (
        "python scripts/module_graph.py docs/design/packages.svg draws it again"
    )


def test_every_arrow_points_down() -> None:
    graph = module_graph.imports()
    floors = module_graph.floors(graph)
    assert all(floors[name] > floors[other] for name, others in graph.items() for other in others)


def test_every_file_that_the_page_names_is_there() -> None:
    page = (PAGES / "design.md").read_text(encoding="utf-8")
    places = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))`", page)
    assert len(places) > 30
    assert [place for place in places if not (PAGES.parent / place).exists() and not is_in_source(place)] == []


def is_in_source(place: str) -> bool:
    """Whether it is a path from the package's folder on, or the name of a file anywhere in it."""
    return (SOURCE / place).exists() or ("/" not in place and any(SOURCE.rglob(place)))
