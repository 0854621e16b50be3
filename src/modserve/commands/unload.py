"""``modserve unload MODEL``: take a model out of a running server."""

import json
from argparse import Namespace
from collections.abc import Sequence

from .access import access
from .facts import index
from .http_calls import HttpCalls, quoted
from .models import chosen
from .syntax import add_access, parser, run
from .tables import each

PARSER = parser(
    "unload",
    "Takes models out of a running server, which has to run with --model-control-mode explicit.\n"
    "Requests that it has accepted are still responded to.",
    "  modserve unload simple\n  modserve unload digits_pipeline --dependents",
    "0 unloaded, 1 not unloaded, with the reason, 2 a wrong command line",
)
PARSER.add_argument("names", nargs="+", metavar="MODEL", help="Their names.")
PARSER.add_argument("--dependents", action="store_true", help="Of an ensemble: also the models that only it uses.")
add_access(PARSER)
HELP = PARSER.format_help()


def main(words: Sequence[str]) -> int:
    """The command; `words` are those behind its name. Returns the exit code."""
    return run(PARSER, words, _work)


def _work(options: Namespace) -> int:
    body = json.dumps({"parameters": {"unload_dependents": options.dependents}}).encode()
    calls = HttpCalls(access(options))

    def unload(name: str) -> str:
        chosen(index(calls), [name])  # since a server has nothing against the name of no model
        calls.call("POST", f"/v2/repository/models/{quoted(name)}/unload", body)
        return f"{name}: unloaded"

    try:
        return each(options.names, unload)
    finally:
        calls.close()
