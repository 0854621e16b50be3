"""``modserve chat`` at a real terminal and through pipes, with models that are functions."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_here import run_here
from open_server import OpenServer
from server_process import ServerProcess, eventually
from terminal_process import CTRL_C, CTRL_D, TerminalProcess, at_terminal
from text_models import FUNCTIONS, write_functions, write_speaker
from wire import HOST

LOOP = """
from collections.abc import Iterator
from pathlib import Path

import modserve


@modserve.model(isolation="thread")
def loop(messages: str) -> Iterator[str]:
    yield "begin "
    try:
        while True:
            yield "on "
    finally:
        part = Path(__file__).with_name("part")
        part.write_text(messages)
        part.rename(part.with_name("cancelled"))


@modserve.model(isolation="thread")
def escapes(text: str) -> str:
    return "\\x1b[31mred\\x07"
"""
NAMES = ("shout", "words", "recite", "add")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chat")


@pytest.fixture(scope="module")
def server(folder: Path, open_server: OpenServer) -> Iterator[ServerProcess]:
    write_speaker(folder / "models")
    write_functions(folder / "models", FUNCTIONS, *NAMES)
    write_functions(folder / "models", LOOP.replace("__file__", repr(str(folder / "loop.py"))), "loop", "escapes")
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "loop.py").write_text(LOOP)
    with open_server.host(folder / "models") as running:
        yield running


def url(server: ServerProcess) -> str:
    return f"--url=http://{HOST}:{server.http_port}"


@pytest.fixture
def chat(server: ServerProcess) -> Iterator[TerminalProcess]:
    """With a model that answers with the messages that it gets."""
    with at_terminal(["chat", "recite", url(server), "--system=Be brief."]) as terminal:
        terminal.expect("recite at http.*leaves\n\n> ")
        yield terminal


def run(*words: str, text: str | bytes | None = None, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """With a pipe that has `text`, or without any input."""
    content = text.encode() if isinstance(text, str) else text
    done = subprocess.run(
        [sys.executable, "-m", "modserve", *words],
        capture_output=True,
        cwd=cwd,
        timeout=60,
        input=content,
        stdin=subprocess.DEVNULL if content is None else None,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def cancellation(folder: Path, word: str) -> list[dict[str, str]]:
    """The messages of the cancelled generation of `loop` whose last one has the word, as soon as it is cancelled."""
    file = folder / "cancelled"
    text = eventually(lambda: file.read_text() if file.exists() and word in file.read_text() else "")
    messages: list[dict[str, str]] = json.loads(text)
    return messages


def roles(text: str) -> list[tuple[str, str]]:
    """The messages that the model got, of what it said."""
    lines = [line for line in text.splitlines() if line.startswith("[")]
    return [(each["role"], each["content"]) for each in json.loads(lines[0])]


def test_history_commands_and_end(chat: TerminalProcess, folder: Path) -> None:
    system = ("system", "Be brief.")
    chat.line("one")
    first = chat.expect(r"\[.*\]\n\n> ")
    assert roles(first) == [system, ("user", "one")]
    chat.line("two")
    answered = roles(chat.expect(r"\[.*\]\n\n> "))
    assert [role for role, _ in answered] == ["system", "user", "assistant", "user"]
    assert answered[2][1] == next(line for line in first.splitlines() if line.startswith("["))
    chat.line("/new")
    chat.expect("a new conversation\n> ")
    chat.line("/system Be long.")
    chat.expect("system: Be long.\n> ")
    chat.line('"""several')
    chat.expect(r"\. ")
    chat.line('lines"""')
    assert roles(chat.expect(r"\[.*\]\n\n> ")) == [("system", "Be long."), ("user", "several\nlines")]
    saved = folder / "saved.json"
    for _ in range(2):  # what it has written itself, it writes again
        chat.line(f"/save {saved}")
        chat.expect("wrote .*\n> ")
    document = json.loads(saved.read_text())
    assert document["model"] == "recite"
    assert [each["role"] for each in document["messages"]] == [
        "system",
        "user",
        "assistant",
    ]
    chat.line(f"/save {folder / 'functions.py'}")
    chat.expect("already exists and is not overwritten\n> ")
    chat.line("/save")
    chat.expect("/save needs the name of a file\n> ")
    chat.line("/nosuch")
    chat.expect("unknown command /nosuch\n.*/help lists.*\n> ")
    chat.line("/help")
    chat.expect("stops an answer, and the model's work on it\n> ")
    chat.line("/exit")
    assert chat.end() == 0
    assert (folder / "functions.py").read_text() == FUNCTIONS


