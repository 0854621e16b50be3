"""Write the tables of options, fields and errors in docs/ from the source; tests/project/test_docs.py compares."""

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

from modserve.access.calls import PATH_NEEDS, RPC_NEEDS, CallNeed, CallScope
from modserve.access.identity import KINDS
from modserve.config.features.unsupported import SETTINGS
from modserve.core.errors import Code
from modserve.protocol.failures import DEADLINE, NO_MEMORY, PERMISSION_DENIED, STATUS, TOO_MANY, UNAUTHENTICATED
from modserve.protocol.restricted import CATEGORIES, METHOD_CATEGORY, PATH_CATEGORY, RPC_CATEGORY
from modserve.settings import OPTIONS
from modserve.settings.options import Option
from modserve.settings.sources import WITHOUT_EFFECT

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "options.md"
CONFIGURATION = DOCS / "configuration.md"
PROTOCOL = DOCS / "protocol.md"
ACCESS = DOCS / "access.md"
PAGES = (PAGE, CONFIGURATION, PROTOCOL, ACCESS)
BEGIN = "<!-- The tables of options are written by scripts/option_tables.py. -->\n"
BEGIN_WITHOUT = "<!-- The table of options without effect is written by scripts/option_tables.py. -->\n"
BEGIN_FIELDS = "<!-- The table of fields is written by scripts/option_tables.py. -->\n"
BEGIN_ERRORS = "<!-- The table of errors is written by scripts/option_tables.py. -->\n"
BEGIN_CALLS = "<!-- The table of calls is written by scripts/option_tables.py. -->\n"
END = "<!-- End of the tables. -->\n"

MORE = {
    "access-log": "logs.md",
    "admin-address": "access.md#an-admin-port",
    "audit-log": "logs.md#audit-log",
    "auth-file": "access.md#keys",
    "cache-config": "configuration.md#response-cache",
    "default-backend": "engines/auto.md",
    "execution-timeout-secs": "tenants.md",
    "http-client-timeout": "connections.md",
    "http-restricted-api": "access.md#restricting-calls",
    "metrics-config": "metrics.md",
    "model-control-mode": "repositories.md#model-control",
    "model-memory-limit": "memory.md",
    "model-repository": "repositories.md",
    "orca": "operations.md",
    "platform": "platforms.md",
    "python-model": "python-functions.md",
    "rate-limit": "configuration.md#rate-limiter",
    "record": "record.md",
    "trace-config": "tracing.md",
    "warmup": "configuration.md#warm-up",
    "workers": "workers.md",
}
"""Options with a page that says more."""

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


def tables() -> str:
    """The options by section, with their defaults and their help; those that HTTP and gRPC share have a table first."""
    shared = pairs()
    elsewhere = {option.name for pair in shared for option in pair}
    lines = []
    for option in OPTIONS.values():
        if option.section == "HTTP":
            lines += head("HTTP and gRPC")
            lines += [
                row(http, f"`--{http.name}`, `--{grpc.name} {grpc.value}`", of_both(http)) for http, grpc in shared
            ]
        if option.section:
            lines += head(option.section)
        if option.name not in elsewhere:
            lines.append(row(option, f"`--{option.name} {option.value}`", option.help))
    return "\n".join([*lines, "", ""])


def head(section: str) -> list[str]:
    return ["", f"| {section} | default | meaning |", "|---|---|---|"]


def row(option: Option, names: str, meaning: str) -> str:
    names = names.replace("|", "\\|")
    if option.name in MORE:
        meaning += f" [More]({MORE[option.name]})"
    return f"| {names} | {option.default_in_words} | {meaning} |"


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


def without_effect() -> str:
    """tritonserver's options that are accepted and do nothing; the log has the reasons."""
    names = ", ".join(f"`--{name}`" for name in WITHOUT_EFFECT)
    return textwrap.fill(names, 140, break_on_hyphens=False).join(["\n", ".\n\n"])


def fields() -> str:
    """The fields of a configuration that are not acted on, by effect; the messages have the reasons."""
    names: dict[str, list[str]] = {}
    for setting in sorted(SETTINGS, key=lambda setting: not setting.fails):
        but = ", ".join(sorted(setting.supported_by))
        exception = f" (not for {but})" if but else ""
        names.setdefault("error" if setting.fails else "warning", []).append(f"`{setting.path}`{exception}")
    rows = [f"| {effect} | {', '.join(paths)} |" for effect, paths in names.items()]
    return "\n".join(["", "| effect | fields |", "|---|---|", *rows, "", ""])


def errors() -> str:
    """The kinds of failures, with their statuses over both protocols."""
    rows = [f"| {kind} | {spelling.http} | {spelling.grpc_name} |" for kind, spelling in ERRORS.items()]
    return "\n".join(["", "| kind | HTTP | gRPC |", "|---|---|---|", *rows, "", ""])


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
        f"| {row.category} | {row.scope} | {', '.join(paths.get(row, []))} | {', '.join(rpcs.get(row, []))} |"
        for row in sorted({*paths, *rpcs}, key=lambda row: row.rank)
    ]
    return "\n".join(["", "| category | scope | HTTP | gRPC |", "|---|---|---|---|", *rows, "", ""])


TABLES = (
    (BEGIN, tables),
    (BEGIN_WITHOUT, without_effect),
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
