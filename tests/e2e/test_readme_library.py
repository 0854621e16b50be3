"""The library as the README shows it, in a process of its own, and as type checkers see it and docs/library.md."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

REPOSITORIES = """
from pathlib import Path

from modserve import Settings

Settings(model_repository="models")
Settings(model_repository=Path("models"))
Settings(model_repository=["models"])
Settings(model_repository=[Path("models")])
Settings(model_repository=["s3://bucket/models", Path("models")])
place = Settings(model_repository=("models", Path("more"))).repositories[0]
assert isinstance(place, Path)
place.exists()
Settings(model_repository=7)  # type: ignore[arg-type]
"""
"""The last of them is wrong, and has to be refused: mypy complains of an ignored error that there is not."""


def shown() -> str:
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if "InferenceServer(" in block and "asyncio" in block]
    return found


def test_the_library_as_the_readme_shows_it() -> None:
    result = subprocess.run([sys.executable, "-c", shown()], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.split() == f"[[{' '.join(['2'] * 16)}]]".split()


def test_it_type_checks_as_users_check_it(tmp_path: Path) -> None:
    """Strictly, and without the plugin of pydantic that this repository's own configuration names."""
    page = (ROOT / "docs" / "library.md").read_text()
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    of_the_page = [(f"page_{number}", block) for number, block in enumerate(blocks)]
    for name, text in (("shown", shown()), ("repositories", REPOSITORIES), *of_the_page):
        (tmp_path / f"{name}.py").write_text(text)
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "."],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
