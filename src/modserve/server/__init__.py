"""A server without sockets: its interface to front ends, and the server of one process."""

from .interface import Phase, Readiness, Server

__all__ = ["Phase", "Readiness", "Server"]
