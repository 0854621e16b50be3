"""Program that compiles one chat template and renders conversations, within limits enforced by the system.

    python template_program.py SECONDS MEMORY SIZE < socket

A template is a program by the model's author. Jinja2's sandbox keeps it from changing its arguments and from reaching
internals, but nothing in an interpreter limits its computation. So this process ends by a signal after SECONDS of CPU
time for one message, and with the status ENOMEM when it would exceed MEMORY bytes. A prompt has at most SIZE bytes.

Standard input is a socket. A message, in either direction, is its length (4 bytes, big-endian) and that many bytes. The
first message has ``source`` and ``special_tokens`` as JSON, the following ones the variables of a conversation. A
response is a word, a line break and a text: ``compiled`` with the word ``tools`` if the template supports them,
``prompt`` with the prompt, or the kind of a failure with its reason.

Templates have the variables and functions of Hugging Face's ``transformers``: `messages`, `tools`,
`add_generation_prompt`, the special tokens, ``raise_exception``, ``strftime_now``, ``break`` and ``continue``, and
blocks of ``generation``, which have no effect.
"""

import errno
import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from datetime import datetime
from io import BufferedRWPair
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MOST_DETAIL = 500
"""Maximum length of a reason in characters."""


class _Refusal(Exception):
    """Call of ``raise_exception`` in a template."""


class _Generation(Extension):
    """``{% generation %}``, which marks the model's text for training; renders its body unchanged."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Renderer:
    """Responds to the server's messages; the first one has the template."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._template: jinja2.Template | None = None
        self._special_tokens: dict[str, str] = {}

    def respond(self, message: bytes) -> bytes:
        """Respond to a message. Never raises an `Exception`: templates may fail like any program, on client data."""
        try:
            content = json.loads(message)
            kind, text = self._compile(content) if self._template is None else self._render(content)
            return kind.encode() + b"\n" + text.encode()
        except _Refusal as error:
            return _failure("refusal", str(error))
        except SecurityError as error:
            return _failure("reach", str(error))
        except RecursionError:
            return b"limit\ncalls itself too often"
        except MemoryError:  # the next conversation gets a clean process
            os._exit(errno.ENOMEM)
        except Exception as error:
            return _failure("failure", f"{type(error).__name__}: {error}")

    def _compile(self, content: dict[str, Any]) -> tuple[str, str]:
        environment = _environment()
        try:
            tree = environment.parse(content["source"])
            tools = "tools" in meta.find_undeclared_variables(tree)
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            return "broken", f"{error.message or type(error).__name__}, line {error.lineno}"
        except RecursionError:
            return "broken", "it is nested too deeply"
        except MemoryError:
            raise
        except Exception as error:  # the compiler fails on unusual templates
            return "broken", f"{type(error).__name__}: {error}"[:_MOST_DETAIL]
        self._special_tokens = content["special_tokens"]
        return "compiled", "tools" if tools else ""

    def _render(self, variables: dict[str, Any]) -> tuple[str, str]:
        assert self._template is not None, "it is compiled by the first message: this is a bug"
        prompt = self._template.render({**self._special_tokens, **variables})
        if len(prompt) > self._most or len(prompt.encode()) > self._most:
            return "limit", f"makes a text of more than {self._most >> 20} MiB"
        return "prompt", prompt


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Encode as JSON like ``transformers``, without escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object = "") -> None:
    raise _Refusal(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().astimezone().strftime(format)


def _failure(kind: str, detail: str) -> bytes:
    return f"{kind}\n{detail[:_MOST_DETAIL]}".encode(errors="backslashreplace")


def _read(stream: BufferedRWPair) -> bytes:
    """Return the next message; empty once the server has disconnected."""
    return stream.read(int.from_bytes(stream.read(4)))


def main(seconds: float, memory: int, most: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # sent by the terminal, for the server
    with suppress(OSError, ValueError):  # not supported by some systems
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    renderer = Renderer(most)
    with socket.socket(fileno=sys.stdin.fileno()) as connection, connection.makefile("rwb") as stream:
        while message := _read(stream):
            signal.setitimer(signal.ITIMER_PROF, seconds)  # its unhandled signal ends the process
            response = renderer.respond(message)
            signal.setitimer(signal.ITIMER_PROF, 0)
            stream.write(len(response).to_bytes(4) + response)
            stream.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
