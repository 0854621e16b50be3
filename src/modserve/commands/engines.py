"""``modserve engines``: what can run models here, and what to install for the rest."""

import sys
from collections.abc import Sequence

from modserve.backends.inventory import inventory
from modserve.process import console

HELP = """\
usage: modserve engines

Lists the installed engines with the files that each loads, and the pip commands for others.

example:
  modserve engines"""


def main(words: Sequence[str]) -> int:
    """The command; `words` are those behind its name. Returns the exit code."""
    if words:
        print(f"modserve: 'engines' takes no options, got: {' '.join(words)}", file=sys.stderr)
        return 2
    print(console.engines_table(inventory()))
    return 0
