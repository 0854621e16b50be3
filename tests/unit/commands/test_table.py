"""The table of commands, and what it says of each."""

from pathlib import Path

import pytest

from modserve import cli
from modserve.commands.terminal import COMMANDS, module


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_module_and_a_line(name: str) -> None:
    command = module(name)
    assert callable(command.work)
    text = command.PARSER.format_help()
    assert text.startswith(f"usage: modserve {name}")
    assert max(map(len, text.splitlines())) <= 100
    summary = COMMANDS[name].summary
    assert summary[0].isupper()
    assert summary.endswith(".")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_of_a_command(name: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "nosuch", option]) == 0
    assert capsys.readouterr().out == f"{module(name).PARSER.format_help().rstrip()}\n"


def test_the_first_command_begins_a_section() -> None:
    assert next(iter(COMMANDS.values())).section


def test_the_documentation_has_all_commands() -> None:
    pages = (Path(__file__).parents[3] / "docs").rglob("*.md")
    text = "".join(page.read_text("utf-8") for page in pages)
    assert [name for name in COMMANDS if f"modserve {name}" not in text] == []
