"""The command: what it prints, what it starts, and how it ends."""

import faulthandler
import gc
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnxruntime
import pytest

from kept_logging import flush_logs, kept_logging
from modserve import InferenceServer, Ports, Settings, __main__, __version__, cli
from modserve.commands.terminal import COMMANDS
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.form import form
from modserve.observability.logging import Logs
from modserve.process import app
from modserve.process.ports import PortError
from modserve.settings import OPTIONS, usage
from modserve.testing import config

Started = list[tuple[Settings, tuple[str, ...]]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """What `main` would have run."""
    found: Started = []

    def run(settings: Settings, warnings: tuple[str, ...] = (), *, words: Sequence[str]) -> int:
        found.append((settings, warnings))
        return 7

    monkeypatch.setattr(cli, "run", run)
    for name in [name for name in os.environ if name.startswith("MODSERVE_")]:
        monkeypatch.delenv(name)
    return found


@pytest.mark.parametrize("words", [[], ["serve"]], ids=["as tritonserver", "serve"])
def test_serving(started: Started, words: list[str]) -> None:
    assert cli.main([*words, "--model-repository", "m", "--http-port=1", "--http-thread-count=8"]) == 7
    ((settings, (warning,)),) = started
    assert (settings.model_repository, settings.http.port) == ((Path("m"),), 1)
    assert warning.startswith("option '--http-thread-count' has no effect in modserve: ")


def test_the_process_s_arguments_are_the_default(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["modserve", "--model-repository=m"])
    assert cli.main() == 7
    assert len(started) == 1


@pytest.mark.parametrize("arguments", [["--version"], ["serve", "--version"]])
def test_version(started: Started, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == f"modserve {__version__} ({form()})\n"
    assert not started


def test_engines(started: Started, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["engines"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("backend ")
    assert f"ONNX Runtime {onnxruntime.__version__}" in printed
    assert not started


def test_engines_takes_no_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["engines", "--model-repository", "m"]) == 2
    assert capsys.readouterr().err == (
        "modserve: unknown option '--model-repository'; those of this command: --help\n"
        "modserve: see 'modserve engines --help'\n"
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["-h"], ["serve", "--help"], ["--nosuch", "--help", "--http-port=1"]]
)
def test_help(
    started: Started, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: modserve")
    begin, end = text.index("\ncommon options:\n"), text.index("\nmore options (")
    options = re.findall(r"^  --([\w-]+)", text[begin:end], re.MULTILINE)
    assert len(options) == 15
    assert set(options) <= {"config", *OPTIONS}
    assert end < text.index("\ncommands for models:\n"), "the options come first"
    assert " --http-port N Port that HTTP listens on; 0 takes a free one. [default: 8000] " in " ".join(text.split())
    assert "\n  --help-all              Print all options and exit.\n" in text
    assert "\nexamples:\n  modserve --model-repository models\n" in text
    assert "modserve --version" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) < 100
    for name, command in COMMANDS.items():
        assert f"\n  modserve {name} {command.words} ".replace("  ", " ") in text.replace("  ", " ")
        assert command.summary in text
    assert not started


@pytest.mark.parametrize("arguments", [["--help-all"], ["serve", "--help-all"]])
def test_help_with_all_options(started: Started, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    said = " ".join(text.split())
    for option in OPTIONS.values():
        assert f" --{option.name} " in said
        assert option.help in said
    assert "\nHTTP:\n  --allow-http true|false\n" in text
    assert "  --model-control-mode none|explicit|poll\n" in text
    assert "  --http-port N\n" in text
    assert "  --log-file FILE\n" in text
    assert "  --supervise [true|false]\n" in text
    assert (
        "        Port that HTTP listens on; 0 takes a free one.\n        [default: 8000] [env: MODSERVE_HTTP_PORT]\n"
    ) in text
    assert "        Serve gRPC.\n        [default: true] [env: MODSERVE_ALLOW_GRPC]\n" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "\ncommands for models:\n" in text
    assert not started


def test_each_option_is_on_the_page_of_one_topic(capsys: pytest.CaptureFixture[str]) -> None:
    topics = list(usage.topics())
    assert topics == ["server", "limits", "memory", "access", "http", "grpc", "metrics", "log", "traces"]
    assert not set(topics) & COMMANDS.keys()
    options = []
    for topic in topics:
        assert cli.main(["--help", topic]) == 0
        page = capsys.readouterr().out
        options += re.findall(r"^  --([\w-]+)", page, re.MULTILINE)
        assert cli.main(["serve", f"--help={topic.upper()}"]) == 0
        assert capsys.readouterr().out == page
    assert options == list(OPTIONS)


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    pages = []
    for words in (["--help", "tune"], ["tune", "--help"]):
        assert cli.main(words) == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]
    assert pages[0].startswith("usage: modserve tune ")


@pytest.mark.parametrize(
    ("topic", "hint"),
    [
        ("htpp", "; did you mean 'http'?"),
        ("xyzzy", "; the topics are server, limits, memory, access, http, grpc, metrics, log, traces"),
    ],
)
def test_help_that_there_is_not(capsys: pytest.CaptureFixture[str], topic: str, hint: str) -> None:
    assert cli.main(["--help", topic]) == 2
    assert f"modserve: there is no help for '{topic}'{hint}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no model repository given; set '--model-repository DIR'"),
        (["--model-repositry=m"], "unknown option '--model-repositry'; did you mean '--model-repository'?"),
        (["serve", "m"], "Unexpected argument: m"),
        (["--model-repository=m", "serve"], "Unexpected argument: serve"),
        (["chekc", "m"], "Unexpected argument: chekc; did you mean 'check'?"),
        (["ps"], "Unexpected argument: ps; did you mean 'models'?"),
        (["version"], "Unexpected argument: version; did you mean '--version'?"),
        (
            ["serve", "hf://a/b"],
            "argument 'hf://a/b': 'hf://a/b' is no path; serve a place of models with '--model-repository=hf://a/b'",
        ),
    ],
    ids=["nothing", "misspelled", "word", "serve at the end", "misspelled command", "other", "version", "address"],
)
def test_a_wrong_command_line(
    started: Started, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"modserve: {message}\nmodserve: see 'modserve --help'\n")
    assert not started


