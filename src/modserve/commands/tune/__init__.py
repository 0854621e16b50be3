"""``modserve tune``: which configuration of a model takes the highest rate within a goal, by trying."""

from .command import PARSER, work

__all__ = ["PARSER", "work"]
