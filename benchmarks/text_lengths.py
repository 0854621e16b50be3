"""The part `lengths` of benchmarks/scheduling.py: texts of different lengths, under every way to batch them.

One server in process for each way, all with the same real encoder (`real_encoder.py`) on the same engine, and one
instance with all cores. The ways take turns in short windows, so that what else the machine does hits all alike; a
ratio is that of windows of one round. What comes before does not count: the server learns.
"""

import asyncio
import itertools
import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import real_encoder
from modserve import InferenceServer, Settings
from real_encoder import Ids, Texts

Call = Callable[[Ids], Awaitable[NDArray[np.float32]]]

MOST = 16
BATCHER = "dynamic_batching { }\n"
POLICY = 'parameters {{ key: "padding.policy" value {{ string_value: "{policy}" }} }}\n'
WAYS: Mapping[str, str] = {
    "longest": BATCHER,
    "alone": "",
    "never": BATCHER + real_encoder.PADDING + POLICY.format(policy="never"),
    "always": BATCHER + real_encoder.PADDING + POLICY.format(policy="always"),
    "measured": BATCHER + real_encoder.PADDING + POLICY.format(policy="measured"),
}
"""What each way adds to the configuration."""
TITLES: Mapping[str, str] = {
    "longest": f"clients pad to {real_encoder.PAD_TO}",
    "alone": "no batching",
    "never": "`never` pad: only equal lengths share a batch",
    "always": "`always` pad, within learnt ranges",
    "measured": "`measured`",
}
OTHERS = ("alone", "never", "always")
"""What `measured` must keep up with."""
FILES = {"onnxruntime": "model.onnx", "openvino": "model.onnx"}
"""Engine → the name of the model file."""


@dataclass
class Plan:
    engine: str
    clients: int = 16
    rounds: int = 8
    settle: float = 15.0
    """Seconds under load before that for `measured`, which learns; a fifth of it for the others."""
    window: float = 1.5
    """Seconds."""
    load: float = 0.6
    """The rate of the open loop, as a share of the rate without batching."""
    wheel: Path | None = None
    texts: Texts = real_encoder.MIXED
    multiple_of: int = 8
    """Of all lengths where the server pads; `never` lets those share a batch that are equal after that."""


@dataclass(frozen=True)
class Window:
    rate: float
    """Texts a second."""
    cpu_ms: float
    """Of the whole process, for each text."""
    p99_ms: float
    """Of the latency."""


@dataclass
class Way:
    """A server with the model, and how clients call it."""

    server: InferenceServer
    call: Call
    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    @property
    def elements(self) -> tuple[int, int]:
        seen = self.server.model("encoder").statistics
        return seen.elements, seen.padding


def repository(directory: Path, way: str, plan: Plan) -> Path:
    folder = directory / way / "encoder"
    (folder / "1").mkdir(parents=True)
    shutil.copyfile(real_encoder.model_file(plan.wheel), folder / "1" / FILES.get(plan.engine, "model.onnx"))
    text = f'backend: "{plan.engine}"\nmax_batch_size: {MOST}\n' + real_encoder.INPUTS + WAYS[way]
    if "padding." in WAYS[way]:
        text += f'parameters {{ key: "padding.multiple_of" value {{ string_value: "{plan.multiple_of}" }} }}\n'
    (folder / "config.pbtxt").write_text(text)
    return directory / way


async def opened(stack: AsyncExitStack, way: str, plan: Plan, directory: Path) -> Way:
    """With `longest`, clients pad to `plan.texts.pad_to`."""
    settings = Settings(model_repository=(repository(directory, way, plan),))
    server = await stack.enter_async_context(InferenceServer(settings))

    async def embed(inputs: Mapping[str, Ids]) -> NDArray[np.float32]:
        response = await server.infer("encoder", inputs)
        array: NDArray[np.float32] = response.outputs["embedding"].array
        return array

    async def padded(ids: Ids) -> NDArray[np.float32]:
        width = ((0, 0), (0, plan.texts.pad_to - ids.shape[1]))
        return await embed({"input_ids": np.pad(ids, width), "attention_mask": np.pad(np.ones_like(ids), width)})

    async def as_it_is(ids: Ids) -> NDArray[np.float32]:
        if "padding." in WAYS[way]:
            return await embed({"input_ids": ids})
        return await embed({"input_ids": ids, "attention_mask": np.ones_like(ids)})

    return Way(server, padded if way == "longest" else as_it_is)


