"""Which requests share a response, and which responses go when there is no room."""

import itertools
from typing import Any

import numpy as np
import pytest

from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.resources.response_cache import ResponseCache, key

OWNER, OTHER = object(), object()
LONG = 2 * 2**20


def numbers(values: list[int], shape: tuple[int, ...] | None = None) -> Tensor:
    return Tensor.from_array(np.array(values, np.int32).reshape(shape or (len(values),)))


def ask(inputs: dict[str, Tensor] | None = None, outputs: tuple[str, ...] = (), **parameters: Any) -> InferenceRequest:
    return InferenceRequest("m", inputs or {"A": numbers([1, 2, 3, 4])}, outputs, parameters=parameters)


DIFFERENT = {
    "plain": ask(),
    "data": ask({"A": numbers([1, 2, 3, 5])}),
    "shape": ask({"A": numbers([1, 2, 3, 4], (2, 2))}),
    "datatype": ask({"A": Tensor.from_array(np.array([1, 2, 3, 4], np.uint32))}),
    "name": ask({"B": numbers([1, 2, 3, 4])}),
    "two inputs": ask({"A": numbers([1, 2]), "B": numbers([3, 4])}),
    "two inputs, cut elsewhere": ask({"A": numbers([1, 2, 3]), "B": numbers([4])}),
    "two inputs, exchanged": ask({"B": numbers([1, 2]), "A": numbers([3, 4])}),
    "an output": ask(outputs=("X",)),
    "outputs": ask(outputs=("X", "Y")),
    "outputs, in another order": ask(outputs=("Y", "X")),
    "one output of an odd name": ask(outputs=("X', 'Y",)),
    "parameter": ask(p=1),
    "parameter of another type": ask(p=True),
    "parameter as text": ask(p="1"),
    "another parameter": ask(q=1),
    "bytes": ask({"A": Tensor.from_array(np.array([b"ab", b"c"], dtype=object), dtypes.BYTES)}),
    "bytes, cut elsewhere": ask({"A": Tensor.from_array(np.array([b"a", b"bc"], dtype=object), dtypes.BYTES)}),
    "surrogates": ask(p="\ud800"),
}


def test_different_requests() -> None:
    keys = {name: key(request) for name, request in DIFFERENT.items()}
    assert [pair for pair in itertools.combinations(keys, 2) if keys[pair[0]] == keys[pair[1]]] == []


SAME = {
    "order of inputs": ({"A": numbers([1]), "B": numbers([2])}, {"B": numbers([2]), "A": numbers([1])}),
    "received": ({"A": numbers([1])}, {"A": Tensor.from_raw(dtypes.INT32, (1,), memoryview(b"\1\0\0\0"))}),
    "transposed": (
        {"A": numbers([1, 2, 3, 4], (2, 2))},
        {"A": Tensor.from_array(np.array([[1, 3], [2, 4]], np.int32).T)},
    ),
}


