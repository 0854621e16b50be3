"""``modserve bench``: measures latency and throughput of a KServe v2 server."""

from .command import PARSER, work

__all__ = ["PARSER", "work"]
