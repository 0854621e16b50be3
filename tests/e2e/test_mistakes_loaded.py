"""The pictures of docs/configuration.md for which models are loaded; the others have a unit test."""

import config_mistakes
import pytest
from config_mistakes import MISTAKES, Mistake

from kept_logging import untouched_logging

pytestmark = pytest.mark.usefixtures(untouched_logging.__name__)


@pytest.mark.parametrize("mistake", [each for each in MISTAKES if each.load], ids=lambda mistake: mistake.name)
def test_the_picture_shows_what_the_command_says(mistake: Mistake) -> None:
    picture = config_mistakes.draw(mistake, config_mistakes.said(mistake))
    assert mistake.picture.read_text("utf-8") == picture, "python scripts/config_mistakes.py draws it again"
