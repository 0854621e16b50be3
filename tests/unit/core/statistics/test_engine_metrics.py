"""The metrics that engines make: who shares a value, when it goes, and what is refused."""

import math
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from modserve import Code, ModserveError
from modserve.core.statistics.histogram import Histogram
from modserve.core.statistics.metrics import MetricStore, StoredMetric, StoredMetrics


def values(store: MetricStore) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Of families without buckets."""
    return {
        name: [(labels, value) for labels, value in rows if isinstance(value, float)]
        for name, _, _, rows in store.read()
    }


@pytest.fixture
def store() -> MetricStore:
    return MetricStore(("nv_", "process_"))


@pytest.fixture
def metrics(store: MetricStore) -> StoredMetrics:
    made = store.of_model()
    made.family("hits", "How often.", "counter")
    made.family("level", "How much.", "gauge")
    made.family("sizes", "How large.", "histogram")
    return made


def test_a_counter(store: MetricStore, metrics: StoredMetrics) -> None:
    hits = metrics.metric("hits", {"model": "m"})
    hits.increment()
    hits.increment(2.5)
    hits.increment(0)
    assert hits.value() == 3.5
    assert values(store) == {"hits": [({"model": "m"}, 3.5)]}


def test_a_gauge(store: MetricStore, metrics: StoredMetrics) -> None:
    level = metrics.metric("level")
    level.set(5)
    level.increment(cast(float, np.float32(-7)))
    assert level.value() == -2
    assert values(store) == {"level": [({}, -2.0)]}


def test_a_histogram(store: MetricStore, metrics: StoredMetrics) -> None:
    sizes = metrics.metric("sizes", {}, [1, 2.5, math.inf])
    for value in (0.5, 1, 2, 3):
        sizes.observe(value)
    [(name, text, kind, [(labels, histogram)])] = store.read()
    assert (name, text, kind, labels) == ("sizes", "How large.", "histogram", {})
    assert isinstance(histogram, Histogram)
    assert (histogram.bounds, histogram.buckets, histogram.total) == ((1.0, 2.5), [2, 1, 1], 6.5)
    sizes.observe(9)
    assert histogram.total == 6.5, "a reading stays as it was"


def test_the_same_labels_are_the_same_value_in_whatever_order(store: MetricStore, metrics: StoredMetrics) -> None:
    first, second = metrics.metric("hits", {"a": "1", "b": "2"}), metrics.metric("hits", {"b": "2", "a": "1"})
    other = metrics.metric("hits", {"a": "1"})
    first.increment()
    second.increment()
    assert (first.value(), second.value(), other.value()) == (2, 2, 0)
    first.close()
    assert second.value() == 2
    second.close()
    assert values(store) == {"hits": [({"a": "1"}, 0.0)]}
    assert metrics.metric("hits", {"a": "1", "b": "2"}).value() == 0, "it begins anew"


def test_models_share_what_they_both_have(store: MetricStore, metrics: StoredMetrics) -> None:
    other = store.of_model()
    other.family("hits", "Another text.", "counter")
    ours, theirs = metrics.metric("hits"), other.metric("hits")
    ours.increment()
    alone = other.metric("hits", {"alone": "1"})
    alone.increment()
    other.close()
    assert values(store) == {"hits": [({}, 1.0)]}
    assert store.read()[0].help == "How often."
    with pytest.raises(ModserveError, match="a metric of family 'hits' was used after it was closed") as caught:
        theirs.increment()
    assert caught.value.code is Code.INTERNAL
    metrics.close()
    assert store.read() == []
    assert store.families == {}


def test_a_family_stays_with_the_model_that_declared_it_and_no_longer(
    store: MetricStore, metrics: StoredMetrics
) -> None:
    metrics.metric("hits").close()
    other = store.of_model()
    with pytest.raises(ModserveError, match="'hits' is already a counter and cannot also be a gauge"):
        other.family("hits", "", "gauge")
    metrics.close()
    other.family("hits", "", "gauge")


def test_what_was_loaded_again_goes_on_counting(store: MetricStore, metrics: StoredMetrics) -> None:
    metrics.metric("hits").increment()
    again = store.of_model()
    again.family("hits", "How often.", "counter")
    hits = again.metric("hits")
    metrics.close()
    hits.increment()
    assert values(store) == {"hits": [({}, 2.0)]}


def test_closing_twice(store: MetricStore, metrics: StoredMetrics) -> None:
    hits, same = metrics.metric("hits"), metrics.metric("hits")
    hits.close()
    hits.close()
    assert same.value() == 0
    metrics.close()
    metrics.close()
    same.close()
    for late in (lambda: metrics.family("x", "", "gauge"), lambda: metrics.metric("hits")):
        with pytest.raises(ModserveError, match="the model has been unloaded"):
            late()


@pytest.mark.parametrize(
    ("family", "use", "text"),
    [
        ("hits", lambda one: one.set(1), "counter 'hits' cannot be set: use 'increment'"),
        ("hits", lambda one: one.observe(1), "counter 'hits' cannot be observed: use 'increment'"),
        ("level", lambda one: one.observe(1), "gauge 'level' cannot be observed: use 'increment'"),
        ("sizes", lambda one: one.increment(), "histogram 'sizes' cannot be incremented: use 'observe'"),
        ("sizes", lambda one: one.set(1), "histogram 'sizes' cannot be set: use 'observe'"),
        ("sizes", lambda one: one.value(), "histogram 'sizes' has no single value to return"),
    ],
)
def test_what_a_kind_does_not_have(
    metrics: StoredMetrics, family: str, use: Callable[[StoredMetric], None], text: str
) -> None:
    metric = metrics.metric(family, {}, [1.0] if family == "sizes" else None)
    with pytest.raises(ModserveError) as caught:
        use(metric)
    assert (caught.value.code, caught.value.message) == (Code.UNSUPPORTED, text)


def test_a_counter_does_not_go_down(metrics: StoredMetrics) -> None:
    hits = metrics.metric("hits")
    with pytest.raises(ModserveError, match="counter 'hits' can only be incremented by 0 or more, not by -1") as caught:
        hits.increment(-1)
    assert caught.value.code is Code.INVALID_ARG
    assert hits.value() == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("x", "", "summary"), "is of kind 'summary', expected one of counter, gauge, histogram"),
        (("hits", "", "gauge"), "'hits' is already a counter and cannot also be a gauge"),
        (("2x", "", "gauge"), "'2x' is not a name for a metric family"),
        (("x-y", "", "gauge"), "'x-y' is not a name for a metric family"),
        (("", "", "gauge"), "'' is not a name for a metric family"),
        (("nv_inference_count", "", "counter"), "reserved for the server's own metrics"),
        (("process_x", "", "counter"), "reserved for the server's own metrics"),
        (("sizes_sum", "", "gauge"), "has samples named 'sizes_sum', as histogram 'sizes' has"),
        (("x", "\ud800", "gauge"), "the description of metric family 'x' cannot be written as UTF-8"),
        (("x", None, "gauge"), "the description of metric family 'x' is of type NoneType, expected a string"),
    ],
)
def test_families_that_cannot_be(metrics: StoredMetrics, arguments: Any, text: str) -> None:
    with pytest.raises(ModserveError) as caught:
        metrics.family(*arguments)
    assert caught.value.code is Code.INVALID_ARG
    assert text in caught.value.message
    metrics.family("hits", "once more", "counter")


def test_a_histogram_beside_a_family_with_the_name_of_one_of_its_samples(metrics: StoredMetrics) -> None:
    metrics.family("time_count", "", "counter")
    with pytest.raises(ModserveError, match="'time' has samples named 'time_count', as counter 'time_count' has"):
        metrics.family("time", "", "histogram")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nobody's",), "metric family 'nobody's' was not declared by this model"),
        (("hits", {"": "x"}), "'' is not a name for a label of counter 'hits'"),
        (("hits", {"a-b": "x"}), "'a-b' is not a name for a label"),
        (("hits", {"__name": "x"}), "'__name' is not a name for a label"),
        (("hits", {7: "x"}), "'7' is not a name for a label"),
        (("sizes", {"le": "x"}, [1]), "'le' is not a name for a label of histogram 'sizes'"),
        (("hits", {"a": 7}), "label 'a' of counter 'hits' is of type int, expected a string"),
        (("hits", {"a": "\udc80"}), "label 'a' of counter 'hits' cannot be written as UTF-8"),
        (("hits", {}, [1]), "counter 'hits' has no buckets"),
        (("sizes", {}), "a metric of histogram 'sizes' needs buckets"),
        (("sizes", {}, [1, 1]), "the buckets of histogram 'sizes' are [1, 1], expected numbers, each greater"),
        (("sizes", {}, [math.nan]), "expected numbers, each greater"),
        (("sizes", {}, [-math.inf]), "expected numbers, each greater"),
    ],
)
def test_metrics_that_cannot_be(store: MetricStore, metrics: StoredMetrics, arguments: Any, text: str) -> None:
    with pytest.raises(ModserveError) as caught:
        metrics.metric(*arguments)
    assert caught.value.code is Code.INVALID_ARG
    assert text in caught.value.message
    assert store.read() == []


def test_le_is_a_label_like_others_where_there_are_no_buckets(store: MetricStore, metrics: StoredMetrics) -> None:
    metrics.metric("hits", {"le": "x"})
    assert values(store) == {"hits": [({"le": "x"}, 0.0)]}


def test_threads_lose_no_increment(metrics: StoredMetrics) -> None:
    def work() -> None:
        mine = metrics.metric("hits")
        for _ in range(2_000):
            mine.increment()
        mine.close()

    whole = metrics.metric("hits")
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert whole.value() == 8_000
