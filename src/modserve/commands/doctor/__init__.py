"""``modserve doctor``: checks this machine for a server, or the access that a server allows, with advice."""

from .command import PARSER, work

__all__ = ["PARSER", "work"]
