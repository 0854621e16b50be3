"""Quantiles of the last minute."""

import math
import random

import pytest

from modserve.core.statistics.summary import SLOT_NS, SLOTS, Summary


def test_quantiles_of_many() -> None:
    values = list(range(1, 10_001))
    random.Random(1).shuffle(values)
    summary = Summary()
    for value in values:
        summary.observe(value * 1000, 0)
    assert (summary.count, summary.total) == (10_000, 50_005_000_000)
    ranks = (0.0, 0.5, 0.99, 1.0)
    for rank, quantile in zip(ranks, summary.quantiles(ranks, 0), strict=True):
        assert quantile == pytest.approx(max(1, rank * 10_000) * 1000, rel=0.01)


def test_a_batch_counts_once_for_each_request() -> None:
    summary = Summary()
    summary.observe(100, 0, 3)
    summary.observe(50, 0)
    assert (summary.count, summary.total) == (4, 350)
    assert summary.quantiles((0.25, 0.5), 0) == [50, 100]


def test_what_is_old_counts_no_more() -> None:
    summary = Summary()
    summary.observe(10, 0)
    summary.observe(100, 2 * SLOT_NS)
    assert summary.quantiles((0.5, 1), 3 * SLOT_NS) == [10, 100]
    assert summary.quantiles((0.5, 1), SLOTS * SLOT_NS) == [100, 100]
    assert all(map(math.isnan, summary.quantiles((0.5,), (SLOTS + 2) * SLOT_NS)))
    summary.observe(20, 100 * SLOT_NS)
    assert summary.quantiles((0.5, 1), 100 * SLOT_NS) == [20, 20]
    assert (summary.count, summary.total) == (3, 130)


def test_nothing_yet() -> None:
    assert all(map(math.isnan, Summary().quantiles((0.5, 0.9), 0)))
