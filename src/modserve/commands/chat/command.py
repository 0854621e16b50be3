"""``modserve chat``: with a model of a running server, or with one that it serves itself for the time of the chat."""

import contextlib
import math
import os
import signal
import stat
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from modserve.core.errors import invalid

from .. import own_server
from ..destination import Destination, openai_destination
from ..errors import RefusedError
from ..remote_server import RemoteServer, connect
from ..syntax import INTERRUPTED, UsageError, add_destination, number_type, option, parser, reading
from .completions import ChatResponse, check, fetch_suggested_sampling
from .conversation import Conversation, converse, note, readable

_DESCRIPTION = """\
Talks to a language model. MODEL is the name of a model of a running server: modserve, or any other
with OpenAI's chat/completions. Or it is a place, and the command serves the model there until the
chat ends: a file such as ./smol.gguf, a folder with a / in its name, or hf://organisation/model.

With PROMPT, or with text from a pipe, it prints the answer and ends. Both together are one message.
/help in the chat lists its commands."""
_EXAMPLES = """\
  modserve chat smol
  modserve chat ./smol.gguf --verbose
  modserve chat smol --system "ChatResponse in one sentence." "Why is the sky blue?"
  git diff | modserve chat smol "Write a commit message:"
  modserve chat llama3 --url http://localhost:11434"""
_SECONDS = 3600.0


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise ValueError("a whole number above 0")
    return int(text)


PARSER = parser("chat", _DESCRIPTION, _EXAMPLES, "0 ended, 1 failure, 2 wrong command line, 130 stopped by Ctrl-C")
PARSER.add_argument("model", metavar="MODEL", help="The model's name, or the place of its files.")
PARSER.add_argument("prompt", metavar="PROMPT", nargs="?", default="", help="A message, for one answer.")
_GROUP = PARSER.add_argument_group("the chat")
option(_GROUP, "--system TEXT", "The system message.")
option(
    _GROUP,
    "--max-tokens N",
    "The longest answer, in tokens. [default: what suits the model, or 1024]",
    type=reading(_count),
)
option(
    _GROUP,
    "--temperature T",
    "0 always takes the most probable token; more is more varied. [default: what suits the model, or 0.7]",
    type=number_type("a number from 0 to 2", lambda value: 0 <= value <= 2),
)
_GROUP.add_argument(
    "--verbose", action="store_true", help="Show tokens/s and the time to the first token after each answer."
)
add_destination(PARSER, _SECONDS)


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    place = openai_destination(options)
    prompt = _prompt(readable(options.prompt))
    if prompt is not None and not prompt.strip():
        raise UsageError("standard input is empty; expected a message")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal may know fewer characters than a model
    sampling = {name: getattr(options, name) for name in ("max_tokens", "temperature")}
    with _model(options.model, place) as (server, model):
        suggested = fetch_suggested_sampling(server, place.address.prefix, model)
        conversation = Conversation(
            server,
            model,
            {**suggested, **{name: value for name, value in sampling.items() if value is not None}},
            system=readable(options.system),
            verbose=options.verbose,
        )
        if prompt is not None:
            return _code(conversation.say(prompt))
        check(server, place.address.prefix, model)
        note(f"{model} at {server.url}; /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves\n")
        converse(conversation)
    return 0


def _code(response: ChatResponse) -> int:
    return 0 if response.finish_reason else INTERRUPTED


def _prompt(text: str) -> str | None:
    """Return the message for one answer; None for a conversation. A pipe's text comes before the prompt's."""
    if sys.stdin.isatty():
        return text or None
    if text and not _has_text(sys.stdin):
        return text
    piped = sys.stdin.buffer.read().decode(errors="replace").strip()
    return "\n\n".join(filter(None, (piped, text)))


def _has_text(stream: TextIO) -> bool:
    """Return True for a pipe or a regular file."""
    try:
        kind = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):  # closed, or no file of the system
        return False
    return stat.S_ISFIFO(kind) or stat.S_ISREG(kind)


@contextlib.contextmanager
def _model(model: str, place: Destination) -> Iterator[tuple[RemoteServer, str]]:
    """Provide the server and the name of a model. Raises INVALID_ARG for a model that does not load."""
    words = _files(model)
    with contextlib.ExitStack() as stack:
        if words:
            for number in (signal.SIGTERM, signal.SIGHUP):
                before = signal.signal(number, lambda number, frame: sys.exit(128 + number))  # ends the server, too
                stack.callback(signal.signal, number, before)
            note(f"loading {model} …")
            place = Destination(stack.enter_context(own_server.serving(words, math.inf)).address, seconds=place.seconds)
        server = connect(place)
        stack.callback(server.close)
        yield server, _only(server, model) if words else model


_FILES = frozenset({".gguf", ".onnx", ".py", ".xml"})
"""Endings that no model of a running server is expected to have in its name."""


def _files(model: str) -> list[str]:
    """Return the words of ``modserve serve`` for a place; empty for a name. Raises INVALID_ARG."""
    if "://" in model:
        return [f"--model-repository={model}"]
    file = model if Path(model).exists() else model.partition(":")[0]  # FILE.py:FUNCTION
    if ("/" in file or Path(file).suffix in _FILES) and not Path(file).exists():
        raise invalid(f"there is no file or folder '{file}'; names of models on a running server have no / nor ending")
    return [model] if "/" in file or Path(file).is_file() else []


def _only(server: RemoteServer, place: str) -> str:
    """Return the name of the server's only loaded model. Raises RefusedError."""
    names = sorted(server.ready_models())
    if len(names) != 1:
        raise RefusedError(
            f"{place} has {len(names)} models: {', '.join(names)}",
            f"'modserve serve {place}' serves them, and 'modserve chat {names[0]}' talks to one of them",
        )
    return names[0]
