"""The library as type checkers see it, with all that README.md and docs/library.md show of it."""

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


def test_it_type_checks_as_users_check_it(tmp_path: Path) -> None:
    """Strictly, and without the plugin of pydantic that this repository's own configuration names."""
    pages = [(ROOT / page).read_text() for page in ("README.md", "docs/library.md")]
    blocks = [block for page in pages for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]
    of_the_library = [(f"block_{number}", block) for number, block in enumerate(blocks) if "modserve" in block]
    for name, text in (("repositories", REPOSITORIES), *of_the_library):
        (tmp_path / f"{name}.py").write_text(text)
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "."],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