async def closed_loop(call: Call, texts: Iterator[Ids], clients: int, seconds: float) -> Window:
    """Clients begin until the time is over, and what they began counts."""
    begin, cpu = time.perf_counter(), time.process_time()
    latencies: list[float] = []

    async def client() -> None:
        while (start := time.perf_counter()) - begin < seconds:
            await call(next(texts))
            latencies.append(time.perf_counter() - start)

    await asyncio.gather(*(client() for _ in range(clients)))
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    count = len(latencies)
    return Window(count / seconds, 1e3 * cpu / count, 1e3 * float(np.percentile(latencies, 99)))


async def open_loop(call: Call, texts: Iterator[Ids], rate: float, seconds: float, seed: int) -> float:
    """The mean latency in seconds of texts that come by chance."""
    chance = random.Random(seed)
    latencies: list[float] = []

    async def one() -> None:
        begin = time.perf_counter()
        await call(next(texts))
        latencies.append(time.perf_counter() - begin)

    begin = due = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        while True:
            due += chance.expovariate(rate)
            if due > begin + seconds:
                break
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.create_task(one())
    return statistics.fmean(latencies) if latencies else 0.0


async def measured(plan: Plan) -> dict[str, Way]:
    texts = itertools.cycle(plan.texts.texts(4096))
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncExitStack() as stack:
            ways = {name: await opened(stack, name, plan, Path(directory)) for name in WAYS}
            for _ in range(16):
                ids = next(texts)
                answers = await asyncio.gather(*(way.call(ids) for way in ways.values()))
                for answer in answers[1:]:
                    np.testing.assert_allclose(answer, answers[0], atol=1e-4)
            order = list(ways)
            for name, way in ways.items():
                await closed_loop(way.call, texts, plan.clients, plan.settle * (1 if name == "measured" else 0.2))
            shares = {name: way.elements for name, way in ways.items()}
            for _ in range(plan.rounds):
                for name in order:
                    way = ways[name]
                    way.rates.append((await closed_loop(way.call, texts, plan.clients, plan.window)).rate)
                order.append(order.pop(0))
            for name, way in ways.items():
                useful, padding = (now - then for now, then in zip(way.elements, shares[name], strict=True))
                PADDED[name] = padding / max(1, useful + padding)
            rate = plan.load * statistics.median(ways["alone"].rates)
            for number in range(1 + plan.rounds // 2):
                for name in order:
                    if name != "longest":  # which is overloaded by that
                        mean = await open_loop(ways[name].call, texts, rate, plan.window, number)
                        if number:
                            ways[name].latencies.append(mean)
                order.append(order.pop(0))
    return ways


PADDED: dict[str, float] = defaultdict(float)
"""The share of padding among the elements that ran, in the latest measurement."""


def table(plan: Plan) -> str:
    ways = asyncio.run(measured(plan))
    PADDED["longest"] = 1 - float(plan.texts.lengths(4096).mean()) / plan.texts.pad_to
    lines = [
        f"**{plan.engine}**\n",
        f"| | texts/s (least–most) | padding | mean latency at {plan.load:.0%} of the rate without batching |",
        "|---|---|---|---|",
    ]
    for name, way in ways.items():
        latency = f"{statistics.median(way.latencies) * 1e3:.1f} ms" if way.latencies else "-"
        rates = f"{statistics.median(way.rates):.0f} ({min(way.rates):.0f}–{max(way.rates):.0f})"
        lines.append(f"| {TITLES[name]} | {rates} | {PADDED[name]:.0%} | {latency} |")
    # By the same policy in all rounds: the best of each round would be the luckiest.
    for other in OTHERS:
        rate = ratios(ways["measured"].rates, ways[other].rates)
        late = ratios(ways["measured"].latencies, ways[other].latencies)
        lines.append(f"| `measured` / `{other}`, of the same round | {rate} | | {late} |")
    return "\n".join(lines)


def ratios(ones: Sequence[float], others: Sequence[float]) -> str:
    each = [one / other for one, other in zip(ones, others, strict=True)]
    return f"{statistics.median(each):.3f} ({min(each):.2f}–{max(each):.2f})"


def report(plans: Sequence[Plan]) -> str:
    plan = plans[0]
    head = (
        f"all-MiniLM-L6-v2, fp32, {plan.clients} clients in process, batches of up to {MOST}; {plan.texts.title}; "
        f"the mean is {plan.texts.lengths(4096).mean():.0f}. Median of {plan.rounds} windows of {plan.window:g} s "
        f"each; the variants take turns. The server pads to a multiple of {plan.multiple_of} tokens.\n"
    )
    return "\n\n".join([head, *(table(plan) for plan in plans)])
