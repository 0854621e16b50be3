"""``modserve engines``: lists installed engines, and how to install others."""

from argparse import Namespace

from modserve.backends.inventory import inventory
from modserve.process import console

from .syntax import parser

PARSER = parser(
    "engines",
    "Lists the installed engines with the files that each loads, and the pip commands for others.",
    "  modserve engines",
)


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    print(console.engines_table(inventory()))
    return 0
