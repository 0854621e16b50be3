"""``modserve bench``: how fast a server of the KServe v2 protocol is, seen from its client."""

from .command import PARSER, work

__all__ = ["PARSER", "work"]
