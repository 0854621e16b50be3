"""Counts of workers stay in the sums, whatever becomes of them: they die, come back, and load models anew.

The real `Tally` of each worker, with processes that count without serving anything. A sum is compared with that of the
look before it, by any worker: it never falls while a worker has the model, has all that was counted since in processes
that are still there, and nothing twice.
"""

import tempfile
from collections import Counter
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from modserve.observability.families import family
from modserve.workers import pickles
from modserve.workers.identity import WorkerIdentity
from modserve.workers.pages import Families, document, samples_of, tables
from modserve.workers.tally import PAGE, STATISTICS, Tally

from .simulation import SimulatedLoop
from .test_product import thorough

WORKERS = 2
MODELS = "ab"
KINDS = "full", "delay"
SUCCESS, CLOSED = "nv_inference_request_success", "modserve_batches_closed"
Key: TypeAlias = tuple[str, str]
"""A model, and a kind of batch."""


class Process:
    """A worker from its start to its death. It answers once it has `started`, and counts by model and kind."""

    def __init__(self, fleet: "Fleet", index: int, folder: Path) -> None:
        self.counted: dict[str, Counter[str]] = {}
        self.started = False
        self.tally = Tally(Callers(fleet, index), WorkerIdentity(index, WORKERS, 0, folder))
        self.tally.sources |= {PAGE: self.page, STATISTICS: self.statistics}
        self.loads: dict[str, int] = {}
        self.tally.loads = lambda: {(("name", name), ("version", "1")): load for name, load in self.loads.items()}

    def load(self, model: str, number: int) -> None:
        self.counted[model], self.loads[model] = Counter(), number

    def unload(self, model: str) -> None:
        del self.counted[model], self.loads[model]

    async def page(self, fine: bool) -> Families:
        """A series of a kind is only there once something is counted, as that of reasons."""
        models = {f'model="{name}",version="1"': counts for name, counts in self.counted.items()}
        kinds = [(f'{labels},reason="{kind}"', n) for labels, counts in models.items() for kind, n in counts.items()]
        return samples_of(
            [
                family(SUCCESS, "counter", "Done", [(labels, counts.total()) for labels, counts in models.items()]),
                family(CLOSED, "counter", "Batches", kinds),
            ]
        )

    async def statistics(self, fine: bool) -> Families:
        rows = [{"name": name, "version": "1", "kinds": dict(counts)} for name, counts in self.counted.items()]
        return tables({"model_stats": rows})


class Callers:
    """The calls of one worker to those that answer."""

    def __init__(self, fleet: "Fleet", index: int) -> None:
        self._fleet = fleet
        self._index = index

    async def ask(self, method: str, *arguments: Any) -> dict[int, Any]:
        sent = pickles.loads(pickles.dumps(arguments))
        others = {index: each for index, each in self._fleet.answering.items() if index != self._index}
        return {index: await process.tally.tell(*sent) for index, process in others.items()}


class Fleet:
    def __init__(self) -> None:
        self.loop = SimulatedLoop()
        self.folder = tempfile.TemporaryDirectory()
        self.numbers = count(1)
        self.processes: dict[int, Process] = {}
        for index in range(WORKERS):
            self.start(index, MODELS)

    @property
    def answering(self) -> dict[int, Process]:
        return {index: each for index, each in self.processes.items() if each.started}

    def start(self, index: int, models: Collection[str]) -> None:
        process = self.processes[index] = Process(self, index, Path(self.folder.name))
        process.started = True
        for model in models:
            process.load(model, next(self.numbers))

    def look(self, index: int, topic: str) -> dict[Key, float]:
        """The sums by model and kind, as worker `index` says."""
        task = self.loop.create_task(self.processes[index].tally.whole(topic))
        self.loop.run()
        if topic == STATISTICS:
            rows = document(task.result()).get("model_stats", [])
            return {(row["name"], kind): count for row in rows for kind, count in row["kinds"].items()}
        samples = task.result()[CLOSED].values.items()
        return {(sample.split('"')[1], sample.split('"')[5]): count for sample, count in samples}

    def close(self) -> None:
        self.loop.close()
        self.folder.cleanup()


workers = st.sampled_from(range(WORKERS))
models = st.sampled_from("aaab")
"""One has much to do, so that much happens to it."""


class CountsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet()
        self.counted: Counter[Key] = Counter()
        """All that was ever counted."""
        self.seen: dict[str, Counter[Key]] = {PAGE: Counter(), STATISTICS: Counter()}
        """By topic, the sums at the last look."""
        self.since: dict[str, dict[int, Counter[Key]]] = {}
        """By topic and worker, what was counted after it by processes and loads that are still there."""
        for topic in self.seen:
            self.since[topic] = {index: Counter() for index in range(WORKERS)}

    def lose(self, worker: int, names: str = MODELS) -> None:
        for by_worker in self.since.values():
            by_worker[worker] = Counter({key: n for key, n in by_worker[worker].items() if key[0] not in names})

    @rule(worker=workers, model=models, kind=st.sampled_from(KINDS), number=st.integers(1, 9))
    def count(self, worker: int, model: str, kind: str, number: int) -> None:
        process = self.fleet.answering.get(worker)
        if process is not None and model in process.counted:
            process.counted[model][kind] += number
            self.counted[model, kind] += number
            for by_worker in self.since.values():
                by_worker[worker][model, kind] += number

    @precondition(lambda self: len(self.fleet.answering) > 1)
    @rule(worker=workers)
    def die(self, worker: int) -> None:
        if len(self.fleet.answering) > 1:
            self.fleet.processes.pop(worker, None)
            self.lose(worker)

    @rule(worker=workers, names=st.sampled_from(["", *MODELS, MODELS]))
    def start(self, worker: int, names: str) -> None:
        """With no model yet, or those that clients have loaded."""
        if worker not in self.fleet.processes:
            self.fleet.start(worker, names)

    @rule(worker=workers, model=models)
    def load(self, worker: int, model: str) -> None:
        """It may have been loaded before."""
        if worker in self.fleet.answering:
            self.fleet.processes[worker].load(model, next(self.fleet.numbers))
            self.lose(worker, model)

    @rule(worker=workers, model=models)
    def unload(self, worker: int, model: str) -> None:
        if worker in self.fleet.answering and model in self.fleet.processes[worker].loads:
            self.fleet.processes[worker].unload(model)
            self.lose(worker, model)

    @rule(worker=workers)
    def look(self, worker: int) -> None:
        if worker in self.fleet.answering:
            self.compare(worker, PAGE)
            self.compare(worker, STATISTICS)

    def compare(self, worker: int, topic: str) -> None:
        sums = self.fleet.look(worker, topic)
        served = {model for process in self.fleet.answering.values() for model in process.counted}
        least = self.seen[topic] + sum(self.since[topic].values(), Counter())
        for key, number in least.items():
            if key[0] in served:
                assert sums.get(key, 0) >= number, f"{topic}: {key} fell, or lacks something"
        for key, total in sums.items():
            assert total <= self.counted[key], f"{topic}: {key} was counted twice"
        self.seen[topic] = Counter({key: int(total) for key, total in sums.items()})
        for by_worker in self.since[topic].values():
            by_worker.clear()

    def teardown(self) -> None:
        self.fleet.close()


def test_whatever_happens_to_workers() -> None:
    run_state_machine_as_test(CountsMachine, settings=thorough(200, derandomize=True))
