"""What a worker has counted, which stays in the sum of all workers when it ends.

A counter of the merged page that falls to anything but zero looks like a restart: Prometheus takes all that is left for
new. So what a worker tells never falls, though a model is loaded anew. It is also in a file, which the others read
while the worker is not there, and from which its replacement goes on.
"""

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from modserve.core.runtime.failures import count_failure
from modserve.observability.families import Family

from . import values
from .pages import Families, SampleTable, WorkerPage, samples_of


class Counts:
    """The counters and histograms of one worker, with those of the processes before it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before: dict[str, SampleTable] = dict(last_page(path).families)
        """What is not in this process any more."""
        self._own: Families = {}
        """What was in it when it was asked last."""
        self._gone: set[str] = set()

    def before(self, name: str) -> float:
        """What earlier processes counted of a metric without labels."""
        samples = self._before.get(name)
        return 0.0 if samples is None else samples.values.get(name, 0.0)

    def tell(self, families: Iterable[Family], orphans: Collection[str] = ()) -> WorkerPage:
        """The page of this worker. Nobody had the samples `orphans` when a page of all was made last."""
        own = samples_of(families)
        now = {sample for each in own.values() for sample in each.values}
        self._keep(own, now)
        for sample in (sample for sample in orphans if sample not in now):
            self._gone.discard(sample)
            for each in self._before.values():
                each.values.pop(sample, None)
        tables: dict[str, SampleTable] = {}
        for name in {**own, **self._before}:
            mine = own.get(name) or self._before[name].empty()
            before = self._before.get(name, mine.empty()).values
            sums = {sample: value + before.get(sample, 0.0) for sample, value in mine.values.items()}
            rest = {sample: value for sample, value in before.items() if sample not in sums}
            tables[name] = mine._replace(values=sums | rest)
        absent = {sample for each in self._before.values() for sample in each.values if sample not in now}
        page = WorkerPage(tables, absent, frozenset(self._gone))
        self._write(page)
        return page

    def _keep(self, own: Families, now: Collection[str]) -> None:
        """Add what this process had and has lost since, of models that were unloaded or loaded anew."""
        for name, each in self._own.items():
            new = own.get(name, each.empty()).values
            for sample, value in each.values.items():
                if each.counts(sample) and new.get(sample, -1.0) < value:
                    before = self._before.setdefault(name, each.empty()).values
                    before[sample] = before.get(sample, 0.0) + value
                    if sample not in now:
                        self._gone.add(sample)
        self._gone.difference_update(now)
        self._own = own

    def _write(self, page: WorkerPage) -> None:
        counts = {
            name: each._replace(values={s: v for s, v in each.values.items() if each.counts(s)}, exemplars={})
            for name, each in page.families.items()
        }
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(values.dumps({name: each for name, each in counts.items() if each.values}))
            os.replace(new, self._path)
        except OSError as error:
            count_failure("metrics", error)


def last_page(path: Path) -> WorkerPage:
    """What a worker that does not respond had counted when it was asked last."""
    try:
        return WorkerPage(values.loads(path.read_bytes()))
    except FileNotFoundError:
        return WorkerPage({})
