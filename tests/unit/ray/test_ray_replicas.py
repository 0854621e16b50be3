"""Three servers as replicas, without Ray: what is done to all, also when one refuses, or comes later."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from puppet_server import PuppetLoader

from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.requests.sequence import SequenceKey
from modserve.core.version import ModelId
from modserve.ray.ledger import Ledger
from modserve.ray.metrics import with_page
from modserve.ray.replica_set import LedgerLostError, PeerCalls, ReplicaSet
from modserve.repository.control import ControlMode, ControlOptions
from modserve.repository.manager import ModelManager
from modserve.repository.scanning import repositories_at
from modserve.repository.table import ModelTable
from modserve.server.interface import Services
from modserve.server.local import LocalServer
from modserve.settings import Settings
from modserve.testing import write_model
from modserve.workers import pickles
from modserve.workers.control import WorkerControl
from modserve.workers.fleet_server import FleetServer
from modserve.workers.journal import ServerChange
from modserve.workers.tally import Tally


class FakeRay:
    """What Ray does for replicas: a broadcast to those that run, and the ledger's actor."""

    def __init__(self) -> None:
        self.each: list[FakeReplica] = []
        self.lost = 0
        """Calls of the ledger that come to nobody."""
        self.ledger = Ledger(self.broadcast)

    async def broadcast(self, data: bytes, seconds: float) -> list[Any]:
        return [await each.calls.receive(data) for each in self.each]

    async def change(self, change: bytes) -> bytes:
        self._look()
        return await self.ledger.change(change)

    async def since(self, number: int) -> tuple[int, list[bytes]]:
        self._look()
        return await self.ledger.since(number)

    async def restore(self, number: int, changes: list[bytes]) -> None:
        self._look()
        await self.ledger.restore(number, changes)

    def _look(self) -> None:
        if self.lost:
            self.lost -= 1
            raise LedgerLostError


class FakeReplica:
    def __init__(self, name: str, ray: FakeRay, folder: Path) -> None:
        self.loader = PuppetLoader()
        for model in self.loader.models:
            write_model(folder, model, versions=("1",))
        self.server = LocalServer(
            ModelManager(ModelTable(), self.loader, 8),
            repositories_at([folder]),
            Services(),
            name="modserve",
            control=ControlOptions(ControlMode.EXPLICIT, ()),
        )
        self.peers = peers = ReplicaSet(name, ray.broadcast, ray)
        tally = Tally(peers)
        tally.serve(self.server)
        control = WorkerControl(self.server, tally.tell, lambda: None)
        control.caught_up.set()
        self.sequences: set[tuple[str, int | None, SequenceKey]] = set()
        self.calls = PeerCalls(name, control, ray, lambda *sequence: sequence in self.sequences)
        self.fleet = FleetServer(self.server, peers, peers, peers, tally, "replica")
        self.app = with_page(nothing_else, self.server, Settings(model_repository=folder), tally, None, name)

    def has(self, model: str) -> bool:
        try:
            return self.server.model_ready(model, None)
        except ModserveError:
            return False


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[[FakeRay], Any]]:
    async with AsyncExitStack() as stack:

        async def start(ray: FakeRay) -> FakeReplica:
            """Another replica, as `Replica` does it."""
            name = f"r{len(ray.each)}"
            replica = FakeReplica(name, ray, tmp_path / name)
            await replica.server.load()
            stack.push_async_callback(replica.server.drain)
            await replica.calls.catch_up()
            ray.each.append(replica)
            return replica

        yield start


@pytest.fixture
async def ray(start: Callable[[FakeRay], Any]) -> FakeRay:
    made = FakeRay()
    for _ in range(3):
        await start(made)
    return made


async def failure(work: Any) -> ModserveError:
    with pytest.raises(ModserveError) as raised:
        await work
    return raised.value


async def test_a_change_is_made_in_all(ray: FakeRay) -> None:
    await ray.each[1].fleet.load_model("echo")
    assert [each.has("echo") for each in ray.each] == [True] * 3
    assert [each.calls.number for each in ray.each] == [1] * 3
    await ray.each[2].fleet.unload_model("echo")
    assert [each.has("echo") for each in ray.each] == [False] * 3


async def test_a_change_that_one_refuses_is_undone_in_the_others(ray: FakeRay) -> None:
    ray.each[2].loader.failures[ModelId("echo", 1)] = invalid("it is broken here")
    error = await failure(ray.each[0].fleet.load_model("echo"))
    assert "it is broken here" in error.message
    assert error.message.endswith("(refused by 1 of 3 replicas, and undone in the others)")
    assert [each.has("echo") for each in ray.each] == [False] * 3
    assert [each.calls.number for each in ray.each] == [0] * 3


async def test_a_change_that_all_refuse_has_the_message_of_one(ray: FakeRay) -> None:
    error = await failure(ray.each[0].fleet.load_model("nosuch"))
    assert "replicas" not in error.message


async def test_a_replica_that_comes_later_has_the_changes_that_hold(
    ray: FakeRay, start: Callable[[FakeRay], Any]
) -> None:
    await ray.each[0].fleet.load_model("echo")
    await ray.each[0].fleet.load_model("simple")
    await ray.each[0].fleet.unload_model("echo")
    late = await start(ray)
    assert (late.has("echo"), late.has("simple"), late.calls.number) == (False, True, 3)


