"""Write the options, commands, fields and errors in docs/ from the source; tests/project/test_docs.py compares."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from modserve.access.identity import KINDS
from modserve.access.permissions import PATH_NEEDS, RPC_NEEDS, CallNeed, CallScope
from modserve.commands.terminal import COMMANDS
from modserve.config.features.unsupported import SETTINGS
from modserve.core.errors import Code
from modserve.protocol.failures import DEADLINE, NO_MEMORY, PERMISSION_DENIED, STATUS, TOO_MANY, UNAUTHENTICATED
from modserve.protocol.restricted import CATEGORIES, METHOD_CATEGORY, PATH_CATEGORY, RPC_CATEGORY
from modserve.settings import OPTIONS
from modserve.settings.options import Option

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "options.md"
COMMANDS_PAGE = DOCS / "commands.md"
CONFIGURATION = DOCS / "configuration.md"
PROTOCOL = DOCS / "protocol.md"
ACCESS = DOCS / "access.md"
PAGES = (PAGE, COMMANDS_PAGE, CONFIGURATION, PROTOCOL, ACCESS)
BEGIN = "<!-- options: scripts/option_tables.py -->\n"
BEGIN_FIELDS = "<!-- fields: scripts/option_tables.py -->\n"
BEGIN_ERRORS = "<!-- The table of errors is written by scripts/option_tables.py. -->\n"
BEGIN_COMMANDS = "<!-- commands: scripts/option_tables.py -->\n"
BEGIN_CALLS = "<!-- The table of calls is written by scripts/option_tables.py. -->\n"
END = "<!-- End of the tables. -->\n"
CELL_CALLS = 12
"""Most calls in a cell."""

MORE = {
    "access-log": "logs.md",
    "admin-address": "access.md#an-admin-port",
    "audit-log": "logs.md#audit-log",
    "auth-file": "access.md#keys",
    "cache-config": "configuration.md#response-cache",
    "default-backend": "engines/auto.md",
    "execution-timeout-secs": "limits.md#executions-and-requests-in-flight",
    "http-client-timeout": "limits.md",
    "http-restricted-api": "access.md#restricting-calls",
    "metrics-config": "metrics.md",
    "model-control-mode": "repositories.md#model-control",
    "model-memory-limit": "memory.md",
    "model-repository": "repositories.md",
    "orca": "operations.md#load-reports",
    "platform": "platforms.md",
    "python-model": "python-models.md#functions",
    "rate-limit": "configuration.md#rate-limiter",
    "record": "logs.md#records",
    "trace-config": "logs.md#traces",
    "warmup": "configuration.md#warm-up",
    "workers": "operations.md#workers",
}
"""Options with a page that says more."""

MORE_COMMANDS = {
    "bench": "bench.md",
    "chat": "#chat",
    "check": "troubleshooting.md#repository-check",
    "completion": "#completion",
    "config": "configuration.md",
    "doctor": "#doctor",
    "drain": "operations.md#drain",
    "engines": "engines.md",
    "infer": "#infer",
    "init": "#init",
    "keys": "access.md#keys",
    "load": "#load-unload",
    "models": "#status-models",
    "ray": "servers.md#ray",
    "replay": "logs.md#replay",
    "rollout": "servers.md#rollout",
    "status": "#status-models",
    "top": "#top",
    "tune": "bench.md#tuning-modserve-tune",
    "unload": "#load-unload",
}
"""Where the documentation has more about a command."""

ERRORS = {
    "wrong request": STATUS[Code.INVALID_ARG],
    "not found": STATUS[Code.NOT_FOUND],
    "not ready, queue full, waited too long": STATUS[Code.UNAVAILABLE],
    "too busy, with `scheduling.overload_status` 429": TOO_MANY,
    "no memory for the request": NO_MEMORY,
    "deadline passed": DEADLINE,
    "unsupported": STATUS[Code.UNSUPPORTED],
    "the model failed": STATUS[Code.INTERNAL],
    "already exists": STATUS[Code.ALREADY_EXISTS],
    "cancelled": STATUS[Code.CANCELLED],
    "no key, or none that is valid": UNAUTHENTICATED,
    "a key without the scope": PERMISSION_DENIED,
}


def options() -> str:
    """The options by section, with defaults and help. Those that HTTP and gRPC share have a section of their own."""
    shared = pairs()
    elsewhere = {option.name for pair in shared for option in pair}
    lines = []
    for option in OPTIONS.values():
        if option.section == "HTTP":
            lines += ["", "## HTTP and gRPC", "", *(item(of_both(http), http, grpc) for http, grpc in shared)]
        if option.section:
            lines += ["", f"## {heading(option.section)}", ""]
        if option.name not in elsewhere and not alias_of(option):
            aliases = [other for other in OPTIONS.values() if alias_of(other) == option.name]
            lines.append(item(option.help, option, *aliases))
    return "\n".join([*lines, "", ""])


def heading(section: str) -> str:
    """A section's name as a heading; protocols keep their spelling."""
    return section if section == "gRPC" else section[0].upper() + section[1:]


def alias_of(option: Option) -> str:
    """The name of the option that an option is the same as; empty if it is one of its own."""
    match = re.fullmatch(r"Same as --([\w-]+)\.", option.help)
    return match[1] if match else ""


