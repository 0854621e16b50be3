"""Sums of all workers' counts: the single source of the metrics page and all other figures.

Each worker reports its figures by topic, including those counted by its predecessor processes (`Counts`). For a worker
that does not respond, the last reported counts are used.

If a counter of the merged page falls to anything but zero, Prometheus sees a restart, and takes the rest for an
increase. So a worker's figures never fall, even if a model is reloaded. They are also in a file, which the others read
while the worker is missing, and with which its replacement continues.
"""

import asyncio
import os
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from modserve.core.runtime.failures import count_failure
from modserve.pb.json_message import to_json
from modserve.server.local import LocalServer

from . import pickles
from .identity import WorkerIdentity
from .pages import (
    KEPT,
    Families,
    Owner,
    Question,
    Sample,
    SampleTable,
    WorkerPage,
    add,
    document,
    merge,
    owner,
    tables,
    was_reset,
)


class Counts:
    """Counters and histograms of one worker, including its predecessor processes."""

    def __init__(self, path: Path | None) -> None:
        """`path`: the file; None if processes have no successors."""
        self._path = path
        self._before: dict[str, SampleTable] = dict(last_page(path).families)
        """Counts of predecessor processes."""
        self._own: Families = {}
        """Contents at the last look."""
        self._loads: Mapping[Owner, int] = {}
        """Loads of model versions at that time."""
        self._lost: set[Sample] = set()
        self._question = ""

    def before(self, name: str) -> float:
        """Return the count of earlier processes for a metric without labels."""
        samples = self._before.get(name)
        return 0.0 if samples is None else samples.values.get(name, 0.0)

    def tell(self, own: Families, loads: Mapping[Owner, int], question: Question) -> WorkerPage:
        """Return this worker's page. `loads`: load numbers of model versions, 0 if uncertain."""
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
        """Add samples that this process has lost since the last look, by unloading or reloading models."""
        other = {model for model, load in self._loads.items() if load and loads.get(model, 0) not in (0, load)}
        for name, each in self._own.items():
            new, combine = own.get(name, each.empty()).values, KEPT.get(each.rule, add)
            for sample, value in each.values.items():
                if not each.is_cumulative(sample):
                    continue
                if sample not in new or was_reset(value, new[sample]) or (other and owner(sample) in other):
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
            name: each._replace(values={s: v for s, v in each.values.items() if each.is_cumulative(s)}, exemplars={})
            for name, each in page.families.items()
        }
        new = Path(f"{self._path}.new")
        try:
            new.write_bytes(pickles.dumps({name: each for name, each in counts.items() if each.values}))
            os.replace(new, self._path)
        except OSError as error:
            count_failure("metrics", error)


def last_page(path: Path | None) -> WorkerPage:
    """Return the last known counts of a worker that does not respond."""
    try:
        return WorkerPage({} if path is None else pickles.loads(path.read_bytes()))
    except FileNotFoundError:
        return WorkerPage({})


PAGE, STATISTICS, ROUTINGS, CONSOLE = "page", "statistics", "routings", "console"

Source: TypeAlias = Callable[[bool], Awaitable[Families]]
"""Reads this worker's figures of a topic, with sketches of durations if its argument is true."""


class PeerCaller(Protocol):
    """Calls of the methods of `WorkerControl` in the other processes."""

    async def ask(self, method: str, *arguments: object) -> dict[int, Any]: ...


class Tally:
    """This worker's figures, by topic from `sources`, and the sums over all workers."""

    def __init__(self, peers: PeerCaller, identity: WorkerIdentity | None = None) -> None:
        """`identity`: None if processes have no successors."""
        self.sources: dict[str, Source] = {}
        self.loads: Callable[[], Mapping[Owner, int]] = dict
        """Returns a number for the load of each model version."""
        self._peers = peers
        self._identity = identity
        self._counts: dict[str, Counts] = {}
        self._questions: dict[str, tuple[str, frozenset[Sample]]] = {}
        """This worker's last question to all, and the samples that no worker had then."""
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def counts(self, topic: str) -> Counts:
        """Return this worker's counts of a topic."""
        if topic not in self._counts:
            identity = self._identity
            self._counts[topic] = Counts(None if identity is None else identity.counts(identity.index, topic))
        return self._counts[topic]

    async def tell(self, topic: str, question: Question, fine: bool = False) -> bytes:
        """Return the page for another worker. With many samples, values are encoded and decoded on a thread."""
        return await asyncio.to_thread(pickles.dumps, await self._tell(topic, question, fine))

    async def _tell(self, topic: str, question: Question, fine: bool) -> WorkerPage:
        """Return this worker's figures, for one question at a time."""
        async with self._locks[topic]:
            before = self.loads()
            own = await self.sources[topic](fine)
            loads = {model: load if before.get(model) == load else 0 for model, load in self.loads().items()}
            return await asyncio.to_thread(self.counts(topic).tell, own, loads, question)

    async def whole(self, topic: str, fine: bool = False) -> Families:
        """Return the figures of all workers."""
        question = Question(uuid.uuid4().hex, *self._questions.get(topic, ()))
        answers = await self._peers.ask("tell", topic, question, fine)
        own = await self._tell(topic, question, fine)
        others = {index: page for index, page in answers.items() if isinstance(page, bytes)}

        def of_all() -> Families:
            identity = self._identity
            silent = [] if identity is None else [index for index in identity.others if index not in others]
            last = [last_page(identity.counts(index, topic)) for index in silent] if identity is not None else []
            families, orphans = merge([own, *map(pickles.loads, others.values()), *last])
            self._questions[topic] = question.name, frozenset() if silent else orphans
            return families

        return await asyncio.to_thread(of_all)

    async def document(self, topic: str) -> dict[str, Any]:
        """Return the figures of all workers, in the form of one worker's."""
        return await asyncio.to_thread(document, await self.whole(topic))

    def serve(self, server: LocalServer, index: int = 0, starts: int = 0) -> None:
        """Provide the figures of a server: of the worker with number `index`, started `starts` times before."""
        self.sources |= _sources(server, index, starts)

        def loads() -> dict[Owner, int]:
            known = [(each.id, each.statistics.began_ns) for each in server.ready_models()]
            return {(("name", id.name), ("version", str(id.version))): began_ns for id, began_ns in known}

        self.loads = loads


def _sources(server: LocalServer, index: int, starts: int) -> dict[str, Source]:
    readers: list[Any] = []

    async def statistics(_: bool) -> Families:
        answer = await server.statistics()
        return await asyncio.to_thread(lambda: tables(to_json(answer)))

    async def routings(_: bool) -> Families:
        return tables({"routings": server.routing_counts()})

    async def console(_: bool) -> Families:
        if not readers:  # only while the console is viewed
            from modserve.frontends.http.console.counters import CounterReader

            readers.append(CounterReader(server))
        workers = {"serving": 1, "by_number": {str(index): {"starts": starts}}}
        return await asyncio.to_thread(tables, {**readers[0].read(), "processes": workers})

    return {STATISTICS: statistics, ROUTINGS: routings, CONSOLE: console}
