"""Every curl command in the documentation works as printed, and answers what is printed below it."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from repositories import EXAMPLES
from server_process import ServerProcess, serving
from wire import HOST, SECONDS, http

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OPTIONS = ["--model-control-mode=explicit", "--load-model=*"]

CURLRC = "fail\nsilent\nshow-error\n"
"""What makes curl tell a refusal by its exit status, and nothing but refusals on standard error."""

_BLOCKS = re.compile(r"^```(\w*)\n(.*?)^```$(?:\n\n^```(?:json)?\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


class Recipe(NamedTuple):
    """Commands for a shell, and their output if the page shows it."""

    page: str
    line: int
    commands: str
    shown: str | None


def recipes(page: Path) -> Iterator[Recipe]:
    """The blocks marked `sh` in which a line begins with curl, and the lines of `console` blocks that do."""
    text = page.read_text()
    for block in _BLOCKS.finditer(text):
        language, commands, shown = block.groups()
        if language == "console":
            commands = "".join(re.findall(r"^\$ (curl .*\n)", commands, re.MULTILINE))
        elif language != "sh" or not re.search(r"^ *curl ", commands, re.MULTILINE):
            continue
        if commands:
            yield Recipe(page.name, text.count("\n", 0, block.start()) + 1, commands, shown)


RECIPES = [recipe for page in PAGES for recipe in recipes(page)]


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serves the example models, those of README.md and python-functions.md; takes what a recipe may want to change."""
    place = tmp_path_factory.mktemp("traces")
    page = (ROOT / "docs" / "python-functions.md").read_text()
    (place / "functions.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    shout = place / "models" / "shout" / "1" / "model.py"
    shout.parent.mkdir(parents=True)
    shout.write_text(
        (ROOT / "README.md").read_text().partition("```python\n# models/shout/1/model.py")[2].partition("```")[0]
    )
    options = [f"--trace-config=triton,file={place / 'trace.json'}", f"--python-model={place / 'functions.py'}:double"]
    with serving(EXAMPLES, place / "models", options=[*OPTIONS, *options]) as running:
        yield running


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the commands run: with the file that one of them sends."""
    shutil.copy(EXAMPLES / "simple" / "1" / "model.onnx", tmp_path)
    (tmp_path / ".curlrc").write_text(CURLRC)
    return tmp_path


@pytest.mark.parametrize("recipe", RECIPES, ids=[f"{recipe.page}:{recipe.line}" for recipe in RECIPES])
def test_recipe(documented: ServerProcess, place: Path, recipe: Recipe) -> None:
    """One may leave a model unloaded, or with another configuration; the next finds all of them as they were."""
    assert http(documented.http_port, "POST", "/v2/repository/models/simple/load").status == 200
    ports = {"8000": documented.http_port, "8001": documented.grpc_port, "8002": documented.metrics_port}
    commands = re.sub(r"\blocalhost:(800[012])\b", lambda found: f"{HOST}:{ports[found[1]]}", recipe.commands)
    assert commands != recipe.commands, "it names none of the server's ports"
    done = subprocess.run(
        ["sh", "-e"],
        input=commands,
        cwd=place,
        env={**os.environ, "CURL_HOME": str(place)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    if recipe.shown is not None:
        assert done.stdout.strip() == recipe.shown.strip()


def test_no_recipe_is_overlooked() -> None:
    """Whatever is written about them in the text between, as many commands are run as there are."""
    printed = sum(len(re.findall(r"^(?:\$| )* ?curl ", page.read_text(), re.MULTILINE)) for page in PAGES)
    assert printed == sum(len(re.findall(r"^ *curl ", recipe.commands, re.MULTILINE)) for recipe in RECIPES) > 0


def test_a_refusal_would_be_noticed(documented: ServerProcess, place: Path) -> None:
    refused = Recipe("", 0, "curl localhost:8000/v2/models/nosuch\ncurl localhost:8000/v2/models/simple\n", None)
    with pytest.raises(AssertionError, match="404"):
        test_recipe(documented, place, refused)