@pytest.mark.parametrize(("left", "right"), SAME.values(), ids=SAME)
def test_the_same_requests(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert key(ask(left)) == key(ask(right))


def test_parameters_that_do_not_change_the_answer() -> None:
    assert key(ask(priority=1, timeout=5, p=1)) == key(ask(p=1))
    assert key(InferenceRequest("m", ask().inputs, id="a", deadline_ns=1)) == key(ask())


def answer(value: int, size: int = 1000) -> InferenceResponse:
    return InferenceResponse("m", 1, {"OUT": Tensor.from_array(np.full(size, value, np.int8))}, "id", {"p": value})


def value(cache: ResponseCache, name: bytes, owner: object = OWNER) -> int | None:
    found = cache.get(owner, name)
    return None if found is None else int(found.outputs["OUT"].array[0])


def test_the_least_recently_used_go_first() -> None:
    cache = ResponseCache(5000)
    for number in range(3):
        cache.put(OWNER, b"%d" % number, answer(number))
    assert (len(cache), cache.size) == (3, 3 * 1512)
    assert value(cache, b"0") == 0
    cache.put(OWNER, b"3", answer(3))
    assert [value(cache, name) for name in (b"0", b"1", b"2", b"3")] == [0, None, 2, 3]
    cache.put(OWNER, b"4", answer(4, 4400))  # which takes the whole of it
    assert (len(cache), cache.size, value(cache, b"4")) == (1, 4912, 4)
    cache.put(OWNER, b"5", answer(5, 4500))
    assert (len(cache), value(cache, b"5")) == (1, None)


def test_the_same_key_again_takes_no_more_room() -> None:
    cache = ResponseCache(5000)
    for number in range(10):
        cache.put(OWNER, b"k", answer(number))
    assert (len(cache), cache.size, value(cache, b"k")) == (1, 1512, 9)


def test_owners_share_nothing_but_the_room() -> None:
    cache = ResponseCache(5000)
    cache.put(OWNER, b"k", answer(1))
    cache.put(OTHER, b"k", answer(2))
    assert (value(cache, b"k"), value(cache, b"k", OTHER)) == (1, 2)
    cache.forget(OWNER)
    assert (value(cache, b"k"), value(cache, b"k", OTHER), cache.size) == (None, 2, 1512)


def test_what_an_ensemble_skipped_is_kept_and_how_long_it_waited_is_not() -> None:
    cache = ResponseCache(5000)
    cache.put(OWNER, b"k", InferenceResponse("m", 1, {}, skipped=frozenset({"OUT"}), waited_ns=5))
    found = cache.get(OWNER, b"k")
    assert found is not None
    assert (found.skipped, found.waited_ns) == (frozenset({"OUT"}), 0)


def test_what_is_kept_is_a_copy() -> None:
    batch = np.arange(2000, dtype=np.int8)
    cache = ResponseCache(5000)
    cache.put(OWNER, b"k", InferenceResponse("m", 1, {"OUT": Tensor.from_array(batch[7:1007])}))
    batch[:] = 0
    assert value(cache, b"k") == 7
    found = cache.get(OWNER, b"k")
    assert found is not None
    assert not found.outputs["OUT"].array.flags.writeable


def test_responses_grow_old() -> None:
    now = [0.0]
    cache = ResponseCache(1 << 20, ttl_s=5, now=lambda: now[0])
    cache.put(OWNER, b"a", InferenceResponse("m", 1, {"X": numbers([1])}))
    now[0] = 4.9
    assert cache.get(OWNER, b"a") is not None
    now[0] = 5.0
    assert (cache.get(OWNER, b"a"), len(cache), cache.size) == (None, 0, 0)


def test_a_response_that_is_too_long() -> None:
    cache = ResponseCache(1 << 20, longest=8)
    cache.put(OWNER, b"long", InferenceResponse("m", 1, {"X": numbers([1, 2, 3])}))
    cache.put(OWNER, b"short", InferenceResponse("m", 1, {"X": numbers([1, 2])}))
    assert [cache.get(OWNER, key) is not None for key in (b"long", b"short")] == [False, True]
    assert cache.fetch(OWNER, b"short") is None


# Long responses


async def test_a_long_response_is_copied_at_once() -> None:
    """When it has gone on, a client may write to the shared memory that it is in."""
    cache = ResponseCache(10 * LONG)
    batch = np.full((2, LONG), 1, np.uint8)
    cache.put(OWNER, b"k", InferenceResponse("m", 1, {"LONG": Tensor.from_array(batch[:1])}))
    batch[:] = 2
    kept = cache.get(OWNER, b"k")
    assert kept is not None
    long = kept.outputs["LONG"]
    assert (long.datatype, long.shape) == (dtypes.UINT8, (1, LONG))
    assert bytes(long.raw) == b"\1" * LONG
    assert memoryview(long.raw).readonly
