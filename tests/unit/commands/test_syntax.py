"""The words of a command: options, mistakes, and what helps."""

import argparse
from collections.abc import Callable, Sequence

import pytest

from modserve.commands import syntax
from modserve.commands.destination import destination
from modserve.commands.errors import RefusedError
from modserve.core.errors import invalid


@pytest.fixture
def made() -> syntax.Parser:
    made = syntax.parser("try", "Tries it.", "  modserve try", "0 tried")
    made.add_argument("names", nargs="*", metavar="NAME")
    syntax.add_watch(made)
    syntax.add_json(made)
    syntax.add_destination(made, 7)
    return made


def test_options_stand_anywhere(made: syntax.Parser) -> None:
    options = made.read(["a", "--url", "host", "b=-1", "--timeout=3", "c"])
    assert (options.names, options.url, options.timeout, options.watch) == (["a", "b=-1", "c"], "host", 3, None)
    assert made.read(["--watch", "--json"]).watch == 2
    assert made.read(["--watch", "0.5"]).watch == 0.5


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--ulr", "x"], "unknown option '--ulr'; did you mean '--url'?"),
        (
            ["--nothing=1"],
            "unknown option '--nothing'; those of this command: --help, --watch, --json, --url, --header",
        ),
        (["--url"], "option '--url' requires a value"),
        (["caf\udce9"], r"argument 'caf\udce9' is not UTF-8"),
        (["--url=\ud800"], r"argument '--url=\ud800' is not UTF-8"),
        (["--timeout", "0"], "option '--timeout': expected a number above 0, got: 0"),
        (["--timeout", "soon"], "option '--timeout': expected a number above 0, got: soon"),
    ],
)
def test_mistakes(made: syntax.Parser, capsys: pytest.CaptureFixture[str], words: list[str], text: str) -> None:
    assert syntax.run(made, words, lambda options: 0) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"modserve: {text}")
    assert said.endswith("\nmodserve: see 'modserve try --help'\n")


def test_a_word_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert syntax.run(syntax.parser("try", "Tries it."), ["it"], lambda options: 0) == 2
    assert capsys.readouterr().err.startswith("modserve: unexpected argument: it\n")


def test_help(made: syntax.Parser) -> None:
    text = made.format_help()
    assert text.startswith("usage: modserve try ")
    assert "[default: http://localhost:8000] [env: MODSERVE_URL]" in text
    assert "[default: 7]" in text
    assert text.endswith("\nexit codes: 0 tried\n\nexamples:\n  modserve try\n")


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def work(options: argparse.Namespace) -> int:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (invalid("it is wrong"), 1, "modserve: it is wrong\n"),
        (RefusedError("no", "--header\nhelps"), 1, "modserve: no\nmodserve: --header\nmodserve: helps\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_failures(
    made: syntax.Parser, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    assert syntax.run(made, [], raising(error)) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("words", "variable", "url"),
    [
        ([], "", "http://localhost:8000"),
        ([], "http://there:1", "http://there:1"),
        (["--url=http://here:2"], "http://there:1", "http://here:2"),
    ],
)
def test_where_the_server_is(
    made: syntax.Parser, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], variable: str, url: str
) -> None:
    monkeypatch.setenv("MODSERVE_URL", variable)
    assert str(destination(made.read(words)).address) == url


def test_an_address_longer_than_a_line_of_help_stays_whole() -> None:
    address = f"https://example.org/{'a' * 100}"
    assert f"\n{address}\n" in syntax.parser("try", f"See {address} for more.").format_help()
