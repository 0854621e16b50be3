"""The blocks of a page: the commands in them with what is shown below each, and the files that they define."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SHELLS = ("sh", "bash", "console")
PAGES = [
    "README.md",
    "benchmarks/results/tables.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")),
]

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?:#|//) (\S+\.(?:py|yaml|yml|json|pbtxt|toml))\n")


class Block(NamedTuple):
    """A fenced block; `output`: the text of a block without a language, or of JSON, right below one for a shell."""

    line: int
    language: str
    text: str
    output: str | None = None

    @property
    def file(self) -> str:
        """The name in the first line of a block that is a file; empty if it is none."""
        match = _FILE.match(self.text) if self.language not in SHELLS else None
        return match[1] if match else ""


class Step(NamedTuple):
    """A command; `shown`: what the page shows below it, None where it shows the output of no command."""

    line: int
    command: str
    shown: str | None


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page that are no output."""
    matches = list(_BLOCK.finditer(text))
    position = 0
    while position < len(matches):
        match = matches[position]
        position += 1
        output = None
        if match[2] in SHELLS and match[2] != "console" and position < len(matches):
            below = matches[position]
            if below[2] in ("", "json") and not text[match.end() : below.start()].strip():
                output = _unindented(below)
                position += 1
        yield Block(text.count("\n", 0, match.start()) + 1, match[2], _unindented(match), output)


def _unindented(match: re.Match[str]) -> str:
    return re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)


def steps(block: Block) -> list[Step]:
    """The commands of a block for a shell."""
    if block.language != "console":
        commands = list(_commands(block.text))
        alone = len(commands) == 1
        return [Step(block.line + line, command, block.output if alone else None) for line, command in commands]
    console = []
    shows = False
    for match in re.finditer(r"^\$ (.*?)(?=^\$ |\Z)", block.text, re.MULTILINE | re.DOTALL):
        _line, command = next(_commands(match[1]))
        shown = match[1].removeprefix(command).lstrip("\n")
        shows = shows or bool(shown)
        console.append(Step(block.line + 1 + block.text.count("\n", 0, match.start()), command, shown))
    return console if shows else [step._replace(shown=None) for step in console]


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """Line number and text of each command: one goes on while a quote is open, or where its line says so."""
    command, begin = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        if not command and (not line.strip() or line.startswith("#")):
            continue
        if not command:
            begin = number
        command += line
        if _complete(command):
            yield begin, command
            command = ""
        else:
            command += "\n"
    assert not command, f"a command without an end: {command}"


def _complete(command: str) -> bool:
    if re.search(r"(\\|\||&&)$", command):
        return False
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


_DURATION = re.compile(r"\b\d+(?:\.\d+)? ?(?:ns|us|µs|ms|s)\b")
_NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*")
_ADVICE = re.compile(r"^.+: \d+ % of the time is spent .+\n?", re.MULTILINE)
_CHECK = re.compile(r"^(?:ok|warning|problem) +(\S+(?: \S+)*)  |^(…)$", re.MULTILINE)


def exact(text: str) -> str:
    """A text but for durations and the width of columns."""
    text = re.sub(r"-{3,}", "---", re.sub(r" {2,}", "  ", _DURATION.sub("0 s", text.strip())))
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def without_figures(text: str) -> str:
    """A text but for its numbers, of which a table may have none, for plurals, and for advice from these numbers."""
    text = _NUMBER.sub("0", exact(_ADVICE.sub("", text)).replace("0 s ago", "0").replace("0 s", "0"))
    text = re.sub(r"(?<=  )-(?= |$)", "0", text, flags=re.MULTILINE)
    return re.sub(r"\b0 (\w+)s\b", r"0 \1", text)


def rows(text: str) -> str:
    """The lines of a table that is sorted by its figures."""
    return "\n".join(sorted(without_figures(text).splitlines()))


def checks(text: str) -> str:
    """What `modserve doctor` looks at, without what it sees."""
    return "\n".join(name or others for name, others in _CHECK.findall(text))


def alike(printed: str, shown: str, normal: Callable[[str], str] = exact) -> bool:
    """Whether what was printed is what is shown, both made `normal`; ``…`` is anything."""
    return re.fullmatch(re.escape(normal(shown)).replace("…", ".*"), normal(printed), re.DOTALL) is not None
