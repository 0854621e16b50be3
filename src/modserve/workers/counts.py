"""What a worker has counted, which stays in the sum of all workers when it ends.

A counter of the merged page that falls to anything but zero looks like a restart: Prometheus takes all that is left for
new. So what a worker tells never falls, though a model is loaded anew. It is also in a file, which the others read
while the worker is not there, and from which its replacement goes on.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from modserve.core.runtime.failures import count_failure

from . import values
from .pages import KEPT, Families, Owner, Question, Sample, SampleTable, WorkerPage, add, fell, owner


class Counts:
    """The counters and histograms of one worker, with those of the processes before it."""

    def __init__(self, path: Path | None) -> None:
        """`path`: the file; None where processes do not take each other's places."""
        self._path = path
        self._before: dict[str, SampleTable] = dict(last_page(path).families)
        """What is not in this process any more."""
        self._own: Families = {}
        """What was in it when it was asked last."""
        self._loads: Mapping[Owner, int] = {}
        """The loads of model versions that this was of."""
        self._lost: set[Sample] = set()
        self._question = ""

    def before(self, name: str) -> float:
        """What earlier processes counted of a metric without labels."""
        samples = self._before.get(name)
        return 0.0 if samples is None else samples.values.get(name, 0.0)

    def tell(self, own: Families, loads: Mapping[Owner, int], question: Question) -> WorkerPage:
        """The page of this worker. `loads` are numbers of the loads of model versions, 0 where that is not sure."""
        now = {sample for each in own.values() for sample in each.values}
        self._keep(own, now, loads)
        orphans = question.orphans if question.former == self._question else ()
        self._question = question.name
        for sample in (sample for sample in orphans if sample not in now):
            self._lost.discard(sample)
            for each in self._before.values():
                each.values.pop(sample, None)
        tables: dict[str, SampleTable] = {}
        for name in {**own, **self._before}:
            mine = own.get(name) or self._before[name].empty()
            before, combine = self._before.get(name, mine.empty()).values, KEPT.get(mine.rule, add)
            rest = {sample: value for sample, value in before.items() if sample not in mine.values}
            sums = {s: combine(value, before[s]) if s in before else value for s, value in mine.values.items()}
            tables[name] = mine._replace(values=sums | rest)
        absent = {sample for each in self._before.values() for sample in each.values if sample not in now}
        gone = frozenset(sample for sample in self._lost if owner(sample) not in loads)
        page = WorkerPage(tables, absent, gone, frozenset(loads))
        self._write(page)
        return page

    def _keep(self, own: Families, now: Collection[Sample], loads: Mapping[Owner, int]) -> None:
        """Add what this process had and has lost since, of models that were unloaded or loaded anew."""
        other = {model for model, load in self._loads.items() if load and loads.get(model, 0) not in (0, load)}
        for name, each in self._own.items():
            new, combine = own.get(name, each.empty()).values, KEPT.get(each.rule, add)
            for sample, value in each.values.items():
                if not each.counts(sample):
                    continue
                if sample not in new or fell(value, new[sample]) or (other and owner(sample) in other):
                    before = self._before.setdefault(name, each.empty()).values
                    before[sample] = combine(value, before[sample]) if sample in before else value
                    if sample not in now:
                        self._lost.add(sample)
        self._lost.difference_update(now)
        self._own, self._loads = own, loads

    def _write(self, page: WorkerPage) -> None:
        if self._path is None:
            return
        counts = {
            name: each._replace(values={s: v for s, v in each.values.items() if each.counts(s)}, exemplars={})
            for name, each in page.families.items()
        }
        new = Path(f"{self._path}.new")
        try:
            new.write_bytes(values.dumps({name: each for name, each in counts.items() if each.values}))
            os.replace(new, self._path)
        except OSError as error:
            count_failure("metrics", error)


def last_page(path: Path | None) -> WorkerPage:
    """What a worker that does not respond had counted when it was asked last."""
    try:
        return WorkerPage({} if path is None else values.loads(path.read_bytes()))
    except FileNotFoundError:
        return WorkerPage({})
