"""Write the tables of options in docs/operations.md anew, from the settings. tests/unit/test_docs.py compares them."""

from pathlib import Path

from modserve.settings import OPTIONS

PAGE = Path(__file__).parents[1] / "docs" / "operations.md"
BEGIN = "<!-- The tables of options are written by scripts/option_tables.py. -->\n"
END = "<!-- End of the tables. -->\n"


def tables() -> str:
    """The options by section, with their defaults and their help."""
    lines = []
    for option in OPTIONS.values():
        if option.section:
            lines += ["", f"| {option.section} | default | |", "|---|---|---|"]
        name = f"--{option.name} {option.value}".replace("|", "\\|")
        lines.append(f"| `{name}` | {option.default_in_words} | {option.help} |")
    return "\n".join([*lines, "", ""])


def renewed(page: str) -> str:
    """The page with the tables as they should be."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{tables()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
