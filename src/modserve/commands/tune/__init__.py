"""``modserve tune``: searches the configuration of a model with the highest rate within a goal."""

from .command import PARSER, work

__all__ = ["PARSER", "work"]
