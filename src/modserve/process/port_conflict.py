"""Advice when the ports of a server are in use: the process there, and a command that starts on free ports."""

import contextlib
import http.client
import json
import shlex
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from .ports import PortError, RefusedPort

_STEP = 10
"""Distance between a port in use and the next one tried, so that a server's three ports stay together."""
_ANSWER_SECONDS = 5.0
"""Time limit for an answer. A server that has just started imports modules for it, which takes seconds if busy."""
_SECRET = ("http-restricted-api", "grpc-restricted-protocol", "cache-config", "trace-config")
"""Options with values that may be secret, and must not be logged."""


def advice(error: PortError, words: Sequence[str]) -> str:
    """Return the text of `error`. If ports are in use, it names the server there, and a command line to start next to
    it: the user's own `words` without secrets."""
    refusals = error.refusals
    if not all(each.in_use for each in refusals):
        return str(error)
    lines = [str(error)]
    if address := next(filter(None, map(_modserve_at, refusals)), ""):
        lines.append(f"modserve is running there already: 'modserve status --url {address}' shows it")
    ports = _free_ports(refusals)
    if ports:
        lines += ["this starts on free ports:", command([*_without_ports(words, ports), *ports])]
    return "\n".join(lines)


def command(words: Sequence[str]) -> str:
    """Return the command line that starts a server with `words` in this process's way; ``…`` hides secrets."""
    program = [_program(), "serve"]
    if program[0] != "modserve":
        program[:1] = [*program[:1], "-m", "modserve"]
    shown = words[1:] if words[:1] == ["serve"] else words
    return " ".join([*map(shlex.quote, program), *map(_format_word, shown)])


def _program() -> str:
    return "modserve" if Path(sys.argv[0]).name == "modserve" else sys.orig_argv[0]


def _format_word(word: str) -> str:
    name, equals, value = word.partition("=")
    if equals and (_is_secret(name) or ("@" in value and "://" in value)):
        return f"{name}=…"
    return shlex.quote(word)


def _is_secret(name: str) -> bool:
    """True if an option, possibly abbreviated, may contain a secret."""
    return name.startswith("--") and any(each.startswith(name[2:].replace("_", "-")) for each in _SECRET)


def _without_ports(words: Sequence[str], ports: Sequence[str]) -> Iterator[str]:
    """Yield the words except the options of `ports`; a secret option and its value are one word."""
    replaced = {port.partition("=")[0] for port in ports}
    remaining = iter(words)
    for word in remaining:
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-")
        if name in replaced:
            if not equals:
                next(remaining, None)
        elif _is_secret(name) and not equals:
            yield f"{name}={next(remaining, '')}"
        else:
            yield word


def _free_ports(refusals: Sequence[RefusedPort]) -> list[str]:
    """Return an option with a free port for each refusal."""
    ports: list[int] = []
    for refusal in refusals:
        numbers = range(refusal.port + _STEP, 65536, _STEP)
        free = (number for number in numbers if number not in ports and _is_free(refusal.address, number))
        ports.append(next(free, 0))
    return [refusal.option_with(port) for refusal, port in zip(refusals, ports, strict=True)]


def _is_free(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.create_server((address, port), family=family):
            return True
    except OSError:
        return False


def _modserve_at(refusal: RefusedPort) -> str:
    """Return the URL of the modserve server at an HTTP port; empty if there is none."""
    if refusal.name != "HTTP":
        return ""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(refusal.address, refusal.address)
    connection = http.client.HTTPConnection(host, refusal.port, timeout=_ANSWER_SECONDS)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        connection.request("GET", "/v2")
        answer = json.loads(connection.getresponse().read(65536))
        if isinstance(answer, dict) and answer.get("name") == "modserve":
            return f"http://{f'[{host}]' if ':' in host else host}:{refusal.port}"
    return ""
