"""``modserve drain``: take running servers out of service, and wait until they have finished accepted requests."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from modserve.client.transport import DRAIN

from .destination import destinations
from .remote_server import RemoteServer
from .server_set import Outcome, connect_all, failure_text, failure_verb
from .syntax import UsageError, add_destination, parser
from .terminal import duration, indent_lines, table

PARSER = parser(
    "drain",
    "Takes a running server out of service for good, and waits until it has finished all accepted requests.\n"
    "The server is not ready from then on, goes on for --shutdown-delay-secs, and then takes nothing new.\n"
    "SIGTERM ends it. Without keys, this works only on the server's own machine.\n"
    "Several servers are drained at the same time, each whatever becomes of the others.",
    "  modserve drain\n  modserve drain --url http://localhost:8000 --timeout 60\n"
    "  modserve drain --url http://10.0.0.11:8000,http://10.0.0.12:8000",
    "0 all drained, 1 requests are still in flight, or a server cannot be reached, 2 wrong command line",
)
add_destination(PARSER, 600.0, several=True)


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    places = destinations(options)
    for place in places:
        if place.address.over_grpc:
            raise UsageError(
                f"option '--url': this call is HTTP, and {place.address} is not; expected http://HOST:PORT or "
                "https://HOST:PORT"
            )
    with closing(connect_all(places)) as servers:
        outcomes = servers.call(_drain)
    if len(outcomes) == 1:
        print(_text(outcomes[0].value))
    else:
        print("\n".join(lines(outcomes)))
    return int(not all(each.error is None and each.value["drained"] for each in outcomes))


def _drain(server: RemoteServer) -> Any:
    return server.call(DRAIN)


def lines(outcomes: Sequence[Outcome[Any]]) -> Iterator[str]:
    """Yield a row for each of several servers, and below it why one did not take the call."""
    rows = [
        (each.url, _text(each.value) if each.error is None else f"not drained: it {failure_verb(each.error)}")
        for each in outcomes
    ]
    head, rule, *body = table(("server", "outcome"), rows)
    yield head
    yield rule
    for text, each in zip(body, outcomes, strict=True):
        yield text
        if each.error is not None:
            yield from indent_lines(failure_text(each.error, each.url))


def _text(report: Any) -> str:
    """Return the result of one server's drain as text."""
    if report["drained"]:
        return f"drained, after {duration(report['seconds'])}"
    left = ", ".join(f"{count} of model '{name}'" for name, count in sorted(report["in_flight"].items()))
    return f"not drained: --exit-timeout-secs is over, and in flight are {left or 'streams without a request'}"
