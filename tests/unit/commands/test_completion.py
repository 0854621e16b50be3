"""Scripts that complete commands, options and files in a shell."""

import subprocess

import pytest

from modserve import cli
from modserve.commands import completion
from modserve.commands.terminal import COMMANDS
from modserve.settings import OPTIONS


@pytest.fixture(scope="module", params=completion.SHELLS)
def script(request: pytest.FixtureRequest) -> str:
    return completion.script(request.param)


def test_a_script_has_all_options_and_commands(script: str) -> None:
    for option in OPTIONS.values():
        assert option.name in script
        assert option.variable not in script
    for name in ("serve", *COMMANDS, "watch", "metrics-url", "against", "max-batch-size"):
        assert name in script


def test_bash_takes_its_script() -> None:
    words = 'COMP_WORDS=(modserve status --wa); COMP_CWORD=2; _shtab_modserve; echo "${COMPREPLY[@]}"'
    run = subprocess.run(
        ["bash", "-c", f"{completion.script('bash')}\n{words}"], capture_output=True, text=True, timeout=30
    )
    assert (run.stdout.strip(), run.returncode) == ("--watch", 0), run.stderr


@pytest.mark.parametrize("words", [["completion", "zsh"], ["--print-completion", "zsh"], ["--print-completion=zsh"]])
def test_the_command(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert cli.main(words) == 0
    assert capsys.readouterr().out == f"{completion.script('zsh')}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["completion", "csh"], "expected bash, zsh, fish, got: csh"),
        (["completion"], "the following arguments are required: bash|zsh|fish"),
        (["--print-completion"], "the following arguments are required: bash|zsh|fish"),
    ],
)
def test_no_known_shell(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert cli.main(words) == 2
    assert capsys.readouterr().err == f"modserve: {message}\nmodserve: see 'modserve completion --help'\n"
