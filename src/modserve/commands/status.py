"""``modserve status``: shows whether a server is ready, and its counts."""

import json
from argparse import Namespace
from contextlib import closing

from . import several_status
from .destination import destinations
from .server_set import ServerSet, connect_all
from .status_report import document, lines, server_status
from .syntax import add_destination, add_json, add_watch, parser
from .terminal import again, takes_colours

PARSER = parser(
    "status",
    "Shows whether a server is ready, which models are in the way and why, and request counts.\n"
    "Of several servers, it shows a row for each and their sums.",
    "  modserve status\n  modserve status --url http://10.0.0.7:8000 --watch\n"
    "  modserve status --url dns:///modserve.svc:8000\n  modserve status --json",
    "0 all ready, 1 not ready or unreachable, 2 wrong command line",
)
add_watch(PARSER)
add_json(PARSER)
add_destination(PARSER, 10.0, several=True)


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    return again(options.watch, lambda: _draw(options))


def _draw(options: Namespace) -> tuple[int, str]:
    """Draw once. A name may stand for other servers the next time."""
    with closing(connect_all(destinations(options))) as servers:
        if len(servers.servers) > 1:
            return _draw_all(servers, options)
        [server] = servers.servers
        status = server_status(server)
        text = (
            json.dumps(document(status, server.url), indent=2)
            if options.json
            else "\n".join(lines(status, server.url, colours=takes_colours()))
        )
        return int(not status.health.ready), text


def _draw_all(servers: ServerSet, options: Namespace) -> tuple[int, str]:
    outcomes = servers.call(server_status)
    text = (
        json.dumps(several_status.document(outcomes), indent=2)
        if options.json
        else "\n".join(several_status.lines(outcomes, colours=takes_colours()))
    )
    return int(not several_status.all_ready(outcomes)), text
