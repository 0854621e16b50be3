"""``modserve top``: a live view of requests, queues, batches, latencies and errors of a server."""

from .command import PARSER, work

__all__ = ["PARSER", "work"]
