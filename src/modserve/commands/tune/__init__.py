"""``modserve tune``: which configuration of a model takes the highest rate within a goal, by trying."""

from .command import HELP, main

__all__ = ["HELP", "main"]
