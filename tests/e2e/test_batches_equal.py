"""Whatever is batched with whatever: every request gets, bit for bit, what it gets alone."""

import asyncio
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple

import grpc
import numpy as np
import pytest
from open_server import OpenServer
from repositories import EXAMPLES, copy_example
from server_process import ServerProcess
from tritonclient.grpc import service_pb2_grpc
from wire import (
    HOST,
    SECONDS,
    UNLIMITED,
    Ask,
    Input,
    binary_outputs,
    binary_request,
    connect,
    infer_path,
    message,
    raw_outputs,
    send,
    statistics,
)

LARGEST = 5
"""Rows of a single request at most: larger batches hold several."""

Outputs = dict[str, bytes]


class Case(NamedTuple):
    ask: Ask
    protocol: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, open_server: OpenServer) -> Iterator[ServerProcess]:
    """The examples, and copies of them that wait until a batch is full, or for a quarter of a second."""
    copies = tmp_path_factory.mktemp("patient")
    for example, size in (("digits", 32), ("simple", 8)):
        patience = f"{{ preferred_batch_size: [ {size} ] max_queue_delay_microseconds: 250000 }}"
        copy_example(copies, example, f"patient_{example}", f"dynamic_batching {patience}", drop="dynamic_batching")
    with open_server.host(EXAMPLES, copies) as running:
        yield running


def digits(chance: random.Random, rows: int) -> Ask:
    pixels = np.array([chance.randrange(17) for _ in range(64 * rows)], dtype="<f4")
    outputs = chance.choice([(), ("label",), ("probabilities",), ("probabilities", "label")])
    given = Input("image", "FP32", (rows, 64), pixels.tobytes())
    return Ask((given,), model="digits", version=chance.choice(["", "1", "2"]), outputs=outputs, id=str(rows))


def simple(chance: random.Random, rows: int) -> Ask:
    def numbers(name: str) -> Input:
        values = np.array([chance.randrange(-(2**31), 2**31) for _ in range(16 * rows)], dtype="<i4")
        return Input(name, "INT32", (rows, 16), values.tobytes())

    inputs = [numbers("INPUT0"), numbers("INPUT1")]
    chance.shuffle(inputs)
    return Ask(tuple(inputs), model="simple", outputs=chance.choice([(), ("OUTPUT0",), ("OUTPUT1",)]))


def mix(count: int) -> list[Case]:
    """The same on every run."""
    chance = random.Random(20)
    return [
        Case(
            chance.choice([digits, digits, simple])(chance, chance.randint(1, LARGEST)),
            chance.choice(["http json", "http binary", "grpc"]),
        )
        for _ in range(count)
    ]


def json_request(ask: Ask) -> bytes:
    types = {"FP32": "<f4", "INT32": "<i4"}
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "data": np.frombuffer(raw, types[datatype]).tolist()}
        for name, datatype, shape, raw in ask.inputs
    ]
    outputs = {"outputs": [{"name": name} for name in ask.outputs]} if ask.outputs else {}
    return json.dumps({"id": ask.id, "inputs": inputs, **outputs}).encode()


def json_outputs(body: bytes) -> Outputs:
    types = {"FP32": "<f4", "INT32": "<i4", "INT64": "<i8"}
    return {
        output["name"]: np.array(output["data"], dtype=types[output["datatype"]]).tobytes()
        for output in json.loads(body)["outputs"]
    }


def by_http(port: int, ask: Ask, binary: bool) -> Outputs:
    body, headers = binary_request(ask) if binary else (json_request(ask), {})
    with closing(connect(port)) as connection:
        answer = send(connection, "POST", infer_path(ask.model, ask.version), body, headers)
    assert answer.status == 200, answer.body
    return binary_outputs(answer) if binary else json_outputs(answer.body)


async def together(server: ServerProcess, cases: list[Case]) -> list[Outputs]:
    """All of them at once."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(cases)) as threads:
        async with grpc.aio.insecure_channel(f"{HOST}:{server.grpc_port}", UNLIMITED) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

            async def one(case: Case) -> Outputs:
                if case.protocol == "grpc":
                    return raw_outputs(await stub.ModelInfer(message(case.ask), timeout=SECONDS))
                binary = case.protocol == "http binary"
                return await loop.run_in_executor(threads, by_http, server.http_port, case.ask, binary)

            return await asyncio.gather(*map(one, cases))


def executions(server: ServerProcess, model: str) -> int:
    found: int = statistics(server, model)["execution_count"]
    return found


@pytest.mark.parametrize("prefix", ["", "patient_"], ids=["as-configured", "full-batches"])
async def test_mixed_requests_get_what_they_get_alone(server: ServerProcess, prefix: str) -> None:
    cases = mix(96)
    before = executions(server, "simple")
    alone = [by_http(server.http_port, case.ask, binary=True) for case in cases]
    # None of these shared an execution with another.
    assert executions(server, "simple") - before == sum(case.ask.model == "simple" for case in cases)

    renamed = [case._replace(ask=_renamed(case.ask, prefix + case.ask.model)) for case in cases]
    assert await together(server, renamed) == alone


async def test_large_batches_do_form(server: ServerProcess) -> None:
    """Or the test above would show nothing."""
    await together(server, [case._replace(ask=_renamed(case.ask, f"patient_{case.ask.model}")) for case in mix(96)])
    for model in ("patient_digits", "patient_simple"):
        sizes = [row["batch_size"] for row in statistics(server, model)["batch_stats"]]
        assert max(sizes) > LARGEST, f"{model}: {sizes}"


def _renamed(ask: Ask, model: str) -> Ask:
    return Ask(ask.inputs, model, ask.version, ask.id, ask.outputs)
