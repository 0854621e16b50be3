"""``modserve serve --model-repository DIR``, or tritonserver's command line with ``modserve`` for ``tritonserver``."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence

from . import console
from .__about__ import __version__
from .app import InferenceServer, Ports, log_settings, serve
from .observability.logging import Logs
from .settings import OPTIONS, OptionError, Settings, from_command_line

_log = logging.getLogger(__name__)

_USAGE = """\
usage: modserve [serve] --model-repository DIR [options]
       modserve --version | --help

Serves the models in DIR over KServe v2: HTTP, gRPC, and Prometheus metrics.

options (also as environment variables, e.g. MODSERVE_HTTP_PORT):
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code: 0 after an orderly stop, 1 for a failure, 2 for a wrong command line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--version" in given:
        print(f"modserve {__version__}")
        return 0
    if "--help" in given or "-h" in given:
        print(usage())
        return 0
    if given[:1] == ["serve"]:
        del given[0]
    try:
        line = from_command_line(given)
    except OptionError as error:
        print(f"modserve: {error}", file=sys.stderr)
        print("modserve: see 'modserve --help'", file=sys.stderr)
        return 2
    return run(line.settings, line.without_effect)


def usage() -> str:
    """The text of ``--help``."""
    lines = []
    for option in OPTIONS.values():
        value = "" if option.flag else " VALUE"
        lines.append(f"  --{option.name}{value}\n      {option.help}{_default(option.field)}")
    return _USAGE + "\n".join(lines)


def _default(field: str) -> str:
    default = Settings.model_fields[field].default
    if isinstance(default, bool):
        return f" (default {str(default).lower()})"
    return f" (default {default})" if isinstance(default, int | str) and default != "" else ""


def run(settings: Settings, without_effect: Sequence[str] = ()) -> int:
    """Serve on a fresh event loop, with uvloop where it is installed."""
    logs = Logs(log_settings(settings))
    logs.install()
    for name in without_effect:
        _log.warning("option '--%s' has no effect in modserve", name)
    opened: list[Ports] = []

    def on_open(ports: Ports) -> None:
        opened.append(ports)
        for name, address, port in (
            ("HTTP", settings.http_address, ports.http),
            ("gRPC", settings.grpc_address, ports.grpc),
            ("metrics", settings.metrics_address or settings.http_address, ports.metrics),
        ):
            if port is not None:
                print(f"{name} listening on {address}:{port}", flush=True)

    def on_loaded(server: InferenceServer) -> None:
        print(f"\n{console.models_table(server.index())}\n", flush=True)
        models = [servable.config for servable in server.ready_models()]
        if opened[0].http is not None and models:
            scheme = "https" if settings.http_use_ssl or settings.http_use_ssl_mutual else "http"
            print(f"Try it:\n  {console.example_call(models, opened[0].http, scheme)}\n", flush=True)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(serve(settings, logs=logs, on_open=on_open, on_loaded=on_loaded))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def entry() -> None:
    """The console script. The process ends here, without waiting for engines that hang in a call."""
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    logging.shutdown()
    os._exit(code)
