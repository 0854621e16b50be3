"""docs/library.md as it stands: every block is run. `test_library_types.py` checks their types."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import modserve
from modserve.testing import Serving, serve

ROOT = Path(__file__).parents[2]
BLOCKS: Mapping[str, str] = {
    re.match(r"# (\S+)\n", block)[1]: block  # type: ignore[index]
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/library.md").read_text(), re.MULTILINE | re.DOTALL)
}
TWOS = "[[2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2]]\n"
PRINTED: Mapping[str, str] = {
    "by_address.py": TWOS + "simple 1\n",
    "in_process.py": f"[{list(range(1, 17))}]\n",
    "values.py": "(1, 10)\n(3, 10) 1 mine\n",
    "streams.py": "7\n8\n9\n",
    "errors.py": "NOT_FOUND 404 Request for unknown model: 'nosuch' is not found\n",
    "asynchronous.py": "[3, 3, 3, 3]\n",
}
PYTEST = (
    "-m",
    "pytest",
    "-q",
    *(f"-pno:{name}" for name in ("cacheprovider", "schemathesis", "anyio", "asyncio")),
    ".",
)
OTHERS = {"application.py", "test_mine.py", "conftest.py", "test_with_the_fixture.py"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the page speaks of."""
    place = tmp_path_factory.mktemp("page")
    (place / "model_repository").symlink_to(ROOT / "model_repository")
    for name, block in BLOCKS.items():
        (place / name).write_text(block)
    (place / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmodserve_models = "model_repository"\n')
    return place


@pytest.fixture(scope="module")
def served() -> "object":
    with serve(ROOT / "model_repository") as served:
        yield served


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # Warnings are errors: a client that leaves a socket open would be one.
    command = [sys.executable, "-W", "error", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, cwd=place, capture_output=True, text=True, env=environment)


def test_every_block_is_run() -> None:
    assert set(BLOCKS) == {*PRINTED, *OTHERS}


def test_what_the_blocks_print(place: Path, served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has imported all that they need."""
    monkeypatch.chdir(place)
    for name, expected in PRINTED.items():
        for argument in (served.http_url, served.grpc_url) if name == "by_address.py" else ("",):
            lines: list[str] = []
            monkeypatch.setattr(sys, "argv", [name, argument])
            exec(compile(BLOCKS[name], name, "exec"), {"__name__": "__main__", "print": printer(lines)})
            assert "".join(lines) == expected, f"{name} {argument}"


def printer(lines: list[str]) -> Callable[..., None]:
    return lambda *values: lines.append(" ".join(map(str, values)) + "\n")


def test_a_block_in_a_process_of_its_own(place: Path) -> None:
    ended = run(place, "in_process.py")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, PRINTED["in_process.py"], "")


def test_the_application_behind_uvicorn(place: Path) -> None:
    program = (
        "import asyncio, socket, sys, threading, urllib.request, uvicorn, modserve\n"
        "from application import app\n"
        "listening = socket.create_server(('127.0.0.1', 0))\n"
        "server = uvicorn.Server(uvicorn.Config(app, log_level='warning', ws='none'))\n"
        "thread = threading.Thread(target=server.run, kwargs={'sockets': [listening]})\n"
        "thread.start()\n"
        "url = f'http://127.0.0.1:{listening.getsockname()[1]}'\n"
        "print(urllib.request.urlopen(url + '/sum?a=2&b=3').read())\n"
        "ones = [1] * 16\n"
        "with modserve.connect(url + '/models', timeout=30) as client:\n"
        "    print(client.ready(), client.infer('simple', {'INPUT0': ones, 'INPUT1': ones}).plain('OUTPUT0')[0][0])\n"
        "    print([each.plain('OUT') for each in client.stream('repeat', {'IN': [7], 'DELAY': [0], 'WAIT': 0})])\n"
        "server.should_exit = True\n"
        "thread.join()\n"
    )
    ended = run(place, "-c", program)
    assert (ended.returncode, ended.stdout) == (0, "b'5'\nTrue 2\n[7]\n"), ended.stderr


def test_the_tests_of_the_page(place: Path) -> None:
    ended = run(place, *PYTEST)
    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr


def test_the_fixture_says_what_it_lacks(tmp_path: Path) -> None:
    for name in ("conftest.py", "test_with_the_fixture.py"):
        (tmp_path / name).write_text(BLOCKS[name])
    ended = run(tmp_path, *PYTEST)
    assert "modserve_server has nothing to serve: set modserve_models" in ended.stdout, ended.stdout + ended.stderr


def test_models_that_do_not_load_fail_the_test(tmp_path: Path) -> None:
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    with pytest.raises(AssertionError, match="models failed to load:\nmodel 'broken': "), serve(tmp_path):
        pass


def test_what_serve_cannot_serve(tmp_path: Path) -> None:
    with pytest.raises(modserve.ClientError, match="there is no model repository"), serve(tmp_path / "nosuch"):
        pass
    settings = modserve.Settings(model_repository=tmp_path)
    with pytest.raises(TypeError, match="settings beside a Settings object"), serve(settings, allow_grpc=False):
        pass
    with serve(tmp_path, allow_grpc=False) as served, pytest.raises(ValueError, match="the setting 'allow_grpc'"):
        print(served.grpc_url)
