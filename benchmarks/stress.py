"""Everything at once, for a while, and nothing lost: is every request answered, refused or cancelled, and none wrongly?

    python benchmarks/stress.py                # 60 seconds
    python benchmarks/stress.py --seconds 600 --clients 64

Clients of four kinds share one server: single requests of mixed priorities with time-outs, deadlines and cancellations
(HTTP and gRPC), sequences that are sometimes left in the middle, ensembles, and streams of a decoupled model. Each
answer is compared with the right one. Exit code 1 if any is wrong, or the count does not add up.
"""

import argparse
import asyncio
import operator
import random
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import orjson
import tritonclient.grpc.aio
import tritonclient.http.aio
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from overhead import ROOT, ServerProcess, server

_REFUSALS = ("Request timeout expired", "Exceeds maximum queue size", "Deadline Exceeded")
_PHOTOS = 8


@dataclass
class Tally:
    """What became of the requests of one kind."""

    sent: int = 0
    answered: int = 0
    refused: int = 0
    cancelled: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def adds_up(self) -> bool:
        return self.sent == self.answered + self.refused + self.cancelled

    async def count(self, request: Awaitable[Any], check: Callable[[Any], bool]) -> bool:
        """Await one request; whether it was answered."""
        self.sent += 1
        try:
            result = await request
        except TimeoutError:
            self.cancelled += 1
            return False
        except InferenceServerException as error:
            text = str(error)
            if "Cancelled" in text or "CANCELLED" in text:
                self.cancelled += 1
            elif any(known in text for known in _REFUSALS):
                self.refused += 1
            else:
                self.refused += 1
                self.wrong.append(text)
            return False
        self.answered += 1
        if not check(result):
            self.wrong.append("an answer that is not the right one")
        return True


@dataclass
class Stage:
    """What the clients share."""

    http: Any
    grpc: Any
    end: float
    photos: list[Any] = field(default_factory=list)
    digits: list[int] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end


def write_repository(path: Path) -> None:
    """`simple` with priorities and a small queue, two accumulators, the pipeline of the examples, and `repeat`."""
    for example in ("digits", "digits_resize", "digits_pipeline", "repeat", "simple"):
        shutil.copytree(ROOT / "model_repository" / example, path / example)
    config = path / "simple" / "config.pbtxt"
    batching = (
        "dynamic_batching { max_queue_delay_microseconds: 2000 priority_levels: 3 default_priority_level: 2 "
        "default_queue_policy { max_queue_size: 64 default_timeout_microseconds: 500000 allow_timeout_override: true } "
        "priority_queue_policy { key: 3 value { timeout_action: DELAY default_timeout_microseconds: 1000 } } }"
    )
    config.write_text(config.read_text().replace("dynamic_batching { }", batching))
    for name, strategy in (("direct", "direct { }"), ("oldest", "oldest { max_candidate_sequences: 4 }")):
        _write_accumulator(path / name, strategy)


