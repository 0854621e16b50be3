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


def test_second_ways_say_what_they_save() -> None:
    """A file that is a second way to save time names its saving and the command that shows it, near its beginning."""
    page = (PAGES / "design.md").read_text(encoding="utf-8")
    section = page.partition("## One job, one way")[2].partition("## Glossary")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    ]
    assert len(rows) > 10
    saving = 0
    for job, way, second, reason in rows[2:]:
        files = re.findall(r"`([a-z_0-9/]+\.py)`", f"{way} {second}")
        assert files, job
        assert [file for file in files if not (SOURCE / file).exists()] == [], job
        assert bool(second) == bool(reason), job
        if second:
            assert re.match(r"saves \d+|cannot: |FastAPI costs", reason), f"{job}: {reason}"
        if reason.startswith("saves"):
            saving += 1
            heads = ["".join((SOURCE / file).read_text(encoding="utf-8").splitlines(True)[:12]) for file in files]
            assert any(re.search(r"benchmarks/\w+\.py", head) for head in heads), f"{job}: no command in {files}"
            assert any(
                (PAGES.parent / command).exists()
                for head in heads
                for command in re.findall(r"benchmarks/\w+\.py", head)
            )
    assert saving >= 5


def is_in_source(place: str) -> bool:
    """Whether it is a path from the package's folder on, or the name of a file anywhere in it."""
    return (SOURCE / place).exists() or ("/" not in place and any(SOURCE.rglob(place)))
