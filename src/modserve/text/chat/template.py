"""Chat templates: a conversation as the prompt format that a model was trained on, by a Jinja2 template.

Templates come with models, from their authors. They therefore run in a process of their own, `template_program`, which
the system ends when it takes too long, and which may crash: the next conversation gets a new one.

A model's chat template is in its configuration, or in the files of Hugging Face tokenizers.

The configuration's parameters ``chat_template`` (its text), ``bos_token`` and ``eos_token`` take precedence over the
files ``chat_template.jinja`` and ``tokenizer_config.json``, first in the version's directory, then in the model's. If
the weights contain a template, as GGUF metadata does, the backend adds what no file states to the configuration.
"""

import asyncio
import errno
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from modserve.core.errors import Code, ModserveError, internal, invalid, unsupported
from modserve.core.files import tokenizer_files
from modserve.core.files.tokenizer_files import CONFIG, NO_FILES, SPECIAL_TOKENS, TEMPLATE
from modserve.core.pip_command import pip_install

from .errors import TemplateError

MOST_SECONDS: Final = 2.0
"""CPU seconds for one conversation, and for compiling."""
MOST_MEMORY: Final = 512 * 1024 * 1024
"""Maximum address space of the process in bytes."""
MOST_PROMPT: Final = 16 * 1024 * 1024
MOST_SOURCE: Final = 1024 * 1024

_PROGRAM: Final = Path(__file__).with_name("template_program.py")
_FAILURES: Final = {
    "refusal": (Code.INVALID_ARG, "refuses the messages"),
    "failure": (Code.INVALID_ARG, "fails on these messages"),
    "reach": (Code.INTERNAL, "does what none may"),
}
"""Kind of a response → error code and text."""


class ChatTemplate:
    """A template and its process, for one event loop. Raises INTERNAL for an oversized template, UNSUPPORTED without
    Jinja2. The process starts with the first call, and ends with this object."""

    def __init__(
        self, source: str, model: str, special_tokens: Mapping[str, str] | None = None, seconds: float = MOST_SECONDS
    ) -> None:
        if importlib.util.find_spec("jinja2") is None:
            raise unsupported(f"chat templates need Jinja2: {pip_install('text')}")
        self._model = model
        self._seconds = seconds
        if len(source) > MOST_SOURCE:
            raise self._broken(f"it has {len(source)} characters, at most {MOST_SOURCE} are possible")
        self._source = json.dumps({"source": source, "special_tokens": dict(special_tokens or {})}).encode()
        self._turn = asyncio.Lock()
        self._process: _Process | None = None
        self._fault: ModserveError | None = None
        """Reason why the template can never be compiled."""
        self.takes_tools = False
        """True if the template supports tools; known once it is compiled."""

    async def compile(self) -> None:
        """Start the process, unless it runs. Raises INTERNAL for an invalid template."""
        async with self._turn:
            await self._ensure_started()

    async def render(self, variables: bytes) -> str:
        """Return the prompt for the variables of a conversation, a JSON object.

        Raises INVALID_ARG if the template refuses the conversation or fails on it, INTERNAL if the template accesses
        internals or exceeds a limit.
        """
        async with self._turn:
            kind, text = await self._exchange(await self._ensure_started(), variables)
        if kind == "prompt":
            return text
        if kind in _FAILURES:
            code, failure = _FAILURES[kind]
            raise TemplateError(code, f"the chat template of model '{self._model}' {failure}", text)
        raise internal(f"the chat template of model '{self._model}' {text}")

    async def _ensure_started(self) -> "_Process":
        if self._fault is not None:
            raise self._fault.with_traceback(None)
        if self._process is not None and self._process.running:
            return self._process
        process = self._process = _Process(self._model, self._seconds)
        kind, text = await self._exchange(process, self._source)
        if kind != "compiled":
            self._process, fault = None, self._broken(text if kind == "broken" else f"it {text}")
            if kind != "lost":
                self._fault = fault
            raise fault
        self.takes_tools = text == "tools"
        return process

    async def _exchange(self, process: "_Process", message: bytes) -> tuple[str, str]:
        """Return the kind and text of the response. A cancelled caller still waits for it, or the next would get it."""
        responding = asyncio.ensure_future(process.respond(message))
        cancelled: asyncio.CancelledError | None = None
        while not responding.done():
            try:
                await asyncio.wait([responding])
            except asyncio.CancelledError as error:
                cancelled = error
        try:
            if cancelled is not None:
                raise cancelled
            return responding.result()
        finally:  # the traceback refers to this frame
            del responding, cancelled

    def _broken(self, why: str) -> ModserveError:
        return internal(f"the chat template of model '{self._model}' cannot be used: {why}")


class _Process:
    """A process of `template_program`, for one message at a time. Ends with this object.

    Raises INTERNAL if it cannot start.
    """

    def __init__(self, model: str, seconds: float) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._socket, other = socket.socketpair()
        self._socket.setblocking(False)
        limits = [str(seconds), str(MOST_MEMORY), str(MOST_PROMPT)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with other:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-S", "-P", str(_PROGRAM), *limits],
                    stdin=other.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=environment,
                    process_group=0,
                )
            except OSError as error:
                reason = f"'{sys.executable}' cannot be run: {error.strerror}"
                raise internal(f"the chat template of model '{model}' has no process: {reason}") from None

    def __del__(self) -> None:
        self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def respond(self, message: bytes) -> tuple[str, str]:
        """Return the kind and text of the response. ``limit`` or ``lost``: reason why the process has ended instead."""
        assert self._process is not None, "else nobody had this object: this is a bug"
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, len(message).to_bytes(4) + message)
            kind, _, text = (await self._receive(int.from_bytes(await self._receive(4)))).partition(b"\n")
            return kind.decode(), text.decode()
        except (ConnectionError, EOFError):
            status = self._process.wait()  # returns soon: the process closes its socket by ending
        if status == -signal.SIGPROF:
            return "limit", f"did not end within {self._seconds:g} s of CPU time"
        if status == errno.ENOMEM:
            return "limit", f"needs more than {MOST_MEMORY >> 20} MiB of memory"
        return "lost", f"lost its process, which ended with {f'signal {-status}' if status < 0 else f'status {status}'}"

    async def _receive(self, size: int) -> bytes:
        """Receive `size` bytes. Raises EOFError."""
        loop, data = asyncio.get_running_loop(), bytearray()
        while len(data) < size:
            part = await loop.sock_recv(self._socket, min(size - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def read_template(model: str, parameters: Mapping[str, str], folder: Path | None) -> ChatTemplate | None:
    """Read the template of a model; None if it has none.

    Raises INTERNAL for unusable files, and the errors of `ChatTemplate`.
    """
    try:
        files = NO_FILES if folder is None else tokenizer_files.read_version(folder)
    except tokenizer_files.BrokenFileError as error:
        raise internal(f"{error.name} of model '{model}' {error.fault}") from None
    source = parameters.get("chat_template", files.template)
    if source is None:
        return None
    tokens = {name: parameters[name] for name in SPECIAL_TOKENS if name in parameters}
    return ChatTemplate(source, model, {**files.tokens, **tokens})


def no_template(model: str) -> ModserveError:
    """Return INVALID_ARG for a conversation with a model that has no template."""
    return invalid(
        f"model '{model}' has no chat template: put {TEMPLATE} or {CONFIG} into its version's folder, or set the "
        "parameter chat_template in its configuration; or send the whole prompt to /v1/completions"
    )
