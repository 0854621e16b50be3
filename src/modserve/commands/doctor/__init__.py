"""``modserve doctor``: checks this machine for a server, or what a server is open to, with advice for each problem."""

from .command import PARSER, work

__all__ = ["PARSER", "work"]
