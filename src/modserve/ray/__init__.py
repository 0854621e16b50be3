"""modserve on Ray Serve: replicas are servers in the processes that Ray places, restarts and counts."""

from .application import app, build

__all__ = ["app", "build"]
