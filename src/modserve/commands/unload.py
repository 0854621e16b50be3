"""``modserve unload MODEL``: unload models of a running server."""

from argparse import Namespace
from contextlib import closing

from modserve.client.transport import UNLOAD

from .destination import destination
from .models import chosen
from .remote_server import connect
from .server_status import index
from .syntax import add_destination, parser
from .terminal import each

PARSER = parser(
    "unload",
    "Unloads models of a running server, which must run with --model-control-mode explicit.\n"
    "The server still answers accepted requests.",
    "  modserve unload simple\n  modserve unload digits_pipeline --dependents",
    "0 unloaded, 1 not unloaded (the reason is printed), 2 wrong command line",
)
PARSER.add_argument("names", nargs="+", metavar="MODEL", help="Names of models.")
PARSER.add_argument("--dependents", action="store_true", help="Also unload the models that only this ensemble uses.")
add_destination(PARSER)


def work(options: Namespace) -> int:
    """Runs the command; returns the exit code."""
    with closing(connect(destination(options))) as server:

        def unload(name: str) -> str:
            chosen(index(server), [name])  # servers accept unknown names
            server.call(UNLOAD, name, parameters={"unload_dependents": options.dependents})
            return f"{name}: unloaded"

        return each(options.names, unload)
