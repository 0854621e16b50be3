"""The pictures of docs/configuration.md show what `modserve check` says of the ten mistakes today.

Those that only show when an engine opens the model are compared by tests/e2e/test_mistakes_loaded.py.
"""

import re
from xml.etree import ElementTree

import config_mistakes
import pytest
from config_mistakes import MISTAKES, PAGE, PICTURES, Mistake
from terminal import plain

from kept_logging import untouched_logging

pytestmark = pytest.mark.usefixtures(untouched_logging.__name__)

AGAIN = "python scripts/config_mistakes.py draws it again"


@pytest.mark.parametrize("mistake", [each for each in MISTAKES if not each.load], ids=lambda mistake: mistake.name)
def test_the_picture_shows_what_the_command_says(mistake: Mistake) -> None:
    screen = config_mistakes.said(mistake)
    assert mistake.picture.read_text("utf-8") == config_mistakes.draw(mistake, screen), AGAIN
    assert plain(screen).startswith(f"models/{next(iter(mistake.files)).partition('/')[0]}/")


def test_the_page_shows_these_pictures_and_no_others() -> None:
    page = PAGE.read_text("utf-8")
    assert config_mistakes.renewed(page) == page, "python scripts/config_mistakes.py writes it anew"
    assert len(MISTAKES) == 10
    assert {path.name for path in PICTURES.iterdir()} == {mistake.picture.name for mistake in MISTAKES}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_picture_has_all_of_the_text(mistake: Mistake) -> None:
    """Long lines are wrapped, and nothing of them is lost; no line leaves the picture."""
    root = ElementTree.parse(mistake.picture).getroot()
    space = {"svg": "http://www.w3.org/2000/svg"}
    described = root.findtext("svg:desc", namespaces=space)
    assert described is not None
    texts = root.findall("svg:text", space)
    assert "".join(each.text or "" for each in texts).replace(" ", "") == re.sub(r"\s", "", described)
    width = float(root.attrib["viewBox"].split()[2])
    assert all(float(each.attrib["x"]) + float(each.attrib["textLength"]) < width for each in texts)
    assert "/tmp" not in described


def test_styles_go_on_in_wrapped_lines() -> None:
    mistake = MISTAKES[0]
    screen = f"\x1b[1mplace:\x1b[0m \x1b[1;31m{'word ' * 30}end\x1b[0m & <rest>\n"
    picture = config_mistakes.draw(mistake, screen)
    assert picture.count('class="red"') == 2
    assert "&amp; &lt;rest&gt;</text>" in picture
