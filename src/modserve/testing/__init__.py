"""Fakes for tests, ours and users': a clock turned by hand, a runner and an engine whose work is done by hand, a
device."""

from .builders import RecordingSink, config, inflight, instance_spec, request, tensor, write_model
from .clock import FakeClock
from .devices import FakeDevice, FakeDeviceArray
from .puppets import Execution, PuppetBackend, PuppetRunner

__all__ = [
    "Execution",
    "FakeClock",
    "FakeDevice",
    "FakeDeviceArray",
    "PuppetBackend",
    "PuppetRunner",
    "RecordingSink",
    "config",
    "inflight",
    "instance_spec",
    "request",
    "tensor",
    "write_model",
]
