"""The sums of what all workers have counted: the one place that the metrics page and all other figures come from.

Each worker tells its figures by topic, with those of the processes before it (`Counts`). Of one that does not respond
there is what it had counted when it was asked last.
"""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from modserve.pb.json_message import to_json
from modserve.server.local import LocalServer

from . import values
from .counts import Counts, last_page
from .documents import document, tables
from .identity import WorkerIdentity
from .pages import Families, Owner, Question, Sample, WorkerPage, merged

PAGE, STATISTICS, ROUTINGS, CONSOLE = "page", "statistics", "routings", "console"

Source: TypeAlias = Callable[[bool], Awaitable[Families]]
"""Reads this worker's figures of a topic, with sketches of durations if its argument is true."""


class PeerCaller(Protocol):
    """Calls of the methods of `WorkerControl` in the other processes."""

    async def ask(self, method: str, *arguments: object) -> dict[int, Any]: ...


class Tally:
    """The figures of this worker, by topic from `sources`, and the sums of all."""

    def __init__(self, peers: PeerCaller, identity: WorkerIdentity | None = None) -> None:
        """`identity`: None where no process takes another's place."""
        self.sources: dict[str, Source] = {}
        self.loads: Callable[[], Mapping[Owner, int]] = dict
        """A number for the load of each model version."""
        self._peers = peers
        self._identity = identity
        self._counts: dict[str, Counts] = {}
        self._questions: dict[str, tuple[str, frozenset[Sample]]] = {}
        """The last question of this worker to all, and the samples that nobody had then."""
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def counts(self, topic: str) -> Counts:
        """Return the figures that this worker has told of a topic."""
        if topic not in self._counts:
            identity = self._identity
            self._counts[topic] = Counts(None if identity is None else identity.counts(identity.index, topic))
        return self._counts[topic]

    async def tell(self, topic: str, question: Question, fine: bool = False) -> bytes:
        """For another worker. Values of many samples take a thread long to write or to read."""
        return await asyncio.to_thread(values.dumps, await self._tell(topic, question, fine))

    async def _tell(self, topic: str, question: Question, fine: bool) -> WorkerPage:
        """The figures of this worker, made for one question after the other."""
        async with self._locks[topic]:
            before = self.loads()
            own = await self.sources[topic](fine)
            loads = {model: load if before.get(model) == load else 0 for model, load in self.loads().items()}
            return await asyncio.to_thread(self.counts(topic).tell, own, loads, question)

    async def whole(self, topic: str, fine: bool = False) -> Families:
        """The figures of all workers."""
        question = Question(uuid.uuid4().hex, *self._questions.get(topic, ()))
        answers = await self._peers.ask("tell", topic, question, fine)
        own = await self._tell(topic, question, fine)
        others = {index: page for index, page in answers.items() if isinstance(page, bytes)}

        def of_all() -> Families:
            identity = self._identity
            silent = [] if identity is None else [index for index in identity.others if index not in others]
            last = [last_page(identity.counts(index, topic)) for index in silent] if identity is not None else []
            families, orphans = merged([own, *map(values.loads, others.values()), *last])
            self._questions[topic] = question.name, frozenset() if silent else orphans
            return families

        return await asyncio.to_thread(of_all)

    async def document(self, topic: str) -> dict[str, Any]:
        """The figures of all workers, in the form of one worker's."""
        return await asyncio.to_thread(document, await self.whole(topic))

    def serve(self, server: LocalServer, index: int = 0, starts: int = 0) -> None:
        """Tell the figures of a server: that of the worker with this number, which was started so often before."""
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
        if not readers:  # only while somebody looks at the console
            from modserve.frontends.http.console.counters import CounterReader

            readers.append(CounterReader(server))
        workers = {"serving": 1, "by_number": {str(index): {"starts": starts}}}
        return await asyncio.to_thread(tables, {**readers[0].read(), "processes": workers})

    return {STATISTICS: statistics, ROUTINGS: routings, CONSOLE: console}
