"""Tools for tests, ours and users': a whole server (`serve`), a manual clock, a runner and an engine controlled by the
test, a fake device.

The server itself is imported when `serve` is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .builders import RecordingSink, config, inflight, instance_spec, request, tensor, write_model
from .clock import FakeClock
from .devices import FakeDevice, FakeDeviceArray
from .puppets import Execution, PuppetBackend, PuppetRunner

if TYPE_CHECKING:
    from .serving import Serving, serve

__all__ = [
    "Execution",
    "FakeClock",
    "FakeDevice",
    "FakeDeviceArray",
    "PuppetBackend",
    "PuppetRunner",
    "RecordingSink",
    "Serving",
    "config",
    "inflight",
    "instance_spec",
    "request",
    "serve",
    "tensor",
    "write_model",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in ("Serving", "serve"):
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        return getattr(importlib.import_module(".serving", __name__), name)
