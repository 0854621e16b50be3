"""``modserve load MODEL``: load a model into a running server, or load it again."""

import functools
import json
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from modserve.client.transport import LOAD, Parameters
from modserve.core.errors import invalid

from . import joint_control
from .destination import destinations
from .errors import RefusedError
from .models import choose_rows
from .remote_server import RemoteServer
from .server_set import connect_all
from .status_report import index
from .syntax import UsageError, add_destination, option, parser
from .terminal import duration, each

PARSER = parser(
    "load",
    "Loads or reloads models of a running server, and waits until they are ready.\n"
    "The server must run with --model-control-mode explicit. On several servers, each model is loaded on all\n"
    "or on none: if one server fails, the others go back to what they had.",
    "  modserve load simple\n  modserve load simple --config config.json\n"
    "  modserve load simple --url dns:///modserve.svc:8000\n"
    "  modserve load new --config config.json --file 1/model.onnx=model.onnx",
    "0 loaded, 1 not loaded (the reason is printed), 2 wrong command line",
)
PARSER.add_argument("names", nargs="+", metavar="MODEL", help="Names of models in the model repository.")
option(PARSER, "--config FILE", "Configuration in JSON, instead of the one in the repository.")
option(
    PARSER,
    "--file PATH=FILE",
    "A model file, instead of those in the repository; PATH is relative to the model's folder, e.g. 1/model.onnx; "
    "may be repeated.",
    action="append",
    default=[],
)
add_destination(PARSER, 600.0, several=True)


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    values = parameters(options.config, options.file)
    with closing(connect_all(destinations(options))) as servers:
        if len(servers.servers) == 1:
            return each(options.names, lambda name: _load(servers.servers[0], name, values, options))

        def call(server: RemoteServer, name: str) -> None:
            server.call(LOAD, name, parameters=values)

        return max(
            joint_control.run(servers, name, "loaded", functools.partial(call, name=name), must_exist=not options.file)
            for name in options.names
        )


def _load(server: RemoteServer, name: str, values: Parameters, options: Namespace) -> str:
    begin = time.perf_counter()
    try:
        server.call(LOAD, name, parameters=values)
    except RefusedError as error:
        if not options.file:
            _name_others(server, name, error)
        raise
    took = time.perf_counter() - begin
    versions = [row for row in index(server) if row.model == name]
    listed = ", ".join(f"version {row.version} {row.state}" for row in versions if row.state)
    return f"{name}: {listed or 'loaded'}, after {duration(took)}"


def _name_others(server: RemoteServer, name: str, error: RefusedError) -> None:
    """Raise an error with the names of the existing models, if that one does not exist."""
    try:
        rows = index(server)
    except RefusedError:
        return
    if "explicit model load" not in error.message:
        choose_rows(rows, [name])


def parameters(config: str, files: Sequence[str]) -> dict[str, str | bytes]:
    """Return the parameters of a load request. Raises UsageError, or INVALID_ARG for an unreadable file."""
    out: dict[str, str | bytes] = {}
    if config:
        try:
            json.loads(text := _read(config, "--config").decode())
        except ValueError:
            raise invalid(
                f"option '--config': {config} is not JSON; a config.pbtxt belongs into the repository"
            ) from None
        out["config"] = text
    if files and not config:
        raise UsageError("option '--file' requires '--config', since files stand in place of the repository")
    for each_file in files:
        path, equals, file = each_file.partition("=")
        if not (equals and path and file):
            raise UsageError(f"option '--file': expected PATH=FILE such as 1/model.onnx=model.onnx, got: {each_file}")
        out[f"file:{path}"] = _read(file, "--file")
    return out


def _read(file: str, option: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise invalid(f"option '{option}': cannot read {file}: {error.strerror}") from None
