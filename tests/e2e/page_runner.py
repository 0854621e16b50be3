"""Somebody who follows a page in an empty directory: writes its files, runs its commands, compares what they print."""

import io
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from pages import ROOT, SHELLS, Block, Step, alike, blocks, exact, steps
from server_process import LOADED, ServerProcess, started
from wire import HOST, SECONDS

from kept_logging import kept_logging
from modserve import cli

CURLRC = "fail\nsilent\nshow-error\n"
"""What makes curl tell a refusal by its exit status, and nothing but refusals on standard error."""
ELSEWHERE = "http://triton:8000"
"""The address on pages of another server than the reader's."""
BESIDE = "18100"
"""A port on pages that another server has."""
CLONE = "/path/to/modserve"
_NUMBERS = {"HTTP": "8000", "gRPC": "8001", "metrics": "8002", "admin": "8003"}
_SHELL = re.compile(r"[|&;<>]|\$\(|^\s*(export|cd) ")
_FAILURE = re.compile(r"^modserve: |\berror\b|\bproblem\b", re.MULTILINE)
"""What a page shows of a command that is meant to fail."""
_PORTS = re.compile(r"\blocalhost:(800[012])\b")


class PageRunner:
    """Runs the blocks of one page, in order.

    `shared` is the server for pages that start none. `skipped` says whether a command cannot run here, `shortened`
    adds words to one that would run for long, and `normal` is what the output of a command is compared by. With
    `separate`, servers end with the block that starts them. `warnings` is a pattern of those that servers may log;
    `prepared` uses each server that the page starts before its reader does. `lasting` gives the server of a command
    that several pages have, which goes on behind the page; None for all other commands.
    """

    def __init__(
        self,
        place: Path,
        running: ExitStack,
        shared: Callable[[], ServerProcess],
        *,
        skipped: Callable[[str], bool] = lambda command: False,
        shortened: Callable[[str], str] = lambda command: command,
        normal: Callable[[str], Callable[[str], str]] = lambda command: exact,
        separate: bool = False,
        warnings: str = "",
        prepared: Callable[[ServerProcess], None] = lambda server: None,
        lasting: Callable[[str], ServerProcess | None] = lambda words: None,
    ) -> None:
        self.place = place
        self.commands = 0
        self._running = running
        self._shared = shared
        self._skipped = skipped
        self._shortened = shortened
        self._normal = normal
        self._separate = separate
        self._warnings = warnings
        self._prepared = prepared
        self._lasting = lasting
        self._ends = True
        """Whether the server ends with the page."""
        self._server: ServerProcess | None = None
        programs = place / ".bin"
        programs.mkdir(exist_ok=True)
        (programs / "modserve").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m modserve "$@"\n')
        (programs / "modserve").chmod(0o755)
        (place / ".curlrc").write_text(CURLRC)

    def follow(self, text: str) -> int:
        """Runs the page; returns the number of commands that ran."""
        for block in blocks(text):
            self.run_block(block)
        self.stop()
        return self.commands

    def run_block(self, block: Block) -> None:
        if block.file:
            file = self.place / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, "utf-8")
        if block.language in SHELLS:
            for step in steps(block):
                if not self._skipped(step.command):
                    self.run_step(step)
            if self._separate:
                self.stop()

    def run_step(self, step: Step) -> None:
        """Fails unless the command prints what is shown, and succeeds unless a failure is shown."""
        code, printed = self._run(self._shortened(step.command))
        self.commands += 1
        where = f"line {step.line}: $ {step.command}\n{printed}"
        if step.shown is None:
            assert code == 0, where
        else:
            assert alike(printed, step.shown, self._normal(step.command)), f"{where}\nbut shown is:\n{step.shown}"
            assert code == 0 or _FAILURE.search(step.shown), where

    def stop(self) -> None:
        """As Ctrl-C; the server must have logged no error and no warning."""
        if self._server is not None:
            server, self._server = self._server, None
            if self._ends:
                server.stop()
            lines = [line for line in server.log.splitlines() if " WARNING " in line]
            trouble = [line for line in lines if not (self._warnings and re.search(self._warnings, line))]
            assert not trouble, trouble

    def _ports(self) -> dict[str, int]:
        """The numbers on pages, and those that the loaded server has instead. It may have fewer."""
        log = (self._server or self._shared()).log
        opened = dict(re.findall(r"^(HTTP|gRPC|metrics|admin) listening on \S+:(\d+)$", log, re.MULTILINE))
        return {port: int(opened[name]) for name, port in _NUMBERS.items() if name in opened}

    def _here(self, text: str) -> str:
        if ELSEWHERE in text:
            text = text.replace(ELSEWHERE, f"http://{HOST}:{self._shared().http_port}")
        if _PORTS.search(text):
            ports = self._ports()
            text = _PORTS.sub(lambda match: f"{HOST}:{ports[match[1]]}", text)
        if BESIDE in text:
            text = text.replace(BESIDE, str(self._ports()["8000"]))
        return text.replace(CLONE, str(ROOT))

    def _there(self, text: str) -> str:
        """What was printed, with the addresses of the page."""
        if HOST in text:
            for port, number in self._ports().items():
                text = text.replace(f"{HOST}:{number}", f"localhost:{port}")
        return text

    def _run(self, command: str) -> tuple[int, str]:
        """Exit code and output."""
        command = command.replace("\\\n", "")
        words = shlex.split(command, comments=True)
        is_server = words[0] == "modserve" and (words[1] == "serve" or words[1].startswith("--"))
        if is_server and "--version" not in words:
            return 0, self._serve(words[1:])
        inside = words[0] in ("modserve", "python") and not _SHELL.search(command)
        line = self._here(command)
        code, printed = self._inside(shlex.split(line, comments=True)) if inside else self._shell(line)
        if ELSEWHERE in command:
            printed = printed.replace(f"http://{HOST}:{self._shared().http_port}", ELSEWHERE)
        return code, self._there(printed)

    def _inside(self, words: Sequence[str]) -> tuple[int, str]:
        """Python's own programs run in this process: engines take seconds to import."""
        printed = io.StringIO()
        variables = self._addresses() if words[0] == "modserve" and words[1] in _CLIENTS else {}
        with ExitStack() as stack:
            for context in (redirect_stdout(printed), redirect_stderr(printed), chdir(self.place), kept_logging()):
                stack.enter_context(context)
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(patch.dict(os.environ, variables))
            if words[0] == "modserve":
                return _exit_code(lambda: cli.main(words[1:])), printed.getvalue()
            program = self._here(Path(words[1]).read_text("utf-8"))
            stack.enter_context(patch.object(sys, "argv", list(words[1:])))
            stack.enter_context(patch.object(sys, "path", [str(self.place), *sys.path]))
            exec(compile(program, words[1], "exec"), {"__name__": "__main__"})
        return 0, printed.getvalue()

    def _addresses(self) -> dict[str, str]:
        """The variables that stand for the ports which commands call by default."""
        names = {"MODSERVE_URL": "8000", "MODSERVE_METRICS_URL": "8002"}
        return {name: f"http://{HOST}:{self._ports()[port]}" for name, port in names.items()}

    def _shell(self, command: str) -> tuple[int, str]:
        home = str(self.place)
        variables = {"HOME": home, "CURL_HOME": home, "PATH": f"{self.place / '.bin'}:{os.environ['PATH']}"}
        if "modserve" in command:
            variables |= self._addresses()
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=self.place,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        return done.returncode, done.stdout

    def _serve(self, words: list[str]) -> str:
        """Starts a server in the place of the one before; what it prints until its models have loaded."""
        self.stop()
        options = [self._here(word) for word in words if word != "serve"]
        options = [re.sub(r"^(--admin-address=.*:)\d+$", r"\g<1>0", option) for option in options]
        lasting = self._lasting(" ".join(options))
        self._ends = lasting is None
        server = lasting or self._running.enter_context(
            started(options=[*options, "--event-loop-warning-ms=0"], directory=self.place)
        )
        server.wait_for(LOADED)
        assert "UNAVAILABLE" not in server.wait_for("^Try it:$|UNAVAILABLE")[0], server.log
        self._server = server
        self._prepared(server)
        lines = [line for line in server.log.splitlines() if not re.match(r"\d{4}-\d\d-\d\dT", line)]
        for port, number in self._ports().items():
            lines = [line.replace(f"0.0.0.0:{number}", f"0.0.0.0:{port}") for line in lines]
        return "\n".join(lines)


_CLIENTS = ("status", "models", "chat", "infer", "load", "unload", "top", "bench", "tune", "replay")


def _exit_code(command: Callable[[], int]) -> int:
    try:
        return command()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