def _write_accumulator(path: Path, strategy: str) -> None:
    """OUTPUT is the sum of a sequence's INPUTs so far."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", 1]) for name in ("INPUT", "SUM")]
    outputs = [helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", 1]) for name in ("OUTPUT", "SUM_OUT")]
    nodes = [
        helper.make_node("Add", ["INPUT", "SUM"], ["OUTPUT"]),
        helper.make_node("Identity", ["OUTPUT"], ["SUM_OUT"]),
    ]
    graph = helper.make_graph(nodes, path.name, inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    (path / "1").mkdir(parents=True)
    onnx.save(model, path / "1" / "model.onnx")
    state = 'state [ { input_name: "SUM" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]'
    (path / "config.pbtxt").write_text(
        "max_batch_size: 4\ninstance_group [ { count: 2 kind: KIND_CPU } ]\n"
        f"sequence_batching {{ max_sequence_idle_microseconds: 1000000 {strategy} {state} }}\n"
    )


def _inputs(module: Any, **arrays: Any) -> list[Any]:
    found = []
    for name, array in arrays.items():
        tensor = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        found.append(tensor)
    return found


def _holds(expected: dict[str, Any], result: Any) -> bool:
    """Whether the outputs of a result are these."""
    return all(np.array_equal(result.as_numpy(name), array) for name, array in expected.items())


async def singles(stage: Stage, tally: Tally, chance: random.Random, client: Any, module: Any) -> None:
    """Sums and differences, of which some are in a hurry and some are given up."""
    while not stage.over:
        rows = chance.randint(1, 8)
        a, b = (np.array([[chance.randint(-99, 99)] * 16] * rows, np.int32) for _ in range(2))
        how: dict[str, Any] = {"priority": chance.randint(0, 3)}
        if chance.random() < 0.2:
            how["timeout"] = chance.choice((1, 3_000))
        if client is stage.grpc and chance.random() < 0.1:
            how["client_timeout"] = 0.003
        request = client.infer("simple", _inputs(module, INPUT0=a, INPUT1=b), **how)
        patience = 0.002 if chance.random() < 0.15 else 30.0
        await tally.count(
            asyncio.wait_for(request, patience),
            partial(_holds, {"OUTPUT0": a + b, "OUTPUT1": a - b}),
        )


async def sequences(stage: Stage, tally: Tally, chance: random.Random, number: int) -> None:
    """Running sums; one sequence in ten is left without an end."""
    sequence_id = 0
    while not stage.over:
        sequence_id += 1
        given_up = chance.random() < 0.1
        total, length, model = 0, chance.randint(1, 12), chance.choice(("direct", "oldest"))
        for index in range(length):
            value = chance.randint(-99, 99)
            total += value
            request = stage.grpc.infer(
                model,
                _inputs(tritonclient.grpc, INPUT=np.array([[value]], np.int32)),
                sequence_id=f"{number}-{sequence_id}",
                sequence_start=index == 0,
                sequence_end=index == length - 1 and not given_up,
            )
            if not await tally.count(request, partial(_holds, {"OUTPUT": np.array([[total]])})):
                break


async def ensembles(stage: Stage, tally: Tally, chance: random.Random) -> None:
    """Pictures to digits; some are given up while a step runs."""
    while not stage.over:
        which = chance.randrange(_PHOTOS)
        client, module = chance.choice(((stage.http, tritonclient.http), (stage.grpc, tritonclient.grpc)))
        request = client.infer("digits_pipeline", _inputs(module, photo=stage.photos[which]))
        await tally.count(
            asyncio.wait_for(request, 0.003 if chance.random() < 0.1 else 30.0),
            partial(_holds, {"label": np.array([[stage.digits[which]]])}),
        )


async def streams(stage: Stage, tally: Tally, chance: random.Random) -> None:
    """Numbers that come back one by one."""

    async def requests(values: list[list[int]]) -> Any:
        for index, each in enumerate(values):
            yield {
                "model_name": "repeat",
                "request_id": str(index),
                "inputs": _inputs(
                    tritonclient.grpc,
                    IN=np.array(each, np.int32),
                    DELAY=np.array([chance.randint(0, 3) for _ in each], np.uint32),
                    WAIT=np.zeros(1, np.uint32),
                ),
            }

    async def exchange(values: list[list[int]]) -> dict[str, list[int]]:
        heard: dict[str, list[int]] = {str(index): [] for index in range(len(values))}
        async for result, error in stage.grpc.stream_infer(requests(values)):
            if error is not None:
                raise error
            heard[result.get_response().id].append(result.as_numpy("OUT").item())
        return heard

    while not stage.over:
        values = [[chance.randint(-99, 99) for _ in range(chance.randint(1, 8))] for _ in range(chance.randint(1, 4))]
        expected = {str(index): each for index, each in enumerate(values)}
        await tally.count(exchange(values), partial(operator.eq, expected))


async def _photographs(stage: Stage) -> None:
    """Pictures, and what calling the steps one by one makes of them."""
    random_numbers = np.random.default_rng(0)
    for _ in range(_PHOTOS):
        photo = random_numbers.integers(0, 256, (1, 40, 40), dtype=np.uint8)
        small = await stage.grpc.infer("digits_resize", _inputs(tritonclient.grpc, photo=photo))
        found = await stage.grpc.infer(
            "digits", _inputs(tritonclient.grpc, image=small.as_numpy("image")), model_version="2"
        )
        stage.photos.append(photo)
        stage.digits.append(found.as_numpy("label").item())


async def drive(target: ServerProcess, seconds: float, clients: int, seed: int) -> dict[str, Tally]:
    """Load `target` with `clients` clients of all kinds; what became of their requests, by kind."""
    async with (
        tritonclient.http.aio.InferenceServerClient(f"127.0.0.1:{target.http}", conn_limit=clients) as http,
        tritonclient.grpc.aio.InferenceServerClient(f"127.0.0.1:{target.grpc}") as grpc,
    ):
        stage = Stage(http, grpc, 0.0)
        await _photographs(stage)
        stage.end = time.monotonic() + seconds
        tallies = {kind: Tally() for kind in ("HTTP", "gRPC", "sequences", "ensembles", "streams")}
        kinds: list[Callable[[random.Random, int], Coroutine[Any, Any, None]]] = [
            lambda chance, _: singles(stage, tallies["HTTP"], chance, http, tritonclient.http),
            lambda chance, _: singles(stage, tallies["gRPC"], chance, grpc, tritonclient.grpc),
            lambda chance, number: sequences(stage, tallies["sequences"], chance, number),
            lambda chance, _: ensembles(stage, tallies["ensembles"], chance),
            lambda chance, _: streams(stage, tallies["streams"], chance),
        ]
        async with asyncio.TaskGroup() as tasks:
            for number in range(clients):
                tasks.create_task(kinds[number % len(kinds)](random.Random(seed * 1000 + number), number))
    return tallies


def pending(target: ServerProcess, patience: float = 5.0) -> int:
    """How many requests still wait in the server, once it had `patience` seconds to forget those that were given up."""
    end = time.monotonic() + patience
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{target.metrics}/metrics") as page:
            lines = page.read().decode().splitlines()
        waiting = sum(
            float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("nv_inference_pending_request")
        )
        if not waiting or time.monotonic() > end:
            return int(waiting)
        time.sleep(0.05)


def statistics(target: ServerProcess) -> dict[str, tuple[int, int]]:
    """Requests that succeeded and failed, by model, as the server counts them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{target.http}/v2/models/stats") as answer:
        models = orjson.loads(answer.read())["model_stats"]
    counts: dict[str, tuple[int, int]] = {}
    for model in models:
        success, fail = counts.get(model["name"], (0, 0))
        found = model["inference_stats"]
        counts[model["name"]] = success + found["success"]["count"], fail + found["fail"]["count"]
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        write_repository(Path(directory))
        with server(Path(directory)) as target:
            tallies = asyncio.run(drive(target, arguments.seconds, arguments.clients, arguments.seed))
            waiting, counts = pending(target), statistics(target)
    print("| | sent | answered | refused | cancelled | wrong |\n|---|---|---|---|---|---|")
    for kind, tally in tallies.items():
        print(
            f"| {kind} | {tally.sent} | {tally.answered} | {tally.refused} | {tally.cancelled} | {len(tally.wrong)} |"
        )
    print("\nrequests by the server's count (succeeded, failed):", counts)
    print("requests that still wait:", waiting)
    for kind, tally in tallies.items():
        for text in sorted(set(tally.wrong)):
            print(f"{kind}: {text}", file=sys.stderr)
    if waiting or any(tally.wrong or not tally.adds_up for tally in tallies.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
