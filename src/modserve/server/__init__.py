"""A server without sockets: its interface to front ends, and the server of one process."""

from .drain import DrainPhase, DrainReport
from .interface import Phase, Readiness, Server

__all__ = ["DrainPhase", "DrainReport", "Phase", "Readiness", "Server"]
