"""What workers tell never falls: one dies and another takes its place, and models come and go."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import pytest

from modserve.core.runtime.failures import failures
from modserve.observability.families import Family, Labels, family, summary_family
from modserve.workers.pages import Owner, Question, WorkerPage, merge, samples_of
from modserve.workers.tally import Counts, last_page


def counter(**counts: float) -> Family:
    return family("done", "counter", "Done", [(f'model="{model}"', count) for model, count in counts.items()])


def gauge(value: float) -> Family:
    return family("open", "gauge", "Open", [("", value)])


def tell(
    counts: Counts,
    *families: Family,
    orphans: Collection[str] = (),
    loads: Mapping[Owner, int] = {},
    look: str = "",
) -> WorkerPage:
    return counts.tell(samples_of(families), loads, Question(look, "", orphans))


def done(*pages: WorkerPage) -> dict[str, float]:
    """What is on the page of all, by model."""
    (made, _) = merge(pages)
    return {sample.split('"')[1]: value for sample, value in made["done"].values.items()}


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"{index}.counts" for index in range(2)]


def test_a_dead_worker_stays_in_the_sum_and_its_replacement_goes_on(paths: list[Path]) -> None:
    first, second = map(Counts, paths)
    assert done(tell(first, counter(a=5)), tell(second, counter(a=3, b=1))) == {"a": 8, "b": 1}
    assert done(tell(first, counter(a=6)), last_page(paths[1])) == {"a": 9, "b": 1}
    for starts in range(1, 4):
        second = Counts(paths[1])
        assert done(tell(first, counter(a=6)), tell(second)) == {"a": 8 + starts, "b": 1}
        assert done(tell(first, counter(a=6)), tell(second, counter(a=1))) == {"a": 9 + starts, "b": 1}


def test_gauges_and_quantiles_of_a_dead_worker_are_gone(paths: list[Path]) -> None:
    spread = summary_family("s", "A summary", [(Labels({"model": "a"}), 2, 7.0, [("0.5", 3.0)])])
    tell(Counts(paths[0]), counter(a=5), gauge(3), spread)
    page = last_page(paths[0])
    assert {sample for each in page.families.values() for sample in each.values} == {
        *('done{model="a"}', 's_count{model="a"}', 's_sum{model="a"}')
    }
    assert tell(Counts(paths[0]), gauge(1)).families["open"].values == {"open": 1}


def test_a_worker_that_never_told_has_counted_nothing(tmp_path: Path) -> None:
    assert last_page(tmp_path / "none") == WorkerPage({})


def test_a_model_that_is_loaded_anew_goes_on(paths: list[Path]) -> None:
    counts = Counts(paths[0])
    told = [done(tell(counts, counter(a=value))) for value in (5, 6, 0, 2, 1)]
    assert told == [{"a": 5}, {"a": 6}, {"a": 6}, {"a": 8}, {"a": 9}]


def test_an_unloaded_model_is_told_until_no_worker_has_it(paths: list[Path]) -> None:
    first, second = map(Counts, paths)
    tell(first, counter(a=5, b=1))
    tell(second, counter(a=3, b=1))
    assert done(tell(first, counter(b=1)), tell(second, counter(a=3, b=1))) == {"a": 8, "b": 2}
    assert done(tell(first, counter(b=1)), last_page(paths[1])) == {"a": 8, "b": 2}
    pages = tell(first, counter(b=1)), tell(second, counter(b=1))
    assert done(*pages) == {"b": 2}
    _, orphans = merge(pages)
    assert orphans == {'done{model="a"}'}
    pages = tell(first, counter(b=1), orphans=orphans), tell(second, counter(a=1, b=1), orphans=orphans)
    assert done(*pages) == {"a": 4, "b": 2}, "it had come back in the second"


def test_what_only_a_dead_worker_had_stays_until_the_model_is_unloaded(paths: list[Path]) -> None:
    first, second = map(Counts, paths)
    tell(first, counter(a=5, b=1))
    tell(second, counter(a=3, c=1))
    second = Counts(paths[1])
    assert done(tell(first, counter(a=5, b=1)), tell(second)) == {"a": 8, "b": 1, "c": 1}
    pages = tell(first, counter(b=1)), tell(second)
    assert done(*pages) == {"b": 1, "c": 1}
    _, orphans = merge(pages)
    assert done(tell(first, counter(b=1), orphans=orphans), tell(second, orphans=orphans)) == {"b": 1, "c": 1}
    assert done(last_page(paths[0]), last_page(paths[1])) == {"b": 1, "c": 1}


def test_a_replacement_does_not_forget_what_a_stopping_worker_had_unloaded(paths: list[Path]) -> None:
    worker = Counts(paths[0])
    tell(worker, counter(a=5))
    tell(worker)
    assert done(tell(Counts(paths[0]), counter(a=1))) == {"a": 6}


def test_a_folder_that_is_full_takes_nothing_from_the_page(tmp_path: Path) -> None:
    before = failures.get("metrics", 0)
    counts = Counts(tmp_path / "gone" / "0.counts")
    assert done(tell(counts, counter(a=5))) == {"a": 5}
    assert failures["metrics"] == before + 1


def test_series_keep_their_order(paths: list[Path]) -> None:
    def told(counts: Counts, models: Iterable[str]) -> list[str]:
        return list(done(tell(counts, counter(**dict.fromkeys(models, 1)))))

    assert told(Counts(paths[0]), "abc") == ["a", "b", "c"]
    assert told(Counts(paths[0]), "bc") == ["b", "c", "a"]


OWNER = ("name", "a"), ("version", "1")
MODEL = 'model="a",version="1"'


def closed(**counts: int) -> Family:
    rows = [(f'{MODEL},reason="{reason}"', count) for reason, count in counts.items()]
    return family("modserve_batches_closed", "counter", "Batches", rows)


def batches(*pages: WorkerPage) -> dict[str, float]:
    """Read the page of all, by reason."""
    values = merge(pages)[0]["modserve_batches_closed"].values
    return {sample.split('reason="')[1][:-2]: value for sample, value in values.items()}


def test_what_a_model_no_longer_counts_stays_while_a_worker_has_it(paths: list[Path]) -> None:
    first, second = map(Counts, paths)
    for counts in (first, second):
        tell(counts, closed(full=5), loads={OWNER: 1})
    assert batches(tell(first, closed(), loads={OWNER: 2}), tell(second, closed(), loads={OWNER: 2})) == {"full": 10}
    assert batches(tell(first, closed()), tell(second, closed(delay=1), loads={OWNER: 2})) == {"full": 10, "delay": 1}
    assert batches(tell(first, closed()), tell(second, closed())) == {}


def test_a_load_that_soon_counts_more_than_the_one_before_is_seen(paths: list[Path]) -> None:
    counts = Counts(paths[0])
    told = [batches(tell(counts, closed(full=5), loads={OWNER: load}))["full"] for load in (1, 1, 2, 0, 3, 3, 4)]
    assert told == [5, 5, 10, 10, 10, 10, 15], "of a load that is not sure, only what fell is known to be another's"


def test_what_nobody_had_is_not_forgotten_if_somebody_has_looked_since(paths: list[Path]) -> None:
    first, second = map(Counts, paths)
    tell(first, closed(full=5), loads={OWNER: 1})
    _, orphans = merge([tell(first, closed()), tell(second)])
    assert orphans
    assert batches(tell(first, closed(), look="another's"), tell(second, closed(full=1), loads={OWNER: 1})) == {
        "full": 6
    }
    assert batches(tell(first, closed(), orphans=orphans), tell(second, closed(full=1), loads={OWNER: 1})) == {
        "full": 6
    }
