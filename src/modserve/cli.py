"""``modserve serve --model-repository DIR``, or tritonserver's command line with ``modserve`` for ``tritonserver``."""

import asyncio
import gc
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from .__about__ import __version__
from .commands import terminal
from .commands.terminal import COMMANDS
from .core import secret_names
from .core.errors import ModserveError
from .core.runtime import unix_socket
from .core.runtime.event_loop import process_event_loop
from .form import form, stale_module
from .observability import standard_streams
from .observability.logging import Logs
from .process import port_conflict, supervisor
from .process.ports import PortError
from .process.reserved_ports import reserve
from .settings import OptionError, Settings, from_command_line, usage
from .settings.listen_addresses import listen_addresses, place
from .settings.options import did_you_mean
from .workers.identity import WorkerIdentity

if TYPE_CHECKING:
    from .process.app import InferenceServer
    from .process.listeners import Ports

_log = logging.getLogger(__name__)

_UNSUPERVISED = "--supervise=false"

CRASHED = 70
"""The exit code after an unexpected error, which is EX_SOFTWARE of sysexits.h."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code: 0 after an orderly stop, 1 for a failure, 2 for a wrong command line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if form() == "compiled" and (file := stale_module()):
        print(f"modserve: the compiled form was made of another {file}; install modserve again", file=sys.stderr)
        return 1
    if words and words[0] in COMMANDS:
        return run_command(words[0], words[1:])
    if words and words[0].partition("=")[0] == "--print-completion":  # the name that 'completion' had first
        return run_command("completion", [*filter(None, [words[0].partition("=")[2]]), *words[1:]])
    if "--version" in words:
        print(f"modserve {__version__} ({form()})")
        return 0
    if "--help-all" in words:
        print(usage.full_page(COMMANDS), end="")
        return 0
    for index, word in enumerate(words):
        if word.partition("=")[0] in ("--help", "-h"):
            return print_help(word.partition("=")[2] or "".join(words[index + 1 : index + 2]))
    worker = None
    if words[:1] == ["worker"]:  # the supervisor's own, and not for people
        worker, words = WorkerIdentity.parse(words[1]), words[2:]
    if words[:1] == ["serve"]:
        del words[0]
    try:
        line = from_command_line(words)
    except OptionError as error:
        print(f"modserve: {error}{suggest_command(words)}", file=sys.stderr)
        print("modserve: see 'modserve --help'", file=sys.stderr)
        return 2
    if line.settings.model_file and (problem := wrong_file(line.settings)):
        print(f"modserve: {problem}", file=sys.stderr)
        return 2
    if worker is not None:
        return run(line.settings, line.warnings if worker.is_first else (), worker, words=words)
    if line.settings.workers > 1:
        return supervise_workers(line.settings, words)
    if line.settings.supervise:
        supervise(line.settings, words)
    return run(line.settings, line.warnings, words=words)


def print_help(topic: str) -> int:
    """Print the page of a topic or of a command, and without either the first page; returns the exit code."""
    topic = topic.lower()
    if topic in COMMANDS:
        return run_command(topic, ["--help"])
    if topic in usage.topics():
        print(usage.topic_page(topic), end="")
        return 0
    if topic.startswith("-") or topic in ("", "serve"):
        print(usage.first_page(COMMANDS), end="")
        return 0
    listed = ", ".join(usage.topics())
    hint = did_you_mean(topic, [*usage.topics(), *COMMANDS])
    print(
        f"modserve: there is no help for '{topic}'{hint or f'; the topics are {listed}, and the commands'}",
        file=sys.stderr,
    )
    return 2


def wrong_file(settings: Settings) -> str:
    """Return the fault of the files that the command line names; empty if they are models."""
    from .process.model_setup import read_named_files

    try:
        read_named_files(settings)
    except ModserveError as error:
        return error.message
    return ""


def run_command(name: str, words: Sequence[str]) -> int:
    """Run a command that serves nothing, or print its help."""
    gc.enable()
    return terminal.run(name, words)


_ELSEWHERE = {
    "-v": "--version",
    "help": "--help",
    "list": "models",
    "ls": "models",
    "ps": "models",
    "run": "chat",
    "start": "serve",
    "stop": "drain",
    "version": "--version",
}
"""First words of other programs' commands → ours."""