# Running


@pytest.fixture
def untouched_logging() -> Iterator[None]:
    """What installing the log changes is put back."""
    with kept_logging():
        yield


def loaded(
    models: Sequence[ModelConfig] = (), entries: Sequence[IndexEntry] = (), waiting: Sequence[str] = ()
) -> InferenceServer:
    """As much of a server as is looked at when it has loaded its models."""
    servables = [SimpleNamespace(config=each) for each in models]
    server = SimpleNamespace(index=lambda: entries, ready_models=lambda: servables, waiting_models=waiting)
    return cast(InferenceServer, server)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, untouched_logging: None) -> Callable[[Ports, bool], None]:
    """Makes `run` serve nothing on given ports, with or without a model."""

    def prepare(ports: Ports, with_model: bool) -> None:
        entry = IndexEntry("simple", 1, LifecycleState.READY, "", 20_000_000)
        server = loaded([config("simple", max_batch_size=0)] if with_model else [], [entry])

        async def fake(
            settings: Settings,
            *,
            logs: Logs,
            on_open: Callable[[Ports], None],
            on_loaded: Callable[[InferenceServer], None],
            on_refused: Callable[[PortError], None],
            of_terminal: bool,
        ) -> int:
            assert logs.settings == settings.log
            on_open(ports)
            on_loaded(server)
            return 5

        monkeypatch.setattr(app, "serve", fake)

    return prepare


PLACES: dict[str, Any] = {"model_repository": Path("m"), "http_address": "0.0.0.0", "grpc_address": "1.2.3.4"}
SETTINGS = Settings(**PLACES)
CERTIFICATES: dict[str, Any] = {
    "grpc_server_cert": "cert.pem",
    "grpc_server_key": "key.pem",
    "grpc_root_cert": "root.pem",
}


