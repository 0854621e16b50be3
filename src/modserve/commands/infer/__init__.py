"""``modserve infer MODEL NAME=VALUE …``: send one request to a running server and show the response."""

from .command import PARSER, work

__all__ = ["PARSER", "work"]
