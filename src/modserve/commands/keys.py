"""``modserve keys``: the file of keys, with which callers have access to a server."""

import json
import os
import re
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from modserve.access import key_file
from modserve.access.identity import KINDS, kinds
from modserve.access.key_file import read_time
from modserve.core.errors import ModserveError

from .syntax import UsageError, add_json, option, parser
from .terminal import table

VARIABLE = "MODSERVE_AUTH_FILE"
_FILE = "keys.yaml"
_DEFAULT_SCOPE = "*=infer,read"
_SPAN = re.compile(r"(\d{1,5})([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

PARSER = parser(
    "keys",
    "Adds, lists, revokes and rotates keys in a file for 'modserve serve --auth-file'. A running server follows the "
    f"changes of its file, which {VARIABLE} may name as well.\n"
    "The secret of a key is printed once, and is not in the file.",
    "  modserve keys add alice --scope 'resnet*=infer,read' --expires 90d\n"
    "  modserve keys add deploy --tenant ops --scope '*=read,control'\n"
    "  modserve keys list\n  modserve keys rotate alice --keep 24h\n  modserve keys revoke alice",
    "0 done, 1 not done (the reason is printed), 2 wrong command line",
)
PARSER.add_argument("action", choices=("add", "list", "revoke", "rotate"), help="What to do.")
PARSER.add_argument("name", nargs="?", default="", metavar="NAME", help="Name of the key.")
option(PARSER, "--file FILE", f"The file of keys. [default: {_FILE}]")
option(
    PARSER, "--tenant NAME", "Who is behind the key: keys of one tenant share its limits. [default: NAME of the key]"
)
option(
    PARSER,
    "--scope PATTERN=KIND,…",
    f"What the key may do with models like PATTERN: some of {', '.join(KINDS)}; may be repeated. "
    f"[default: {_DEFAULT_SCOPE}]",
    action="append",
    default=[],
)
option(PARSER, "--expires TIME", "When the key ends: 2030-01-31, 2030-01-31T12:00Z, or a span from now on such as 90d.")
option(PARSER, "--keep TIME", "How long the secret before 'rotate' may still be used. [default: not at all]")
add_json(PARSER)


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    path = Path(options.file or os.environ.get(VARIABLE) or _FILE)
    if options.action == "list":
        return _list(path, options)
    if not options.name:
        raise UsageError(f"'keys {options.action}' needs the name of a key")
    if options.action == "add":
        scopes, expires = scopes_of(options.scope or [_DEFAULT_SCOPE]), _time(options.expires, "--expires")
        return _tell(path, options, lambda each: key_file.add(each, options.name, scopes, options.tenant, expires))
    if options.action == "rotate":
        until = _time(options.keep, "--keep")
        return _tell(path, options, lambda each: key_file.rotate(each, options.name, until))

    def revoke(document: key_file.Document) -> str:
        key_file.revoke(document, options.name)
        return ""

    key_file.change(path, revoke)
    print(f"{options.name}: revoked in {path}")
    return 0


def _tell(path: Path, options: Namespace, change: key_file.Change) -> int:
    secret = key_file.change(path, change)
    if options.json:
        print(json.dumps({"name": options.name, "secret": secret, "file": str(path)}, indent=2))
    else:
        print(f"{options.name}: written to {path}. The secret, which is not shown again:\n{secret}")
    return 0


def _list(path: Path, options: Namespace) -> int:
    if options.name:
        raise UsageError(f"unexpected argument: {options.name}")
    rows = key_file.rows_of(key_file.load(path))
    head = ("name", "tenant", "scopes", "expires", "state")
    if options.json:
        print(json.dumps([dict(zip(head, row, strict=True)) for row in rows], indent=2))
    elif rows:
        print("\n".join(table(head, rows)))
    else:
        print(f"there are no keys in {path}; 'modserve keys add NAME' makes one")
    return 0


def scopes_of(texts: Sequence[str]) -> dict[str, list[str]]:
    """Read ``PATTERN=KIND,…``. Raises UsageError."""
    scopes: dict[str, list[str]] = {}
    for text in texts:
        pattern, equals, words = text.rpartition("=")
        if not (equals and pattern and words):
            raise UsageError(f"option '--scope': expected PATTERN=KIND,… such as 'resnet*=infer,read', got: {text}")
        try:
            kinds(words.split(","), "option '--scope'")
        except ModserveError as error:
            raise UsageError(error.message) from None
        scopes.setdefault(pattern, []).extend(words.split(","))
    return scopes


def _time(text: str, name: str) -> float | None:
    """Read a time as in a file of keys, or a span from now on; return seconds since 1970. Raises UsageError."""
    if not text:
        return None
    now, span = time.time(), _SPAN.fullmatch(text)
    try:
        seconds = now + int(span[1]) * _UNITS[span[2]] if span is not None else read_time(text, "")
    except ModserveError:
        raise UsageError(f"option '{name}': expected 2030-01-31, 2030-01-31T12:00Z or 90d, got: {text}") from None
    if seconds <= now:
        raise UsageError(f"option '{name}': expected a time in the future, got: {text}")
    return seconds