def test_ctrl_c_cancels_the_answer_and_not_the_chat(server: ServerProcess, folder: Path) -> None:
    with at_terminal(["chat", "loop", url(server)]) as chat:
        chat.expect("> ")
        chat.line("first")
        chat.expect("begin on on on ")
        chat.type(CTRL_C)
        chat.expect(r"\(stopped\)\n\n> ")
        assert cancellation(folder, "first") == [{"role": "user", "content": "first"}]
        chat.line("second")
        chat.expect("begin on ")
        chat.type(CTRL_C)
        chat.expect(r"\(stopped\)\n\n> ")
        # The stopped answer belongs to the conversation.
        messages = cancellation(folder, "second")
        assert [each["role"] for each in messages] == ["user", "assistant", "user"]
        assert messages[1]["content"].startswith("begin on on on ")
        chat.interrupt()
        chat.expect("Ctrl-C again or Ctrl-D leaves\n> ")
        chat.interrupt()
        assert chat.end() == 0


def test_a_line_is_kept_after_one_ctrl_c(chat: TerminalProcess) -> None:
    chat.interrupt()
    chat.expect("Ctrl-C again or Ctrl-D leaves\n> ")
    chat.line("still here")
    assert roles(chat.expect(r"\[.*\]\n\n> "))[-1] == ("user", "still here")
    chat.interrupt()
    chat.expect("Ctrl-C again or Ctrl-D leaves\n> ")
    chat.type(CTRL_D)
    assert chat.end() == 0


def test_a_failed_message_leaves_the_conversation(server: ServerProcess) -> None:
    with at_terminal(["chat", "speaker", url(server), "--verbose"]) as chat:
        chat.expect("> ")
        chat.line("FAIL:1")
        chat.expect("modserve: the speaker has lost its voice\n> ")
        chat.line("hello")
        assert chat.expect(r"<bos>\n.*tokens.*\n\n> ").splitlines()[1] == "<user> hello <bos>"
        chat.type(CTRL_D)
        assert chat.end() == 0


def test_escape_sequences_of_a_model_do_not_reach_the_terminal(server: ServerProcess) -> None:
    with at_terminal(["chat", "escapes", url(server)]) as chat:
        chat.expect("> ")
        chat.line("hello")
        chat.expect("\N{REPLACEMENT CHARACTER}\\[31mred\N{REPLACEMENT CHARACTER}\n\n> ")


def test_a_thought_is_apart(server: ServerProcess) -> None:
    with at_terminal(["chat", "speaker", url(server)]) as chat:
        chat.expect("> ")
        chat.line("SAY:<think> hm </think> yes")
        chat.expect("\nhm.*\n\nyes <bos>\n\n> ")


@pytest.mark.parametrize(
    ("words", "text", "printed"),
    [
        (["shout"], "hello", "HELLO\n"),
        (["shout", "hello"], None, "HELLO\n"),
        (["shout", "what is it?"], "a file\n", "A FILE\n\nWHAT IS IT?\n"),
        (["shout"], b"caf\xe9", "CAF\N{REPLACEMENT CHARACTER}\n"),
        (["speaker"], "SAY:<think> hm </think> yes", "yes <bos>\n"),
        (["escapes"], "x", "\x1b[31mred\x07\n"),
        (["speaker", "--max-tokens=2"], "hello big world", "<user> hello \n"),
        (
            ["speaker", "--temperature=0.5", "PARAMETERS", "--max-tokens=9"],
            None,
            '{"max_tokens": 9, "temperature": 0.5, "top_p": 0.9}\n',
        ),
        (["speaker", "PARAMETERS"], None, '{"max_tokens": 1024, "temperature": 0.7, "top_p": 0.9}\n'),
        (["speaker", "--system=be", "hi"], None, "<system> be <user> hi <bos>\n"),
    ],
)
def test_one_answer(server: ServerProcess, words: list[str], text: str | bytes | None, printed: str) -> None:
    call = ("chat", *words, url(server))
    done = run(*call, text=text) if isinstance(text, bytes) or words[0] == "shout" else run_here(*call, text=text)
    assert (done.stdout, done.stderr, done.returncode) == (printed, "", 0)