async def test_a_replica_that_a_change_has_passed_by_makes_it_before_the_next(ray: FakeRay) -> None:
    absent = ray.each.pop()
    await ray.each[0].fleet.load_model("echo")
    ray.each.append(absent)
    assert not absent.has("echo")
    await ray.each[0].fleet.load_model("simple")
    assert (absent.has("echo"), absent.has("simple"), absent.calls.number) == (True, True, 2)


async def test_a_new_ledger_learns_from_the_replicas(ray: FakeRay, start: Callable[[FakeRay], Any]) -> None:
    await ray.each[0].fleet.load_model("echo")
    ray.ledger = Ledger(ray.broadcast)
    await ray.each[1].calls.catch_up()
    late = await start(ray)
    assert (late.has("echo"), late.calls.number) == (True, 1)


async def test_a_new_ledger_learns_before_its_first_change(ray: FakeRay, start: Callable[[FakeRay], Any]) -> None:
    await ray.each[0].fleet.load_model("echo")
    ray.ledger = Ledger(ray.broadcast)
    await ray.each[1].fleet.load_model("simple")
    assert [each.has("simple") for each in ray.each] == [True] * 3
    late = await start(ray)
    assert (late.has("echo"), late.has("simple"), late.calls.number) == (True, True, 2)


async def test_a_change_of_a_ledger_that_knows_less_is_refused(ray: FakeRay) -> None:
    await ray.each[0].fleet.load_model("echo")
    change = ServerChange("unload_model", ("echo",))
    responses = await ray.broadcast(pickles.dumps(("ledger", "make", (1, change, "mark"))), 1)
    assert [pickles.loads(each).code for each in responses] == [Code.UNAVAILABLE] * 3
    assert ray.each[0].has("echo")


async def test_a_lost_ledger_is_an_error_for_changes_only(ray: FakeRay) -> None:
    ray.lost = 1
    error = await failure(ray.each[0].fleet.load_model("echo"))
    assert error.code is Code.UNAVAILABLE
    assert "repeat it" in error.message
    await ray.each[0].fleet.load_model("echo")
    assert [each.has("echo") for each in ray.each] == [True] * 3


async def test_without_replicas_nothing_is_changed(ray: FakeRay) -> None:
    data = pickles.dumps(ServerChange("load_model", ("echo", None, None)))
    ray.each.clear()
    outcome = pickles.loads(await ray.ledger.change(data))
    assert (outcome.code, outcome.message) == (Code.UNAVAILABLE, "no replica is available")


async def test_the_index_names_the_replica_that_differs(ray: FakeRay) -> None:
    await ray.each[0].fleet.load_model("echo")
    await ray.each[2].server.unload_model("echo")
    (entry,) = [each for each in await ray.each[0].fleet.repository_index(False) if each.name == "echo"]
    assert (entry.reason or "").startswith("replica 2: ")


async def test_a_replica_does_not_ask_itself(ray: FakeRay) -> None:
    data = pickles.dumps(("r1", "failures", ()))
    assert [bool(each) for each in await ray.broadcast(data, 1)] == [True, False, True]


async def test_who_of_the_others_has_a_sequence(ray: FakeRay) -> None:
    ray.each[2].sequences.add(("m", None, ("tenant", "id")))
    assert await ray.each[0].peers.holder("m", None, ("tenant", "id")) == "r2"
    assert await ray.each[0].peers.holder("m", None, "id") == ""
    assert await ray.each[2].peers.holder("m", None, ("tenant", "id")) == ""  # it knows that itself


async def test_clients_do_not_drain_replicas(ray: FakeRay) -> None:
    """Also not the one that is asked."""
    error = await failure(ray.each[0].fleet.drain())
    assert (error.code, "deploy fewer of them" in error.message) == (Code.UNSUPPORTED, True)
    assert ray.each[0].fleet.drain_phase == 0
    assert ray.each[0].fleet.ready


async def test_the_page_of_any_replica_has_the_samples_of_each(ray: FakeRay) -> None:
    async def page(replica: FakeReplica) -> dict[str, dict[str, float]]:
        """By family and replica."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        await replica.app({"path": "/metrics", "method": "GET", "headers": [], "query_string": b""}, receive, send)
        read = text_string_to_metric_families(b"".join(each.get("body", b"") for each in sent).decode())
        return {each.name: {sample.labels["replica"]: sample.value for sample in each.samples} for each in read}

    for replica in ray.each:
        await replica.server.load_model("simple")
    statistics = ray.each[1].server.model("simple").statistics
    statistics.inference_count = 3
    assert (await page(ray.each[0]))["nv_inference_count"] == {"r0": 0, "r1": 3, "r2": 0}
    assert (await page(ray.each[2]))["modserve_ready"] == {"r0": 1, "r1": 1, "r2": 1}
    lost = ray.each.pop(1)
    assert (await page(ray.each[0]))["nv_inference_count"] == {"r0": 0, "r2": 0}
    ray.each.append(lost)


async def nothing_else(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError(f"another path: {scope['path']}")
