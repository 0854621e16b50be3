"""``modserve rollout``: loads a version on one server, compares it with the others, and goes on or back."""

from .command import PARSER, work

__all__ = ["PARSER", "work"]
