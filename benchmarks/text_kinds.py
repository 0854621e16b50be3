"""The part `texts` of benchmarks/scheduling.py: kinds of texts and numbers of clients, with three ways side by side.

Clients pad all texts to the longest there may be; nobody pads and each text runs by itself; the server forms the
batches, as it does by default. The server is the one of `text_lengths.py`, with the same real encoder. The ways take
turns in short windows, and a ratio is that of windows of one round, so that what else the machine does hits all alike.
The CPU time is that of the whole process: engine, server and clients.
"""

import asyncio
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnxruntime

import real_encoder
from text_lengths import MOST, Plan, Window, closed_loop, opened, ratios

CLIENTS = (8, 16, 32)
SEEDS = (0, 1, 2)
WAYS = ("longest", "alone", "measured")
SIZES, LENGTHS = (1, 2, 4, 8, 16), (8, 16, 32, 64, 128, 256)
TURNS = 7


@dataclass
class Row:
    kind: str
    clients: int
    windows: dict[str, list[Window]] = field(default_factory=lambda: {way: [] for way in WAYS})
    useful: int = 0
    padding: int = 0

    def text(self) -> str:
        """Rate, CPU and p99 of each way; then the rates and the CPU of the others, relative to the server's batches."""
        ours = self.windows["measured"]
        cells = [self.kind, str(self.clients)]
        for windows in self.windows.values():
            rate, cpu, p99 = (
                statistics.median(values)
                for values in zip(*((each.rate, each.cpu_ms, each.p99_ms) for each in windows), strict=True)
            )
            cells.append(f"{rate:.0f}<br>{cpu:.2f} ms<br>{p99:.0f} ms")
        cells.append(f"{self.padding / max(1, self.useful + self.padding):.0%}")
        for other in ("longest", "alone"):
            others = self.windows[other]
            rates = ratios([each.rate for each in ours], [each.rate for each in others])
            cpu = ratios([each.cpu_ms for each in others], [each.cpu_ms for each in ours])
            cells.append(f"{rates}<br>{cpu}")
        return "| " + " | ".join(cells) + " |"


async def rows_of(kind: str, plan: Plan) -> list[Row]:
    rows = [Row(kind, clients) for clients in CLIENTS]
    order = list(WAYS)
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncExitStack() as stack:
            ways = {name: await opened(stack, name, plan, Path(directory)) for name in WAYS}
            texts = itertools.cycle(plan.texts.texts(4096, len(SEEDS)))
            for name, way in ways.items():
                await closed_loop(way.call, texts, CLIENTS[-1], plan.settle * (1 if name == "measured" else 0.1))
            for seed in SEEDS:
                texts = itertools.cycle(plan.texts.texts(4096, seed))
                for row in rows:
                    useful, padding = ways["measured"].elements
                    for _ in range(plan.rounds):
                        for name in order:
                            window = await closed_loop(ways[name].call, texts, row.clients, plan.window)
                            row.windows[name].append(window)
                        order.append(order.pop(0))
                    row.useful += ways["measured"].elements[0] - useful
                    row.padding += ways["measured"].elements[1] - padding
    return rows


def report(plans: Sequence[Plan], kinds: Sequence[str]) -> str:
    plan = plans[0]
    head = [
        f"all-MiniLM-L6-v2, fp32, clients in process, batches of up to {MOST}; {len(SEEDS)} seeds of "
        f"{plan.rounds} windows of {plan.window:g} s each, medians. Each cell: texts/s, CPU time of a text, p99 of "
        "the latency. The last two columns: the server's rate relative to the other's, and the other's CPU time "
        f"relative to the server's (least–most). The server pads to a multiple of {plan.multiple_of} tokens.\n"
    ]
    for kind in kinds:
        texts = real_encoder.KINDS[kind]
        head.append(f"- {kind}: {texts.title}; the mean is {texts.lengths(4096).mean():.0f}, padded to {texts.pad_to}")
    lines = ["\n".join(head)]
    for each in plans:
        table = [
            f"**{each.engine}**\n",
            "| texts | clients | clients pad | no padding, no batches | the server's batches | padding "
            "| relative to padding clients | relative to no batches |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for kind in kinds:
            rows = asyncio.run(rows_of(kind, replace(each, texts=real_encoder.KINDS[kind])))
            table += [row.text() for row in rows]
        lines.append("\n".join(table))
    return "\n\n".join(lines)


def cost_table(wheel: Path | None) -> str:
    """CPU time of a text by rows and length, the least of some turns, in a bare loop around ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count() or 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(real_encoder.model_file(wheel), options, providers=["CPUExecutionProvider"])
    chance = np.random.default_rng(0)
    least: dict[tuple[int, int], float] = {}
    for turn in range(1 + TURNS):
        for length, rows in itertools.product(LENGTHS, SIZES):
            ids = chance.integers(1000, real_encoder.VOCABULARY, (rows, length))
            begin = time.process_time()
            session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
            seconds = time.process_time() - begin
            if turn:  # the first prepares the session for the shape
                least[length, rows] = min(seconds, least.get((length, rows), seconds))
    lines = [
        "| tokens | " + " | ".join(f"{rows} row{'s'[: rows - 1]}" for rows in SIZES) + " |",
        "|---" * (1 + len(SIZES)) + "|",
    ]
    for length in LENGTHS:
        cells = (f"{1e3 * least[length, rows] / rows:.1f} ms" for rows in SIZES)
        lines.append(f"| {length} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