def suggest_command(words: Sequence[str]) -> str:
    """Return a hint at the command that a first word was probably meant to be; empty if none is close."""
    word = words[0] if words else ""
    if word in _ELSEWHERE:
        return f"; did you mean '{_ELSEWHERE[word]}'?"
    return did_you_mean(word, ["serve", *COMMANDS]) if word.isalpha() else ""


def supervise(settings: Settings, arguments: Sequence[str]) -> NoReturn:
    """Become the supervisor of a server with the same arguments."""
    server = [sys.executable, "-m", __package__, "serve", *arguments, _UNSUPERVISED]
    _tell_of_terminal(settings)
    _become(supervisor.arguments(settings.log, server))


def supervise_workers(settings: Settings, arguments: Sequence[str]) -> int:
    """Become the supervisor of several workers with the same arguments; returns only if that fails."""
    if sys.platform != "linux":
        print(
            "modserve: '--workers' above 1 needs Linux, which shares out connections among processes", file=sys.stderr
        )
        return 2
    try:
        Logs(settings.log).install()
    except OSError as error:
        print(f"modserve: cannot open the log file; '--log-file' names another: {error}", file=sys.stderr)
        return 1
    try:
        reservation = reserve(settings)
    except PortError as error:
        _log.error("%s", port_conflict.advice(error, arguments))
        return 1
    worker = [sys.executable, "-m", __package__, "worker", supervisor.IDENTITY, "serve", *arguments]
    worker += reservation.options
    try:
        directory = meeting_place(tempfile.gettempdir())
    except OSError as error:
        reservation.close()
        _log.error("cannot create the directory for the workers' sockets; set TMPDIR to another place: %s", error)
        return 1
    notice = settings.shutdown_delay_secs
    workers = supervisor.Workers(settings.workers, settings.exit_timeout_secs, directory, notice)
    descriptors = reservation.hand_over()
    _tell_of_terminal(settings)
    return _become(supervisor.arguments(settings.log, worker, workers, descriptors))


_LONGEST_NAME = "255.sequences"


def meeting_place(parent: str) -> Path:
    """A new directory for this user alone, in `parent`, or in /tmp where the paths of its sockets would be too long.

    Raises OSError.
    """
    directory = tempfile.mkdtemp(prefix="modserve-workers-", dir=parent)
    if len(os.fsencode(str(Path(directory) / _LONGEST_NAME))) > unix_socket.LONGEST:
        os.rmdir(directory)
        directory = tempfile.mkdtemp(prefix="modserve-workers-", dir="/tmp")
    return Path(directory)


def _tell_of_terminal(settings: Settings) -> None:
    """A supervisor ends at SIGHUP if that is not ignored when it starts."""
    if not ends_with_terminal(settings):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _become(arguments: Sequence[str]) -> NoReturn:
    """Go on as another program of the same interpreter."""
    sys.stdout.flush()
    logging.shutdown()
    os.execv(sys.executable, [sys.executable, *arguments])


