"""OpenVINO's library, imported without telemetry, and its parts that all models share."""

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

_TELEMETRY = "openvino_telemetry"


def _import_quietly() -> ModuleType:
    """Import OpenVINO. Its import reports to its maker over the Internet, unless there is nothing to report with.

    OpenVINO then has a stand-in of its own. A later import of ``openvino_telemetry`` works all the same.
    """
    if "openvino" in sys.modules:  # the program that the server runs in has decided
        return importlib.import_module("openvino")
    loaded = sys.modules.get(_TELEMETRY)
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("openvino")
    finally:
        del sys.modules[_TELEMETRY]
        if loaded is not None:
            sys.modules[_TELEMETRY] = loaded


ov = _import_quietly()
VERSION = str(ov.__version__).partition("-")[0]


@functools.cache
def core() -> Any:
    """Return the core shared by all models: a new one would spend time on querying the devices again."""
    return ov.Core()


@functools.cache
def devices() -> tuple[str, ...]:
    """Return OpenVINO's names of the devices: ``CPU``, ``GPU`` or ``GPU.0`` and ``GPU.1``, ``NPU``."""
    return tuple(core().available_devices)


@functools.cache
def properties(device: str) -> frozenset[str]:
    """Return the names of all settings of a device; empty if it does not list them."""
    try:
        return frozenset(core().get_property(device, "SUPPORTED_PROPERTIES"))
    except RuntimeError:  # a device that is not there, which compiling says better
        return frozenset()


def core_with(extension: str) -> Any:
    """Make a core with the operators of a shared library, which no other model sees. Raises RuntimeError."""
    own = ov.Core()
    own.add_extension(extension)
    return own
