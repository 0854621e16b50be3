"""Every block for a shell in README.md and docs/ runs as it stands, in order, and prints what is shown below it.

The pages and their blocks are found, so that a new one runs or fails. `NOT_HERE` are the commands that cannot run in a
test, each with the reason.
"""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from html import unescape
from pathlib import Path

import pytest
import readme_picture
from page_runner import PageRunner
from pages import PAGES, ROOT, SHELLS, Block, alike, blocks, steps
from repositories import EXAMPLES
from server_process import ServerProcess, serving
from wire import http

pytestmark = pytest.mark.slow

NOT_HERE: Mapping[str, str] = {
    "docker ": "tests of the image are scripts/image's",
    "kubectl ": "there is no cluster; tests/deploy has the manifests",
    "pip install ": "the environment of the tests has it",
    "python3 -m venv ": "the environment of the tests stands for it",
    "python -m venv phoenix": "installs a server of somebody else, of a gigabyte",
    "git clone ": "tests/e2e/test_fresh_clone.py does",
    "scripts/serve": "tests/e2e/test_fresh_clone.py does",
    "scripts/compile": "takes minutes; tests/e2e/test_fresh_clone.py does",
    "python benchmarks/": "measures for minutes",
    "TRITON_SERVER_CMD=": "measures for minutes, with a Triton",
    "modserve --model-repository=s3://": "needs a bucket; tests/e2e/test_remote_repositories.py has one",
    "export AWS_ACCESS_KEY_ID=": "needs a bucket; tests/e2e/test_remote_repositories.py has one",
}
"""Beginnings of commands."""

FIGURES: tuple[str, ...] = ("modserve status", "modserve models", "modserve top", "modserve doctor")
"""Beginnings of commands that print figures of a server that has been used, or of a machine."""

SHORTENED: Mapping[str, str] = {"modserve bench ": " --seconds 0.1 --warmup 0"}
"""Words that are added to commands which would run for long."""

NOT_YET: Mapping[str, int] = {}
"""Pages that do not run yet, with the number of their blocks for a shell. It only ever shrinks."""


def number_of_blocks(page: str) -> int:
    return sum(block.language in SHELLS for block in blocks((ROOT / page).read_text("utf-8")))


RUN = [page for page in PAGES if page not in NOT_YET and number_of_blocks(page)]


def reason(command: str) -> str:
    """The beginning in `NOT_HERE` of a command that cannot run here; empty if it can."""
    return next((beginning for beginning in NOT_HERE if command.startswith(beginning)), "")


def shortened(command: str) -> str:
    return command + "".join(words for beginning, words in SHORTENED.items() if command.startswith(beginning))


# What pages presuppose ------------------------------------------------------------------------------------------------


def examples(place: Path) -> None:
    """The example models, as `model_repository` and as `models`."""
    for name in ("model_repository", "models"):
        shutil.copytree(EXAMPLES, place / name)


def an_empty_directory(place: Path) -> None:
    pass


def a_clone(place: Path) -> None:
    (place / EXAMPLES.name).symlink_to(EXAMPLES)


