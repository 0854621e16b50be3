"""The worker's package runs on Python 3.8 with numpy alone."""

import ast
import sys
from pathlib import Path

import pytest

from modserve.backends.python import worker

FILES = sorted(Path(worker.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_imports_and_syntax(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    absolute = [
        name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not getattr(node, "level", 0)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    ]
    assert {name.partition(".")[0] for name in absolute} <= {"numpy", *sys.stdlib_module_names}