def test_speed(server: ServerProcess) -> None:
    counted = run("chat", "speaker", "hello big world", "--verbose", url(server)).stderr
    assert counted.startswith("5 tokens, ")
    assert counted.endswith(" ms, prompt of 5 tokens\n")
    assert "tokens/s" in counted
    uncounted = run_here("chat", "words", "a b c", "--verbose", url(server)).stderr
    assert uncounted.startswith("3 pieces, ")
    assert run_here("chat", "shout", "a", "--verbose", url(server)).stderr.startswith("1 piece, the first after ")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["nosuch", "hi"], 1, "modserve: Request for unknown model: 'nosuch' is not found"),
        (["add", "hi"], 1, "modserve: model 'add' does not"),
        (["speaker", "FAIL:1"], 1, "modserve: the speaker has lost its voice"),
        (
            ["shout", "hi", "--max-tokens=0"],
            2,
            "modserve: option '--max-tokens': expected a whole number above 0, got: 0",
        ),
        (
            ["shout", "hi", "--temperature=x"],
            2,
            "modserve: option '--temperature': expected a number from 0 to 2, got: x",
        ),
        (["shout"], 2, "modserve: standard input is empty; expected a message"),
        (["./nosuch.gguf", "hi"], 1, "modserve: there is no file or folder './nosuch.gguf'"),
    ],
)
def test_mistakes(server: ServerProcess, words: list[str], code: int, text: str) -> None:
    done = (run if words[0] == "nosuch" else run_here)("chat", *words, url(server))
    assert done.returncode == code, done
    assert text in done.stderr


def test_the_model_is_looked_for_before_the_first_message(server: ServerProcess) -> None:
    with at_terminal(["chat", "nosuch", url(server)]) as chat:
        chat.expect("modserve: .*nosuch.*\n")
        assert chat.end() == 1


def test_ctrl_c_ends_a_single_answer(server: ServerProcess, folder: Path) -> None:
    words = [sys.executable, "-m", "modserve", "chat", "loop", "only", url(server)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.read(6) == b"begin "
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(30) == 130
        assert rest.endswith(b"\n")
    assert cancellation(folder, "only") == [{"role": "user", "content": "only"}]


def test_over_grpc() -> None:
    done = run_here("chat", "shout", "hi", "--url=grpc://localhost:1")
    assert done.returncode == 2
    assert "expected http://HOST:PORT or https://HOST:PORT" in done.stderr


def test_a_file_is_served_for_the_chat(folder: Path, server: ServerProcess) -> None:
    single = folder / "single"
    single.mkdir()
    (single / "echo.py").write_text(
        "import os\n\nimport modserve\n\n\n@modserve.model(isolation='thread')\ndef echo(text: str) -> str:\n"
        "    return f'{os.getpid()} {text}'\n"
    )
    done = run("chat", "echo.py", "hello", cwd=single)
    assert done.returncode == 0, done
    number, text = done.stdout.split(maxsplit=1)
    assert text == "hello\n"
    assert done.stderr == "loading echo.py …\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int(number), 0)
    several = run("chat", "./functions.py", "hello", cwd=folder)
    assert several.returncode == 1
    assert "add, endless, recite, shout, words" in several.stderr


def test_the_server_of_a_chat_ends_with_a_hung_up_terminal(folder: Path, server: ServerProcess) -> None:
    with at_terminal(["chat", f"{folder}/loop.py:loop"]) as chat:
        (folder / "cancelled").unlink(missing_ok=True)
        chat.expect("> ")
        chat.line("hello")
        chat.expect("begin on ")
        chat.process.send_signal(signal.SIGHUP)
        assert chat.end() == 129
    eventually((folder / "cancelled").exists)
