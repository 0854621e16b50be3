"""How durations are spread: quantiles beside the exact ones."""

import math
import random
from collections.abc import Callable, Sequence

import pytest

from modserve.core.statistics.histogram import Histogram
from modserve.core.statistics.summary import Sketch, bucket_of, middle_of

SHARES = (0.5, 0.9, 0.95, 0.99)
MS = 1_000_000
LOADS: dict[str, Callable[[random.Random], float]] = {
    "the same": lambda _: 1.2e9,
    "even": lambda chance: chance.uniform(1e6, 9e6),
    "exponential": lambda chance: chance.expovariate(1 / 20e6),
    "long tail": lambda chance: chance.lognormvariate(math.log(3e6), 1.5),
    "hits and misses of a cache": lambda chance: chance.gauss(8e4, 2e3) if chance.random() < 0.7 else 40e6,
    "nanoseconds": lambda chance: chance.uniform(1, 300),
}
"""One duration of a load, in nanoseconds."""


def sketched(load: Sequence[int]) -> Sketch:
    sketch = Sketch()
    for ns in load:
        sketch.observe(ns)
    return sketch


def exact(load: Sequence[int], share: float) -> int:
    """The least duration that so large a part did not exceed."""
    return sorted(load)[math.ceil(share * len(load)) - 1]


@pytest.mark.parametrize("ns", [0, 1, 127, 128, 129, 255, 256, 1000, 123_456_789, 3_600 * 10**9])
def test_a_bucket_stands_for_what_is_near(ns: int) -> None:
    assert abs(middle_of(bucket_of(ns)) - ns) <= ns / 128


def test_buckets_ascend_without_gaps() -> None:
    numbers = [bucket_of(ns) for ns in range(5000)]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(numbers[-1] + 1))
    assert bucket_of(-5) == 0


@pytest.mark.parametrize("count", [1, 2, 10, 1000, 50_000])
@pytest.mark.parametrize("name", LOADS)
def test_quantiles_are_those_of_the_load(name: str, count: int) -> None:
    """Within 1 %, and within the width of a bucket where the longest stands for it."""
    chance = random.Random(count)
    load = [max(0, int(LOADS[name](chance))) for _ in range(count)]
    sketch = sketched(load)
    assert sketch.total == count
    for share in SHARES:
        assert sketch.quantile(share) == pytest.approx(exact(load, share), rel=1 / 64)


def test_no_quantile_is_longer_than_the_longest() -> None:
    assert sketched([900_001]).quantile(0.5) == 900_001
    assert sketched([MS] * 100).quantile(0.99) == MS


def test_nothing_has_no_quantile() -> None:
    assert math.isnan(Sketch().quantile(0.5))
    assert (Sketch().total, Sketch().longer(0)) == (0, 0)


def test_sketches_of_workers_add_up() -> None:
    chance = random.Random(7)
    loads = [[int(chance.expovariate(1 / mean)) for _ in range(500)] for mean in (2e6, 9e6)]
    whole = Sketch()
    for load in loads:
        whole.add(sketched(load))
    for share in SHARES:
        assert whole.quantile(share) == pytest.approx(exact(loads[0] + loads[1], share), rel=0.01)
    assert whole.longest == max(loads[0] + loads[1])


def test_what_came_since() -> None:
    before = sketched([MS] * 90 + [2 * MS])
    now = before.copy()
    now.observe(40 * MS, 3)
    since = now.since(before)
    assert (since.total, since.quantile(0.5)) == (3, 40 * MS)
    assert before.total == 91, "a copy is one of its own"
    assert before.since(now).counts == {}, "it was begun anew"
    assert now.since(now).counts == {}


def test_how_many_took_longer() -> None:
    sketch = sketched([MS] * 5 + [10 * MS] * 2)
    assert [sketch.longer(ns) for ns in (0, 5 * MS, 20 * MS)] == [7, 2, 0]


def test_histograms_of_other_units_count_nanoseconds() -> None:
    seconds = Histogram((1.0,), 1e9)
    seconds.observe(0.25, 2)
    copy = seconds.copy()
    seconds.observe(8.0)
    assert copy.sketch is not None
    assert (copy.sketch.total, copy.sketch.quantile(0.99), copy.buckets) == (2, 0.25e9, [2, 0])
    assert Histogram((1.0,)).sketch is None
