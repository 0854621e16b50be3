"""A server without sockets: the interface that front ends see, and the server of one process."""

from .interface import Phase, Readiness, Server

__all__ = ["Phase", "Readiness", "Server"]
