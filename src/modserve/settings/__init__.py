"""Every setting of a server, and the only place that reads the command line, the environment and option files."""

from .front_ends import GrpcSettings, HttpSettings, PlatformRoutes, TlsFiles
from .limits import LoopLimits
from .options import OptionError
from .setting_types import header_pattern
from .settings import OPTIONS, Settings
from .sources import CommandLine, from_command_line

__all__ = [
    "OPTIONS",
    "CommandLine",
    "GrpcSettings",
    "HttpSettings",
    "LoopLimits",
    "OptionError",
    "PlatformRoutes",
    "Settings",
    "TlsFiles",
    "from_command_line",
    "header_pattern",
]
