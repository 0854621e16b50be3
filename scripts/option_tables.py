"""Write the tables of options and fields in docs/ anew, from the source. tests/unit/test_docs.py compares them."""

from pathlib import Path

from modserve.config.features.unsupported import SETTINGS
from modserve.settings import OPTIONS
from modserve.settings.options import Option
from modserve.settings.triton_options import WITHOUT_EFFECT

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "options.md"
CONFIGURATION = DOCS / "configuration.md"
BEGIN = "<!-- The tables of options are written by scripts/option_tables.py. -->\n"
BEGIN_WITHOUT = "<!-- The table of options without effect is written by scripts/option_tables.py. -->\n"
BEGIN_FIELDS = "<!-- The table of fields is written by scripts/option_tables.py. -->\n"
END = "<!-- End of the tables. -->\n"


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
    """tritonserver's options that are accepted and do nothing, by the reason."""
    names: dict[str, list[str]] = {}
    for name, why in WITHOUT_EFFECT.items():
        names.setdefault(why, []).append(f"`--{name}`")
    rows = [f"| {', '.join(each)} | {why} |" for why, each in names.items()]
    return "\n".join(["", "| accepted without effect | reason |", "|---|---|", *rows, "", ""])


def fields() -> str:
    """The fields of a configuration that are not acted on."""
    rows = []
    for setting in sorted(SETTINGS, key=lambda setting: not setting.fails):
        verdict = "the model does not load" if setting.fails else "a warning"
        but = ", ".join(sorted(setting.supported_by))
        rows.append(f"| `{setting.path}` | {verdict}{f', except for backend {but}' if but else ''} | {setting.why} |")
    return "\n".join(["", "| field | effect | reason |", "|---|---|---|", *rows, "", ""])


def renewed(page: str) -> str:
    """A page with the tables as they should be."""
    for begin, write in ((BEGIN, tables), (BEGIN_WITHOUT, without_effect), (BEGIN_FIELDS, fields)):
        before, marker, rest = page.partition(begin)
        if marker:
            page = f"{before}{begin}{write()}{END}{rest.partition(END)[2]}"
    return page


if __name__ == "__main__":
    for file in (PAGE, CONFIGURATION):
        file.write_text(renewed(file.read_text("utf-8")), "utf-8")