def test_a_start_tells_ports_models_and_what_to_try(
    serve: Callable[[Ports, bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    serve(Ports(81, 82, 83), True)
    assert cli.run(SETTINGS) == 5
    flush_logs()
    assert capsys.readouterr().out == (
        "HTTP listening on 0.0.0.0:81\n"
        "gRPC listening on 1.2.3.4:82\n"
        "metrics listening on 0.0.0.0:83\n"
        "\n"
        "model   version  state  load time\n"
        "------  -------  -----  ---------\n"
        "simple  1        READY  0.020 s\n"
        "\n"
        "Try it:\n"
        "  modserve infer simple --sample --url http://localhost:81\n"
        "\n"
        "Console: http://localhost:81/console\n"
        "\n"
    )


def test_imports_go_on_without_the_garbage_collector_and_serving_with_it(
    serve: Callable[[Ports, bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(Ports(81, 82, 83), True)
    collecting = []

    def entry() -> None:
        collecting.append(gc.isenabled())
        cli.run(SETTINGS)
        collecting.append(gc.isenabled())

    monkeypatch.setattr(cli, "entry", entry)
    try:
        __main__.start()
    finally:
        gc.enable()
    assert collecting == [False, True]


def test_crashes_and_hung_imports_leave_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(faulthandler, "enable", lambda: steps.append("crashes"))
    monkeypatch.setattr(faulthandler, "register", lambda number: steps.append(number.name))
    monkeypatch.setattr(gc, "disable", lambda: steps.append("imports"))
    monkeypatch.setattr(cli, "entry", lambda: None)
    __main__.start()
    assert steps == ["crashes", "SIGUSR1", "imports"]


def test_each_line_is_written_at_once(serve: Callable[[Ports, bool], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where standard output is not buffered, log lines of other threads come between two writes."""

    class Unbuffered(io.RawIOBase):
        def __init__(self) -> None:
            self.written: list[bytes] = []

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.written.append(bytes(data))
            return len(self.written[-1])

    raw = Unbuffered()
    # As Python opens it with PYTHONUNBUFFERED.
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, write_through=True))  # type: ignore[type-var]
    serve(Ports(81, 82, 83), True)
    cli.run(SETTINGS)
    flush_logs()
    assert raw.written[:3] == [
        b"HTTP listening on 0.0.0.0:81\n",
        b"gRPC listening on 1.2.3.4:82\n",
        b"metrics listening on 0.0.0.0:83\n",
    ]
    assert len(raw.written) == 4


@pytest.mark.parametrize(
    ("ports", "with_model"), [(Ports(None, 82, 83), True), (Ports(81, 82, 83), False)], ids=["no HTTP", "no model"]
)
def test_a_start_with_nothing_to_try(
    serve: Callable[[Ports, bool], None], capsys: pytest.CaptureFixture[str], ports: Ports, with_model: bool
) -> None:
    serve(ports, with_model)
    cli.run(SETTINGS)
    flush_logs()
    out = capsys.readouterr().out
    assert "Try it" not in out
    assert ("HTTP listening" in out) == (ports.http is not None)


SIMPLE = config("simple")
READY = IndexEntry("simple", 1, LifecycleState.READY, "")


def said(port: int | None = 81, waiting: Sequence[str] = (), models: bool = True, **settings: Any) -> str:
    """What is said when models have loaded, but for the table."""
    server = loaded([SIMPLE] if models else [], [READY] if models else [], waiting)
    text = cli.hints(server, Settings(**{**PLACES, **settings}), port)
    assert text.startswith("model ")
    return text.partition("\n\n")[2]


def test_what_to_try_is_where_it_can_be_reached() -> None:
    command, console = "Try it:\n  modserve infer simple --sample --url", "\n\nConsole:"
    assert said() == f"{command} http://localhost:81{console} http://localhost:81/console"
    assert said(console=False) == f"{command} http://localhost:81"
    assert said(http_address="127.0.0.2") == f"{command} http://127.0.0.2:81{console} http://127.0.0.2:81/console"
    text = said(http_use_ssl=True, **CERTIFICATES)
    assert text == f"{command} https://localhost:81 --insecure{console} https://localhost:81/console"


@pytest.mark.parametrize("category", ["inference", "metadata", "trace"])
def test_no_secret_is_printed(category: str) -> None:
    text = said(http_restricted_api={category: ("key", "SECRET")})
    assert bool(text) == (category == "trace")
    assert "SECRET" not in text


def test_nothing_to_try_without_a_certificate() -> None:
    assert said(http_use_ssl_mutual=True, **CERTIFICATES) == ""


def test_models_that_wait_for_a_load_call() -> None:
    line = "2 models wait for a load call: a, b"
    call = "\n  curl localhost:81/v2/repository/models/a/load -X POST"
    assert said(waiting=["a", "b"], models=False) == line + call
    assert said(None, waiting=["a", "b"], models=False) == line
    assert said(waiting=["a", "b"], models=False, http_restricted_api={"model-repository": ("k", "v")}) == line
    assert said(waiting=["a", "b"]).startswith(line + call + "\n\nTry it:\n")


def test_an_empty_repository() -> None:
    assert said(models=False) == "There are no models in m. Each model needs its own directory: NAME/1/model.onnx"


@pytest.mark.parametrize(
    ("out", "err", "settings", "whole"),
    [
        (True, True, {}, False),
        (True, False, {}, True),
        (False, True, {}, True),
        (True, True, {"log_file": "a.log"}, True),
        (True, True, {"log_error": False}, True),
    ],
)
def test_reasons_are_cut_off_only_below_a_log_on_the_same_terminal(
    monkeypatch: pytest.MonkeyPatch, out: bool, err: bool, settings: dict[str, Any], whole: bool
) -> None:
    server = loaded([], [IndexEntry("bad", 1, LifecycleState.UNAVAILABLE, "why " * 500)], ())
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: out))
        patched.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: err))
        text = cli.hints(server, Settings(**PLACES, **settings), 81)
    assert ("why " * 500 in text) == whole
    assert ("… (see above)" in text) != whole


def test_options_without_effect_are_warned_of(
    serve: Callable[[Ports, bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    serve(Ports(81, 82, 83), False)
    cli.run(SETTINGS, ["it has no effect"])
    flush_logs()
    assert "WARNING modserve.cli: it has no effect\n" in capsys.readouterr().err


def test_a_log_file(serve: Callable[[Ports, bool], None], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("what was there\n")
    serve(Ports(81, 82, 83), False)
    cli.run(SETTINGS.model_copy(update={"log_file": str(file)}), ["é"])
    logging.shutdown()
    assert capsys.readouterr().err == ""
    lines = file.read_text("utf-8").splitlines()
    assert lines[0] == "what was there"
    assert lines[1].endswith("WARNING modserve.cli: é")
    assert lines[2].endswith(f"INFO    modserve.cli: modserve {__version__}, {form()}")


def test_a_log_file_that_cannot_be_opened(
    serve: Callable[[Ports, bool], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    serve(Ports(81, 82, 83), False)
    assert cli.run(SETTINGS.model_copy(update={"log_file": str(tmp_path)})) == 1
    assert capsys.readouterr().err.startswith("modserve: cannot open the log file; '--log-file' names another: ")


# Supervision


def test_the_supervisor_takes_the_place_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[list[str]] = []

    def execv(file: str, arguments: list[str]) -> None:
        replaced.append([file, *arguments])
        raise SystemExit

    monkeypatch.setattr(os, "execv", execv)
    given = ["--model-repository=m", "--supervise", "--log-format=default", "--log-file=f"]
    with pytest.raises(SystemExit):
        cli.main(["serve", *given])
    python = sys.executable
    server = [python, "-m", "modserve", "serve", *given, "--supervise=false"]
    assert replaced == [
        [python, python, "-m", "modserve.process.supervisor", "default", "f", "0", "", "", "", "", *server]
    ]


def test_what_the_supervisor_starts_is_not_supervised(started: Started) -> None:
    assert cli.main(["serve", "--model-repository=m", "--supervise", "--supervise=false"]) == 7
    assert cli.main(["serve", "--model-repository=m", "--supervise=false"]) == 7


@pytest.mark.parametrize(
    ("switches", "levels"),
    [
        ({}, "INFO WARNING ERROR"),
        ({"log_verbose": 1}, "DEBUG INFO WARNING ERROR"),
        ({"log_info": False}, "WARNING ERROR"),
        ({"log_warning": False, "log_error": False}, "INFO"),
        ({"log_verbose": 2, "log_info": False}, "DEBUG WARNING ERROR"),
    ],
    ids=str,
)
def test_log_switches(
    serve: Callable[[Ports, bool], None], capsys: pytest.CaptureFixture[str], switches: dict[str, object], levels: str
) -> None:
    serve(Ports(None, None, None), False)
    cli.run(SETTINGS.model_copy(update=switches))
    flush_logs()
    capsys.readouterr()
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logging.getLogger("modserve.test").log(level, "text")
    flush_logs()
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == levels.split()


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, untouched_logging: None) -> list[int]:
    """The codes with which the process would have ended."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    return codes


def test_the_console_script_ends_the_process_with_the_code(monkeypatch: pytest.MonkeyPatch, ended: list[int]) -> None:
    monkeypatch.setattr(cli, "main", lambda: 3)
    cli.entry()
    assert ended == [3]


def test_an_error_that_nobody_foresaw_is_a_crash_to_the_supervisor(
    monkeypatch: pytest.MonkeyPatch, ended: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> int:
        raise ZeroDivisionError("here")

    monkeypatch.setattr(cli, "main", fail)
    cli.entry()
    assert ended == [cli.CRASHED]
    assert "this is a bug" in caplog.text
    assert "ZeroDivisionError: here" in caplog.text


def test_workers_meet_where_the_paths_of_sockets_are_short_enough(tmp_path: Path) -> None:
    near, long = tmp_path / "a", tmp_path / ("b" * 100)
    for parent in (near, long):
        parent.mkdir()
    directories = [cli.meeting_place(str(parent)) for parent in (near, long)]
    for directory in directories:
        assert directory.stat().st_mode & 0o777 == 0o700
        directory.rmdir()
    assert directories[1].parent == Path("/tmp")
    assert list(long.iterdir()) == []
    with pytest.raises(OSError, match="nosuch"):
        cli.meeting_place(str(tmp_path / "nosuch"))


def test_serving_goes_on_where_nobody_reads(monkeypatch: pytest.MonkeyPatch, untouched_logging: None) -> None:
    """As behind ``| head``, which ends after the first lines."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as out:
        monkeypatch.setattr(sys, "stdout", out)
        logs = Logs()
        logs.install()
        logs.say("HTTP listening on 0.0.0.0:8000")
        logs.say("gRPC listening on 0.0.0.0:8001")
        flush_logs()
