"""The part `idle` of benchmarks/text.py: the memory of streams on which nothing happens.

The model runs on an event loop of the server's process. It says a word to each client and then waits, as a language
model does whose queue is long. What a stream takes is the growth of the server's resident memory, over connections that
are open already.
"""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import text_chat

MODEL = """
import asyncio
from collections.abc import AsyncIterator

import modserve


@modserve.model(isolation="thread")
async def waits(text: str) -> AsyncIterator[str]:
    yield "so "
    await asyncio.Event().wait()
"""
_CHAT = json.dumps({"model": "waits", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@dataclass
class Plan:
    streams: int = 1000
    rounds: int = 3


def resident(pid: int) -> int:
    """Bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


async def _round(plan: Plan, port: int, pid: int) -> tuple[float, float]:
    """Bytes of a connection, and of a stream on it."""
    before = resident(pid)
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(plan.streams)]
    connected = resident(pid)
    for reader, writer in pairs:
        writer.write(_HEAD % len(_CHAT) + _CHAT)
        await reader.readuntil(b'"so "')
    streaming = resident(pid)
    for _, writer in pairs:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for _, writer in pairs), return_exceptions=True)
    return (connected - before) / plan.streams, (streaming - connected) / plan.streams


def report(plan: Plan) -> str:
    """A table in Markdown."""
    lines = [f"| {plan.streams} streams | a connection, kB | a stream, kB | all streams, MB |", "|---|---|---|---|"]
    with text_chat.functions(MODEL, "waits") as models, text_chat.serving(models) as (port, pid):
        for turn in range(plan.rounds):
            connection, stream = asyncio.run(_round(plan, port, pid))
            whole = stream * plan.streams / 1e6
            lines.append(f"| round {turn + 1} | {connection / 1e3:.1f} | {stream / 1e3:.1f} | {whole:.1f} |")
    return "\n".join(lines)
