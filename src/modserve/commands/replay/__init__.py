"""``modserve replay FILE …``: sends recorded requests to a server again, and compares the responses."""

from .command import PARSER, work

__all__ = ["PARSER", "work"]
