"""docs/design.md shows the calls of an inference as they are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import call_chain


def test_the_page_shows_the_calls_of_an_inference(tmp_path: Path) -> None:
    source = {**os.environ, "PYTHONPATH": str(call_chain.PAGE.parents[1] / "src")}  # compiled code records no calls
    page = call_chain.PAGE.read_text(encoding="utf-8")
    for wire in ("http", "grpc"):
        ways = subprocess.run(
            [sys.executable, call_chain.__file__, wire, "--ways"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env=source,
        ).stdout
        blocks = re.findall(rf"<!-- {wire}, the way \w+ -->\n\n```\n(.*?)```", page, re.DOTALL)
        assert "".join(blocks) == ways, "python scripts/call_chain.py --write renews the page"
