"""``modserve init NAME --from WHAT``: the folders and files of a new model, ready to be served."""

from .command import PARSER, work

__all__ = ["PARSER", "work"]
