"""``modserve check DIR …``: reports all problems of all models, in a form that editors understand."""

from .command import PARSER, work

__all__ = ["PARSER", "work"]