def item(meaning: str, *named: Option) -> str:
    """An item for options of one meaning, with a value behind the last name. A switch has none, and is off by default.

    An ellipsis behind the value stands for the help's "repeatable".
    """
    option = named[0]
    names = [f"--{each.name}" for each in named]
    meaning, repeatable = re.subn(r"[;.] repeatable\.$", ".", meaning, flags=re.IGNORECASE)
    if option.value != "true|false":
        names[-1] += f" {option.value}" + "…" * repeatable
    cells = [f"`{name}`" for name in names]
    if option.name in MORE:
        cells[0] = f"[{cells[0]}]({MORE[option.name]})"
    is_off = option.value == "true|false" and option.default_in_words == "false"
    default = f" ({option.default_in_words})" if option.default_in_words and not is_off else ""
    return f"- {', '.join(cells)}{default}: {meaning}"


def pairs() -> list[tuple[Option, Option]]:
    """Options of HTTP and of gRPC that differ in nothing but the protocol."""
    grpc = {option.paths[0][1]: option for option in OPTIONS.values() if option.paths[0][0] == "grpc"}
    return [
        (option, other)
        for option in OPTIONS.values()
        if option.paths[0][0] == "http" and (other := grpc.get(option.paths[0][1]))
        if other.help in (option.help, option.help.replace("HTTP", "gRPC"))
        if other.default_in_words == option.default_in_words
    ]


def of_both(http: Option) -> str:
    """The help of a pair: where only HTTP is named, either protocol is meant."""
    return http.help if "gRPC" in http.help else http.help.replace("HTTP", "HTTP / gRPC")


def fields() -> str:
    """The fields of a configuration that are not acted on, by effect; the messages have the reasons."""
    names: dict[str, list[str]] = {"Errors": [], "Warnings": []}
    for setting in SETTINGS:
        engines = ", ".join(sorted(setting.supported_by))
        exception = f" (not for {engines})" if engines else ""
        names["Errors" if setting.fails else "Warnings"].append(f"`{setting.path}`{exception}")
    return "\n".join(["", *(f"- **{effect}**: {', '.join(paths)}" for effect, paths in names.items()), "", ""])


def errors() -> str:
    """The kinds of failures, with their statuses over both protocols."""
    rows = [f"| {kind} | {spelling.http} | {spelling.grpc_name} |" for kind, spelling in ERRORS.items()]
    return "\n".join(["", "| kind | HTTP | gRPC |", "|---|---|---|", *rows, "", ""])


def commands() -> str:
    """The commands by section, as in the help of the program."""
    lines = []
    for name, command in COMMANDS.items():
        if command.section:
            lines += ["", f"{command.section[0].upper()}{command.section[1:]}:", ""]
        words = f" `{command.words}`" if command.words else ""
        lines.append(f"- [`{name}`]({MORE_COMMANDS[name]}){words}: {command.summary}")
    return "\n".join([*lines, "", ""])


class CallRow(NamedTuple):
    """A row of the table of calls: calls of one category that need the same."""

    category: str
    need: CallNeed

    @property
    def scope(self) -> str:
        if self.need.reach in (CallScope.OPEN, CallScope.HEALTH, CallScope.ANY):
            return {CallScope.OPEN: "none", CallScope.HEALTH: "none: health", CallScope.ANY: "any key"}[self.need.reach]
        return f"{self.need.kind}: {self.need.reach.value}"

    @property
    def rank(self) -> tuple[int, int, int]:
        return (
            ["", *CATEGORIES].index(self.category),
            KINDS.index(self.need.kind),
            list(CallScope).index(self.need.reach),
        )


def is_variant(path: str) -> bool:
    """Whether the same holds for a shorter path."""
    shorter = path.removeprefix("/openai")
    if shorter != path:
        return PATH_CATEGORY.get(shorter) == PATH_CATEGORY[path]
    return re.search(r"\{(version|label|repository)\}|sharedmemory/region/", path) is not None


def batched(texts: list[str]) -> Iterator[list[str]]:
    """The texts in lists of nearly equal length, none longer than a cell may be."""
    count = -(-len(texts) // CELL_CALLS)
    for place in range(count):
        yield texts[place * len(texts) // count : (place + 1) * len(texts) // count]


def calls() -> str:
    """Every path and RPC by its category and what it needs, without variants for which the same holds."""
    paths: dict[CallRow, list[str]] = {}
    rpcs: dict[CallRow, list[str]] = {}
    for path, of_path in PATH_NEEDS.items():
        if is_variant(path):
            continue
        for method, each in {"": of_path.usual, **of_path.others}.items():
            text = f"`{method} {path}`" if method else f"`{path}`"
            category = METHOD_CATEGORY.get((method, path)) or PATH_CATEGORY.get(path, "")
            paths.setdefault(CallRow(category, each), []).append(text)
    for rpc, each in RPC_NEEDS.items():
        rpcs.setdefault(CallRow(RPC_CATEGORY.get(rpc, ""), each), []).append(f"`{rpc}`")
    rows = [
        f"| {row.category} | {row.scope} | {', '.join(each)} |"
        for row in sorted({*paths, *rpcs}, key=lambda row: row.rank)
        for each in batched([*paths.get(row, []), *rpcs.get(row, [])])
    ]
    return "\n".join(["", "| category | scope | HTTP and gRPC |", "|---|---|---|", *rows, "", ""])


TABLES = (
    (BEGIN, options),
    (BEGIN_COMMANDS, commands),
    (BEGIN_FIELDS, fields),
    (BEGIN_ERRORS, errors),
    (BEGIN_CALLS, calls),
)


def renewed(page: str) -> str:
    """A page with the tables as they should be."""
    for begin, write in TABLES:
        before, marker, rest = page.partition(begin)
        if marker:
            page = f"{before}{begin}{write()}{END}{rest.partition(END)[2]}"
    return page


if __name__ == "__main__":
    for file in PAGES:
        file.write_text(renewed(file.read_text("utf-8")), "utf-8")
