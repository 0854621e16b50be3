"""``python -m modserve``."""

from .cli import entry

entry()