def run(
    settings: Settings,
    warnings: Sequence[str] = (),
    worker: WorkerIdentity | None = None,
    *,
    words: Sequence[str] = (),
) -> int:
    """Serve on a fresh event loop, with uvloop where it is installed; or as a `worker`, one of several.

    `words`: the command line, for advice.
    """
    from .process.app import serve

    if not gc.isenabled():  # as `__main__.start` leaves it
        gc.freeze()
        gc.enable()
    speaks = worker is None or worker.is_first
    logs = Logs(settings.log, None if worker is None else worker.index)
    try:
        logs.install()
    except OSError as error:
        print(f"modserve: cannot open the log file; '--log-file' names another: {error}", file=sys.stderr)
        return 1
    logging.captureWarnings(True)
    of_terminal = worker is None and ends_with_terminal(settings)
    if not of_terminal:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the event loop can open the log file anew
    if worker is not None:
        for handler in logging.getLogger().handlers:
            handler.addFilter(worker.name_in_log)
    for warning in warnings:
        _log.warning("%s", warning)
    for name in secret_names.VARIABLES:  # the processes of models inherit the rest
        os.environ.pop(name, None)
    opened: list[Ports] = []

    def on_open(ports: "Ports") -> None:
        opened.append(ports)
        _log.info("modserve %s, %s", __version__, form())
        for each in listen_addresses(settings):
            if speaks and each.name in ports.by_name:
                logs.say(f"{each.name} listening on {place(each.address, ports.by_name[each.name])}")

    def on_loaded(server: "InferenceServer") -> None:
        if speaks:
            logs.say(f"\n{hints(server, settings, opened[0].http)}\n")

    def on_refused(error: PortError) -> None:
        _log.error("%s", port_conflict.advice(error, [word for word in words if word != _UNSUPERVISED]))

    with standard_streams.unblock(), asyncio.Runner(loop_factory=process_event_loop) as runner:
        if worker is None:
            return runner.run(
                serve(
                    settings,
                    logs=logs,
                    on_open=on_open,
                    on_loaded=on_loaded,
                    on_refused=on_refused,
                    of_terminal=of_terminal,
                )
            )
        from .workers.member import Member

        member = Member(worker)
        return runner.run(serve(settings, logs=logs, on_open=on_open, on_loaded=on_loaded, member=member))


def ends_with_terminal(settings: Settings) -> bool:
    """True if SIGHUP means that the terminal of the start was closed, and there is no file to reopen.

    A server started with nohup is to go on.
    """
    if settings.log.file or settings.audit_log or signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL:
        return False
    return any(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def write_to_nobody() -> None:
    """Let standard output go nowhere: what its buffer holds would be written again at each attempt."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def hints(server: "InferenceServer", settings: Settings, http_port: int | None) -> str:
    """The text that is printed once the models have loaded: a table, and a call to try or what to do without models."""
    from .core.lifecycle import any_ready
    from .process import console  # not for 'modserve --help', which it would make half as long again

    place = None
    if http_port is not None:
        keyed = bool(settings.auth_file or settings.api_key)
        place = console.HttpAddress(settings.http.address, http_port, settings.http.tls is not None, keyed)
    if settings.http.use_ssl_mutual or not settings.http.restrictions.keys().isdisjoint(_TRIED):
        place = None  # the call would need a certificate or a secret
    entries = server.index()
    waiting = server.waiting_models
    models = [servable.config for servable in server.ready_models()]
    logged = settings.log.error and not settings.log.file and sys.stdout.isatty() and sys.stderr.isatty()
    paragraphs = [console.models_table(entries, logged=logged)]
    if waiting:
        known = "model-repository" not in settings.http.restrictions and not settings.admin_address
        paragraphs.append(console.waiting_line(waiting, place if known else None))
    elif not entries:
        listed = ", ".join(map(str, settings.repositories))
        paragraphs.append(f"There are no models in {listed}. Each model needs its own directory: NAME/1/model.onnx")
    if models and place is not None:
        paragraphs.append(f"Try it:\n  {console.example_call(models, place)}")
        if settings.http.console and place.url.startswith("http"):
            paragraphs.append(f"Console: {place.url}/console")
    if entries and not waiting and settings.repositories and not any_ready(entries):
        paragraphs.append(
            "No model has loaded: nothing is served. Ctrl-C ends the server; --exit-on-error=true does by itself."
        )
    return "\n\n".join(paragraphs)


_TRIED = ("inference", "metadata")
"""The categories of what the printed calls need."""


def entry() -> None:
    """The console script. The process ends here, without waiting for engines that hang in a call."""
    # A terminal may know fewer characters than the names of models have.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        write_to_nobody()
        code = 1
    except Exception:
        _log.critical("the server stops because of an unexpected error: this is a bug", exc_info=True)
        code = CRASHED
        sys.stdout.flush()
    logging.shutdown()  # before standard error's own buffer, which is empty after whole lines
    os._exit(code)