PRESUPPOSED: Mapping[str, Callable[[Path], None]] = {
    "README.md": a_clone,
    "docs/tutorials/pytorch-user.md": an_empty_directory,
    "docs/tutorials/scikit-learn-user.md": an_empty_directory,
    "docs/tutorials/triton-user.md": an_empty_directory,
}
"""If not the examples."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], ServerProcess]]:
    """The server of pages that start none, which starts when it is needed: all examples, and what pages change."""
    place = tmp_path_factory.mktemp("shared")
    servers: list[ServerProcess] = []
    with ExitStack() as stack:

        def server() -> ServerProcess:
            if not servers:
                options = ["--model-control-mode=explicit", "--load-model=*"]
                options.append(f"--trace-config=triton,file={place / 'trace.json'}")
                servers.append(stack.enter_context(serving(EXAMPLES, options=options)))
            return servers[0]

        yield server


@pytest.fixture
def runner(tmp_path: Path, shared: Callable[[], ServerProcess]) -> Iterator[PageRunner]:
    with ExitStack() as running:
        yield PageRunner(
            tmp_path,
            running,
            shared,
            skipped=lambda command: bool(reason(command)),
            shortened=shortened,
            loose=lambda command: command.startswith(FIGURES),
        )


# The pages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", RUN)
def test_page(runner: PageRunner, page: str) -> None:
    PRESUPPOSED.get(page, examples)(runner.place)
    runner.follow((ROOT / page).read_text("utf-8"))


def test_the_picture_on_the_front_page(runner: PageRunner) -> None:
    (runner.place / "models").symlink_to(EXAMPLES)
    (runner.place / "shout.py").write_text(readme_picture.PROGRAM)
    (shown,) = re.findall("<desc>(.*?)</desc>", readme_picture.PICTURE.read_text("utf-8"), re.DOTALL)
    text = unescape(shown).replace("\n$ curl", "\n…\n$ curl")
    assert runner.follow(f"```console\n{text}```\n") == 3


# The tables -----------------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """Of all pages."""
    return [
        step.command
        for page in PAGES
        for block in blocks((ROOT / page).read_text("utf-8"))
        if block.language in SHELLS
        for step in steps(block)
    ]


def test_each_entry_of_the_tables_is_about_a_command() -> None:
    beginnings = [*NOT_HERE, *FIGURES, *SHORTENED]
    matches = Counter(each for each in beginnings for command in commands() if command.startswith(each))
    assert [each for each in beginnings if not matches[each]] == []


def test_the_pages_that_do_not_run_yet_have_no_new_blocks() -> None:
    assert {page: number_of_blocks(page) for page in NOT_YET} == NOT_YET
    assert all(NOT_YET.values()) and set(PRESUPPOSED) <= set(PAGES)


def test_no_block_is_overlooked() -> None:
    """Counted by lines that begin one."""
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        begun = len(re.findall(rf"^ *```({'|'.join(SHELLS)})\b", text, re.MULTILINE))
        assert begun == number_of_blocks(page), page


# What the runner notices ----------------------------------------------------------------------------------------------


def test_what_counts_as_alike() -> None:
    assert alike("a\nb 0.12 s\n", "a\nb 1.345 s")
    assert alike('{"a":1,"b":[1]}', '{"a":…}')
    assert alike("a    b\n----- --", "a  b\n--- --")
    assert alike("12 of 3.5 MiB, -", "1,024 of 7 MiB, 3", figures=False)
    assert not alike("a\nb", "a")
    assert not alike("12", "13")
    assert not alike("12 requests", "12 errors", figures=False)


def test_the_steps_of_a_block() -> None:
    (first, second) = steps(Block(7, "console", "$ curl -d '{\n  1}' \\\n  x\nshown\n$ b\n"))
    assert (first.line, first.command, first.shown) == (8, "curl -d '{\n  1}' \\\n  x", "shown\n")
    assert (second.line, second.command, second.shown) == (12, "b", "")
    assert [step[:2] for step in steps(Block(7, "sh", "# it's\na  # b\n\nb |\n  c\n"))] == [
        (9, "a  # b"),
        (11, "b |\n  c"),
    ]


def test_output_is_the_block_below() -> None:
    block, other, _ = blocks("```sh\na\n```\n\n```\nb\n```\n\n  ```sh\n  c\n  ```\n\ntext\n\n```json\n1\n```\n")
    assert (block.output, other.text, other.output) == ("b\n", "c\n", None)


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("```sh\ncurl localhost:8000/v2/models/nosuch\n```\n", "404"),
        ("```sh\ncurl localhost:8000/v2\n```\n\n```json\n{}\n```\n", "but shown is"),
        ("```console\n$ modserve models nosuch\n```\n", "nosuch"),
        ("```console\n$ modserve models simple\nmodel …\n$ false\n```\n", "false"),
        ("```python\n# a.py\nprint(1)\n```\n```console\n$ python a.py\n2\n```\n", "but shown is"),
    ],
)
def test_what_does_not_work_is_noticed(runner: PageRunner, page: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        runner.follow(page)


def test_a_server_that_warns_is_noticed(runner: PageRunner) -> None:
    examples(runner.place)
    with pytest.raises(AssertionError, match="WARNING"):
        runner.follow("```sh\nmodserve serve --model-repository models --http-thread-count 4\n```\n")


def test_models_are_as_they_were(shared: Callable[[], ServerProcess]) -> None:
    """After all pages."""
    port = shared().http_port
    assert http(port, "GET", "/v2/health/ready").status == 200
