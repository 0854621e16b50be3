"""A command in the test's own process, which has its libraries already: for 0.02 s of CPU, not 0.5 s."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from kept_logging import kept_logging
from modserve import cli


def run_here(*words: str, text: str | None = None, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """With a pipe that has `text`, or without any input; and without variables of its own."""
    given = os.open(os.devnull, os.O_RDONLY)
    if text is not None:
        os.close(given)
        given, writer = os.pipe()
        os.write(writer, text.encode())
        os.close(writer)
    out, err = io.StringIO(), io.StringIO()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MODSERVE_")}
    with (
        open(given) as stdin,
        patch.object(sys, "stdin", stdin),
        patch.dict(os.environ, environment, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(folder or Path.cwd()),
        kept_logging(),
    ):
        code = cli.main(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
