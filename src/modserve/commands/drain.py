"""``modserve drain``: take a running server out of service, and wait until it has finished what it had accepted."""

from argparse import Namespace
from contextlib import closing

from modserve.client.transport import DRAIN

from .destination import destination
from .remote_server import connect
from .syntax import UsageError, add_destination, parser
from .terminal import duration

PARSER = parser(
    "drain",
    "Takes a running server out of service for good, and waits until it has finished all accepted requests.\n"
    "The server is not ready from then on, goes on for --shutdown-delay-secs, and then takes nothing new.\n"
    "SIGTERM ends it. Without keys, this works only on the server's own machine.",
    "  modserve drain\n  modserve drain --url http://localhost:8000 --timeout 60",
    "0 drained, 1 requests are still in flight, or the server cannot be reached, 2 wrong command line",
)
add_destination(PARSER, 600.0)


def work(options: Namespace) -> int:
    """Runs the command; returns the exit code."""
    place = destination(options)
    if place.address.over_grpc:
        raise UsageError("option '--url': this call is HTTP; expected http://HOST:PORT or https://HOST:PORT")
    with closing(connect(place)) as server:
        report = server.call(DRAIN)
    if report["drained"]:
        print(f"drained, after {duration(report['seconds'])}")
        return 0
    left = ", ".join(f"{count} of model '{name}'" for name, count in sorted(report["in_flight"].items()))
    print(f"not drained: --exit-timeout-secs is over, and in flight are {left or 'streams without a request'}")
    return 1
