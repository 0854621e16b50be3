"""The tutorials of docs/tutorials do what they show: programs and commands run, and print what is printed there."""

import io
import re
import shlex
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, chdir, redirect_stdout
from html import unescape
from pathlib import Path

import pytest
import readme_picture
from repositories import EXAMPLES
from server_process import LOADED, ServerProcess, serving, started
from wire import HOST, SECONDS

from modserve import cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
INSTALLING = ("python3 -m venv ", "pip install ", "cp -r /path/to/modserve/model_repository models")
_BLOCKS = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FOLDER = re.compile(r"(^|=)(models|model_repository|shout\.py)\b")
_SECONDS = re.compile(r"\b\d+\.\d+ s\b")


class Reader:
    """Somebody who follows a tutorial in an empty directory. `elsewhere`: the address of the other server it names."""

    def __init__(self, place: Path, running: ExitStack, elsewhere: str = "") -> None:
        self.place = place
        self.elsewhere = elsewhere
        self._running = running
        self._ports: dict[str, int] = {}
        self.printed = ""

    def follow(self, page: Path) -> int:
        """The number of commands that were run. Programs are the blocks that begin with their name."""
        commands = 0
        for language, text in _BLOCKS.findall(page.read_text("utf-8")):
            if language == "python":
                if text.startswith("# "):
                    file = self.place / text.split()[1]
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(text, "utf-8")
                continue
            for command, shown in steps(text):
                if not command.startswith(INSTALLING):
                    assert alike(self._run(command), shown), f"{command}\n{self.printed}"
                    commands += 1
        return commands

    def _here(self, text: str) -> str:
        text = text.replace("http://triton:8000", self.elsewhere)
        return re.sub(r"\blocalhost:(800[012])\b", lambda match: f"{HOST}:{self._ports[match[1]]}", text)

    def _run(self, command: str) -> str:
        """Python's own programs run in this process: engines take seconds to import."""
        words = shlex.split(self._here(command))
        if words[:2] == ["modserve", "serve"] or command.startswith("modserve --"):
            printed = self._serve(words[1:])
        elif words[0] in ("modserve", "python"):
            with redirect_stdout(io.StringIO()) as out, chdir(self.place), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if words[0] == "python":
                    program = self._here(Path(words[1]).read_text("utf-8"))
                    exec(compile(program, words[1], "exec"), {"__name__": "__main__"})
                else:
                    cli.main(words[1:])
            printed = out.getvalue()
        else:
            line = ["sh", "-ec", self._here(command)]
            done = subprocess.run(line, cwd=self.place, capture_output=True, text=True, timeout=SECONDS)
            assert done.returncode == 0, done.stderr
            printed = done.stdout
        self.printed = printed.replace(self.elsewhere or "\0", "http://triton:8000")
        return self.printed

    def _serve(self, words: list[str]) -> str:
        options = [self._here(_FOLDER.sub(rf"\1{self.place}/\2", word)) for word in words if word != "serve"]
        server = self._running.enter_context(started(options=[*options, "--event-loop-warning-ms=0"]))
        server.wait_for(LOADED)
        server.wait_for("^Try it:$")
        self._ports = {"8000": server.http_port, "8001": server.grpc_port, "8002": server.metrics_port}
        lines = [line for line in server.log.splitlines() if not re.match(r"\d{4}-\d\d-\d\dT", line)]
        for port, number in self._ports.items():
            lines = [line.replace(f"0.0.0.0:{number}", f"0.0.0.0:{port}") for line in lines]
        return "\n".join(lines)


def steps(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what is shown below it. Quotes may hold lines of their own."""
    for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = step.splitlines()
        length = next(count for count in range(1, len(lines) + 1) if "\n".join(lines[:count]).count("'") % 2 == 0)
        yield "\n".join(lines[:length]), "\n".join(lines[length:])


def alike(printed: str, shown: str) -> bool:
    """Whether what was printed is what is shown, but for times; ``…`` stands for anything."""
    printed, shown = (_SECONDS.sub("0.000 s", text).strip() for text in (printed, shown))
    return re.fullmatch(re.escape(shown).replace("…", ".*"), printed, re.DOTALL) is not None


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Stands for the server from which somebody comes, which has not all of the examples' backends."""
    with serving(copied(tmp_path_factory.mktemp("triton"))) as server:
        yield server


def copied(place: Path) -> Path:
    """The model repository that the page makes."""
    return Path(shutil.copytree(EXAMPLES, place / "models", ignore=shutil.ignore_patterns("repeat")))


def test_scikit_learn(tmp_path: Path, running: ExitStack) -> None:
    assert Reader(tmp_path, running).follow(TUTORIALS / "scikit-learn-user.md") == 9


def test_pytorch(tmp_path: Path, running: ExitStack) -> None:
    assert Reader(tmp_path, running).follow(TUTORIALS / "pytorch-user.md") == 7


def test_triton(tmp_path: Path, running: ExitStack, triton: ServerProcess) -> None:
    copied(tmp_path)
    reader = Reader(tmp_path, running, f"http://{HOST}:{triton.http_port}")
    assert reader.follow(TUTORIALS / "triton-user.md") == 5


def test_the_front_page(tmp_path: Path, running: ExitStack) -> None:
    (tmp_path / EXAMPLES.name).symlink_to(EXAMPLES)
    assert Reader(tmp_path, running).follow(ROOT / "README.md") == 7


def test_the_picture_on_the_front_page(tmp_path: Path, running: ExitStack) -> None:
    (tmp_path / "models").symlink_to(EXAMPLES)
    (tmp_path / "shout.py").write_text(readme_picture.PROGRAM)
    (shown,) = re.findall("<desc>(.*?)</desc>", readme_picture.PICTURE.read_text("utf-8"), re.DOTALL)
    page = tmp_path / "page.md"
    text = unescape(shown).replace("\n$ curl", "\n…\n$ curl")
    page.write_text(f"```console\n{text}```\n", "utf-8")
    assert Reader(tmp_path, running).follow(page) == 3


def test_what_counts_as_alike() -> None:
    assert alike("a\nb 0.12 s\n", "a\nb 1.345 s")
    assert alike('{"a":1,"b":[1]}', '{"a":…}')
    assert not alike("a\nb", "a")
