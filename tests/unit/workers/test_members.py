"""Two servers as two workers, without sockets: what is done to both, and what becomes of it when one refuses."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from puppet_server import PuppetLoader
from rpc_calls import FakeCall, call_table

from fake_cuda import HANDLE, FakeDriver
from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.core.tensors.shared_memory import CudaRegion
from modserve.core.version import ModelId
from modserve.frontends.http.rest.app import create_app
from modserve.pb import health as health_pb
from modserve.pb import inference as pb
from modserve.repository.control import ALL, ControlMode, ControlOptions
from modserve.repository.manager import ModelManager
from modserve.repository.scanning import repositories_at
from modserve.repository.table import ModelTable
from modserve.resources.cuda import Cuda
from modserve.resources.shared_memory import SharedMemory
from modserve.server import DrainPhase, DrainReport, Phase, Readiness
from modserve.server.interface import Services
from modserve.server.local import LocalServer
from modserve.settings import HttpSettings
from modserve.testing import write_model
from modserve.workers import pickles, sums
from modserve.workers.control import WorkerControl
from modserve.workers.coordinator import Coordinator
from modserve.workers.fleet_server import FleetServer
from modserve.workers.identity import WorkerIdentity
from modserve.workers.journal import ServerChange
from modserve.workers.peers import PeerLostError, Peers
from modserve.workers.tally import Tally

REGION = CudaRegion("g", 0, 32)


class Worker:
    def __init__(self, folder: Path, identity: WorkerIdentity, peers: Peers) -> None:
        self.loader = PuppetLoader()
        self.driver = FakeDriver()
        for name in self.loader.models:
            write_model(folder, name, versions=("1",))
        cuda = Cuda(lambda: self.driver)  # type: ignore[arg-type, return-value]
        self.server = LocalServer(
            ModelManager(ModelTable(), self.loader, 8),
            repositories_at([folder]),
            Services(shared_memory=SharedMemory(True, cuda=cuda)),
            name="modserve",
            control=ControlOptions(ControlMode.EXPLICIT, (ALL,)),
        )
        self.left = False
        self.tally = Tally(peers, identity)
        self.tally.serve(self.server, identity.index)
        self.control = WorkerControl(self.server, self.tally.tell, self.leave)
        self.control.caught_up.set()

    def leave(self) -> None:
        self.left = True

    def has(self, model: str) -> bool:
        try:
            return self.server.model_ready(model, None)
        except ModserveError:
            return False


class Workers(Peers):
    """The calls of worker 0."""

    def __init__(self, identity: WorkerIdentity, folder: Path) -> None:
        super().__init__(identity)
        self.each = [
            Worker(folder / f"models{index}", replace(identity, index=index), self) for index in range(identity.count)
        ]

    async def call(self, index: int, method: str, *arguments: object) -> Any:
        """As over the socket."""
        control = self.each[index].control
        if not control.answers(method):
            raise PeerLostError
        sent = pickles.loads(pickles.dumps((method, arguments)))
        outcome = pickles.loads(pickles.dumps(await control.call(*sent)))
        if isinstance(outcome, ModserveError):
            raise outcome
        return outcome


@pytest.fixture
def identity(tmp_path: Path) -> WorkerIdentity:
    return WorkerIdentity(0, 2, 0, tmp_path)


@pytest.fixture
async def workers(identity: WorkerIdentity, tmp_path: Path) -> AsyncIterator[Workers]:
    async with AsyncExitStack() as stack:
        made = Workers(identity, tmp_path)
        for worker in made.each:
            await worker.server.load()
            stack.push_async_callback(worker.server.end)
        yield made


@pytest.fixture
async def coordinator(identity: WorkerIdentity, workers: Workers) -> AsyncIterator[Coordinator]:
    made = Coordinator(identity, workers)
    yield made
    made.close()


@pytest.fixture
def fleet(identity: WorkerIdentity, workers: Workers, coordinator: Coordinator) -> FleetServer:
    return FleetServer(workers.each[0].server, identity, workers, coordinator, workers.each[0].tally)


async def failure(work: Awaitable[object]) -> ModserveError:
    with pytest.raises(ModserveError) as raised:
        await work
    return raised.value


async def test_a_region_of_a_gpu_is_opened_by_each(fleet: FleetServer, workers: Workers) -> None:
    await fleet.register_region(REGION, HANDLE)
    assert [worker.driver.opened for worker in workers.each] == [1, 1]
    await fleet.unregister_region(CudaRegion, "g")
    assert [worker.driver.opened for worker in workers.each] == [0, 0]


async def test_a_region_that_one_cannot_open_is_nowhere(fleet: FleetServer, workers: Workers) -> None:
    workers.each[1].driver.failing = {"cuIpcOpenMemHandle_v2": 1}
    refused = await failure(fleet.register_region(REGION, HANDLE))
    assert refused.code is Code.INVALID_ARG
    assert refused.message.endswith(" (refused by worker 1, done before by 1 of 2 workers, and undone)")
    assert [worker.driver.opened for worker in workers.each] == [0, 0]
    workers.each[1].driver.failing = {}
    await fleet.register_region(REGION, HANDLE)


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
async def test_a_model_that_one_cannot_load_is_nowhere(fleet: FleetServer, workers: Workers, protocol: str) -> None:
    async def load() -> str:
        if protocol == "HTTP":
            _, body = await http(fleet, "POST", "/v2/repository/models/echo/load")
            return body.decode()
        call = FakeCall(pb.RepositoryModelLoadRequest(model_name="echo").SerializeToString())
        await call_table(fleet).serve(f"/{pb.SERVICE}/RepositoryModelLoad", call)
        return call.details

    await fleet.unload_model("echo")
    workers.each[1].loader.failures[ModelId("echo", 1)] = invalid("no room")
    assert "no room; (refused by worker 1, done before by 1 of 2 workers, and undone)" in await load()
    assert [worker.has("echo") for worker in workers.each] == [False, False]
    workers.each[1].loader.failures.clear()
    assert await load() == ""
    assert [worker.has("echo") for worker in workers.each] == [True, True]


async def test_a_worker_that_cannot_load_a_model_again_ends(
    coordinator: Coordinator, workers: Workers, identity: WorkerIdentity
) -> None:
    """Worker 1 keeps the model; worker 0 has unloaded it when a third dies in the middle, and cannot go back."""
    workers.each[0].loader.failures[ModelId("echo", 1)] = invalid("no room")
    change, number = ServerChange("unload_model", ("echo", False)), "7"
    await workers.call(0, "change", change, number)
    identity.note.write_bytes(pickles.dumps((number, change)))
    async with coordinator.lock():
        assert [worker.left for worker in workers.each] == [True, False]
    assert [worker.has("echo") for worker in workers.each] == [False, True]


async def http(server: FleetServer, method: str, path: str) -> tuple[int, bytes]:
    """The status and the body."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": []}
    await create_app(server, HttpSettings())({**scope, "query_string": b"", "root_path": ""}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


async def test_a_server_is_ready_when_all_workers_are(fleet: FleetServer, workers: Workers) -> None:
    assert await fleet.readiness() == Readiness(True, [])
    workers.each[1].loader.failures[ModelId("echo", 1)] = invalid("no room")
    await failure(workers.each[1].server.load_model("echo", "{}"))
    await workers.each[1].server.unload_model("echo")
    assert await fleet.model_trouble("echo", None) is not None
    response, table = health_pb.HealthCheckResponse, call_table(fleet)
    for service, status in (("simple", response.SERVING), ("echo", response.NOT_SERVING)):
        call = FakeCall(health_pb.HealthCheckRequest(service=service).SerializeToString())
        answer = await table.serve(f"/{health_pb.SERVICE}/Check", call)
        assert response.FromString(answer).status == status


async def test_counts_of_all_are_added_up(fleet: FleetServer, workers: Workers) -> None:
    for worker in workers.each:
        worker.server.model("echo").statistics.inference_count += 2
    status, body = await http(fleet, "GET", "/v2/models/echo/stats")
    assert (status, orjson.loads(body)["model_stats"][0]["inference_count"]) == (200, 4)
    assert await http(fleet, "HEAD", "/v2/models/stats") == (200, b"")


async def test_counts_of_a_lost_worker_stay(fleet: FleetServer, workers: Workers) -> None:
    await fleet.set_routing("echo", {"split": {"1": 1}})

    async def counted() -> list[int]:
        (row,) = (await fleet.statistics("echo")).model_stats
        reading, processes = await fleet.reading(dict)
        (shown,) = [each["counts"] for each in reading["models"] if each["name"] == "echo"]
        (route,) = (await fleet.routing("echo"))["routes"]
        assert processes is not None
        return [row.inference_count, shown["inferences"], route["requests"], processes["serving"]]

    for worker in workers.each:
        worker.server.model("echo").statistics.inference_count += 2
        await worker.server.infer("echo", {"IN": np.array([b"x"], object)})
    assert await counted() == [4, 4, 2, 2]
    workers.each[1].server.stop_accepting()
    workers.each[1].control.caught_up.clear()
    assert await counted() == [4, 4, 2, 1]
    await fleet.set_routing("echo", {"split": {"1": 1}})
    assert await counted() == [4, 4, 0, 1], "another routing, though it is the same document"


async def test_the_index_says_which_worker_has_lost_a_model(fleet: FleetServer, workers: Workers) -> None:
    await workers.each[1].server.unload_model("echo")
    (row,) = [entry for entry in await fleet.repository_index(False) if entry.name == "echo"]
    assert row == IndexEntry("echo", 1, LifecycleState.UNAVAILABLE, "worker 1: unloaded", row.load_ns)
    assert "echo" not in [entry.name for entry in await fleet.repository_index(True)]


async def test_a_worker_that_is_stopping_answers_for_itself(fleet: FleetServer, workers: Workers) -> None:
    workers.each[0].server.stop_accepting()
    assert (await failure(fleet.load_model("echo"))).message == "Server not ready"
    assert (await failure(fleet.repository_index(False))).message == "Server not ready"
    assert not (await fleet.readiness()).ready
    assert [worker.has("echo") for worker in workers.each] == [False, True]


async def test_regions_that_any_of_them_has_are_listed(fleet: FleetServer, workers: Workers) -> None:
    await fleet.register_region(REGION, HANDLE)
    await workers.each[0].server.unregister_region(CudaRegion, "g")
    for path in ("/v2/cudasharedmemory/status", "/v2/cudasharedmemory/region/g/status"):
        status, body = await http(fleet, "GET", path)
        assert (status, [region["name"] for region in orjson.loads(body)]) == (200, ["g"])
    assert (await http(fleet, "GET", "/v2/cudasharedmemory/region/h/status"))[0] == 404


async def test_a_drain_is_that_of_all(fleet: FleetServer, workers: Workers, identity: WorkerIdentity) -> None:
    assert not identity.draining.exists()
    status, body = await http(fleet, "POST", "/v2/health/drain")
    assert (status, orjson.loads(body)["drained"]) == (200, True)
    assert [worker.server.drain_phase for worker in workers.each] == [DrainPhase.DRAINED] * 2
    assert identity.draining.exists()  # for a worker that starts later
    assert not (await fleet.readiness()).ready


async def test_a_notice_is_given_to_all(workers: Workers) -> None:
    await workers.call(1, "give_notice")
    assert [worker.server.ready for worker in workers.each] == [True, False]
    assert workers.each[1].server.phase is Phase.RUNNING
    await workers.call(1, "drain")
    assert (await workers.status(1)) is not None  # it still says how it is


def test_the_drain_of_all_is_as_good_as_the_worst() -> None:
    reports = [DrainReport(True, {}, 1.0), DrainReport(False, {"a": 2}, 3.0), DrainReport(False, {"a": 1, "b": 1}, 2.0)]
    assert sums.drain(reports) == DrainReport(False, {"a": 3, "b": 1}, 3.0)
