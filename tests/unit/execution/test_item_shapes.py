"""A batch that nobody has configured, and whose outputs' other dimensions depend on it: its requests run alone."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
from pool_bench import Bench, answer, member, until

from modserve.core.configuration.model_config import TensorSpec
from modserve.core.requests.inflight import Inflight
from modserve.core.tensors import dtypes
from modserve.testing import Execution, config

PRODUCTS = (TensorSpec("OUTPUT0", dtypes.INT32, (-1,)),)
"""Of each row with all rows: as many as the batch has."""


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(1, config(outputs=PRODUCTS, default_batch_size=True))
    yield made
    await asyncio.to_thread(made.pool.close)


def products(execution: Execution) -> None:
    rows = execution.inputs["INPUT0"]
    execution.finish({"OUTPUT0": (rows @ rows.T).astype(np.int32)})


def widths(execution: Execution, width: int) -> None:
    execution.finish({"OUTPUT0": np.repeat(execution.inputs["INPUT0"][:, :1], width, axis=1)})


async def run(bench: Bench, *members: Inflight, alone: int = 0) -> None:
    """A batch, and then so many executions of single requests."""
    count = sum(bench.settled) + len(members)
    products(bench.run(*members))
    for _ in range(alone):
        execution = await asyncio.to_thread(bench.backend.next_execution)
        assert len(execution.inputs["INPUT0"]) == 1
        products(execution)
    await until(lambda: sum(bench.settled) == count)
    await bench.until_free()


async def test_a_first_batch_that_is_as_wide_as_it_is_long_is_not_believed(bench: Bench) -> None:
    first, second = member(1), member(2)
    await run(bench, first, second, alone=2)
    assert (answer(first), answer(second)) == ([[4]], [[16]])
    assert bench.mixed == 0, "what each gives alone is known from now on"
    third, fourth = member(3), member(4)
    await run(bench, third, fourth, alone=2)
    assert (answer(third), answer(fourth)) == ([[36]], [[64]])
    assert bench.mixed == 1


async def test_another_width_than_alone_ends_batching(bench: Bench) -> None:
    await run(bench, member(1))
    first, second, third = member(1), member(2), member(3)
    await run(bench, first, second, third, alone=3)
    assert [answer(each) for each in (first, second, third)] == [[[4]], [[16]], [[36]]]
    assert bench.mixed == 1


async def test_a_width_that_happens_to_be_the_number_of_rows_costs_one_batch(bench: Bench) -> None:
    members = [member(value) for value in (1, 2, 3)]
    widths(bench.run(*members), 3)
    for _ in members:
        widths(await asyncio.to_thread(bench.backend.next_execution), 3)
    await bench.until_free()
    more = [member(value) for value in (4, 5, 6)]
    widths(bench.run(*more), 3)
    await bench.until_free()
    assert [answer(each) for each in (*members, *more)] == [[[value] * 3] for value in range(1, 7)]
    assert bench.mixed == 0


@pytest.mark.parametrize("default", [True, False])
async def test_widths_of_other_requests_count_only_for_batches_nobody_configured(default: bool) -> None:
    bench = Bench(1, config(outputs=PRODUCTS, default_batch_size=default))
    widths(bench.run(member(1)), 5)
    await bench.until_free()
    members = [member(2), member(3)]
    widths(bench.run(*members), 6)
    if default:
        for _ in members:
            widths(await asyncio.to_thread(bench.backend.next_execution), 5)
    await bench.until_free()
    assert [answer(each) for each in members] == [[[value] * (5 if default else 6)] for value in (2, 3)]
    await asyncio.to_thread(bench.pool.close)
