"""The library as the README shows it, in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_library_as_the_readme_shows_it() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (shown,) = [block for block in blocks if "InferenceServer(" in block and "asyncio" in block]
    result = subprocess.run([sys.executable, "-c", shown], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.split() == f"[[{' '.join(['2'] * 16)}]]".split()
