"""``modserve unload MODEL``: unload models of a running server."""

import functools
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing

from modserve.client.transport import UNLOAD
from modserve.core.lifecycle import LifecycleState

from . import joint_control
from .destination import destinations
from .models import choose_rows
from .remote_server import RemoteServer
from .server_set import connect_all
from .status_report import IndexRow, index
from .syntax import add_destination, parser
from .terminal import each

PARSER = parser(
    "unload",
    "Unloads models of a running server, which must run with --model-control-mode explicit.\n"
    "The server still answers accepted requests. Ensembles that need a model are unloaded with it.\n"
    "On several servers, each model is unloaded on all or on none.",
    "  modserve unload simple\n  modserve unload digits_pipeline --dependents",
    "0 unloaded, 1 not unloaded (the reason is printed), 2 wrong command line",
)
PARSER.add_argument("names", nargs="+", metavar="MODEL", help="Names of models.")
PARSER.add_argument("--dependents", action="store_true", help="Also unload the models that only this ensemble uses.")
add_destination(PARSER, several=True)


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    with closing(connect_all(destinations(options))) as servers:
        if len(servers.servers) == 1:
            return each(options.names, lambda name: _unload(servers.servers[0], name, options))

        def call(server: RemoteServer, name: str) -> None:
            server.call(UNLOAD, name, parameters={"unload_dependents": options.dependents})

        return max(
            joint_control.run(servers, name, "unloaded", functools.partial(call, name=name)) for name in options.names
        )


def _unload(server: RemoteServer, name: str, options: Namespace) -> str:
    before = index(server)
    choose_rows(before, [name])  # servers accept unknown names
    server.call(UNLOAD, name, parameters={"unload_dependents": options.dependents})
    gone = find_unloaded(name, before, index(server), dependents=options.dependents)
    if not gone:
        return f"{name}: unloaded"
    why = "" if options.dependents else f", which need{'s' * (len(gone) == 1)} it"
    return f"{name}: unloaded, and with it {', '.join(gone)}{why}"


def find_unloaded(
    name: str, before: Sequence[IndexRow], after: Sequence[IndexRow], *, dependents: bool = False
) -> list[str]:
    """Return the other models that an unload call removed, from the index before and after it.

    Without `dependents` these are ensembles that need the model, and the reason of their state says so once they have
    finished their requests. What other clients unloaded meanwhile is not among them.
    """
    served = {row.model for row in before if row.state == _READY}
    still = {row.model for row in after if row.state == _READY}
    rows = (row for row in after if row.model in served - still - {name})
    return sorted({row.model for row in rows if dependents or row.state == _UNLOADING or _NEEDS in row.reason})


_READY, _UNLOADING = LifecycleState.READY.name, LifecycleState.UNLOADING.name
_NEEDS = " depends on "
