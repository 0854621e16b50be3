"""``modserve chat MODEL``: a conversation with a language model, in a terminal or through a pipe."""

from .command import PARSER, work

__all__ = ["PARSER", "work"]
