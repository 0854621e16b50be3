"""Two servers as two workers, without sockets: what is done to both, and what becomes of it when one refuses."""

import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from puppet_server import PuppetLoader

from fake_cuda import HANDLE, FakeDriver
from modserve.core.errors import ModserveError, invalid
from modserve.core.version import ModelId
from modserve.frontends.grpc.dispatch import Dispatcher
from modserve.frontends.grpc.service import own_rpcs
from modserve.frontends.http.rest.app import create_app
from modserve.pb import inference as pb
from modserve.repository.control import ALL, ControlMode, ControlOptions
from modserve.repository.manager import ModelManager
from modserve.repository.places import repositories_at
from modserve.repository.table import ModelTable
from modserve.resources.cuda import Cuda
from modserve.resources.shared_memory import SharedMemory
from modserve.server import Server
from modserve.settings import GrpcSettings, HttpSettings
from modserve.testing import write_model
from modserve.workers import private
from modserve.workers.changing import Changing, text_of
from modserve.workers.client import Headers, Reply
from modserve.workers.fleet import Fleet
from modserve.workers.journal import RPC_PREFIX, Change
from modserve.workers.place import Place
from modserve.workers.private import PrivateApp
from modserve.workers.shared import SharedApp

REGISTER = "/v2/cudasharedmemory/region/g/register"
UNREGISTER = "/v2/cudasharedmemory/region/g/unregister"
REGION = orjson.dumps({"raw_handle": {"b64": base64.b64encode(HANDLE).decode()}, "device_id": 0, "byte_size": 32})


async def no_page(openmetrics: bool) -> bytes:
    return b""


class Worker:
    def __init__(self, folder: Path) -> None:
        self.loader = PuppetLoader()
        self.driver = FakeDriver()
        for name in self.loader.models:
            write_model(folder, name, versions=("1",))
        self.server = Server(
            ModelManager(ModelTable(), self.loader, 8),
            repositories_at([folder]),
            name="modserve",
            control=ControlOptions(ControlMode.EXPLICIT, (ALL,)),
            shared_memory=SharedMemory(True, cuda=Cuda(lambda: self.driver)),  # type: ignore[arg-type, return-value]
        )
        self.left = False
        rpcs = own_rpcs(self.server, GrpcSettings(), Dispatcher(self.server).inflater)
        rest = create_app(self.server, HttpSettings())
        self.app = PrivateApp(self.server, rest, rpcs, no_page, 0, self.leave)
        self.app.caught_up.set()

    def leave(self) -> None:
        self.left = True

    def has(self, model: str) -> bool:
        try:
            return self.server.model_ready(model, None)
        except ModserveError:
            return False


class Workers(Fleet):
    def __init__(self, place: Place, each: list[Worker]) -> None:
        super().__init__(place)
        self.each = each

    async def call(self, index: int, method: str, target: str, body: bytes = b"", headers: Headers = ()) -> Reply:
        """As over the socket."""
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        lines = [(name.encode(), value.encode()) for name, value in headers]
        scope = {"type": "http", "method": method, "path": target, "raw_path": target.encode(), "headers": lines}
        await self.each[index].app({**scope, "query_string": b"", "root_path": ""}, receive, send)
        own = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], own, b"".join(message.get("body", b"") for message in sent))


@pytest.fixture
async def workers(tmp_path: Path) -> AsyncIterator[Workers]:
    place = Place(0, 2, 0, tmp_path)
    async with AsyncExitStack() as stack:
        each = [Worker(tmp_path / f"models{index}") for index in range(place.count)]
        for worker in each:
            await worker.server.load()
            stack.push_async_callback(worker.server.drain)
        yield Workers(place, each)


@pytest.fixture
async def changing(workers: Workers, tmp_path: Path) -> AsyncIterator[Changing]:
    made = Changing(Place(0, 2, 0, tmp_path), workers)
    yield made
    made.close()


async def test_a_region_of_a_gpu_is_opened_by_each(changing: Changing, workers: Workers) -> None:
    assert (await changing.change(REGISTER, REGION)).ok
    assert [worker.driver.opened for worker in workers.each] == [1, 1]
    assert (await changing.change(UNREGISTER, b"")).ok
    assert [worker.driver.opened for worker in workers.each] == [0, 0]


async def test_a_region_that_one_cannot_open_is_nowhere(changing: Changing, workers: Workers) -> None:
    workers.each[1].driver.failing = ("cuIpcOpenMemHandle_v2",)
    refused = await changing.change(REGISTER, REGION)
    assert refused.status == 400
    assert text_of(refused).endswith(" (refused by worker 1, done before by 1 of 2 workers, and undone)")
    assert [worker.driver.opened for worker in workers.each] == [0, 0]
    workers.each[1].driver.failing = ()
    assert (await changing.change(REGISTER, REGION)).ok


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
async def test_a_model_that_one_cannot_load_is_nowhere(changing: Changing, workers: Workers, protocol: str) -> None:
    target, body = "/v2/repository/models/echo/load", b""
    if protocol == "gRPC":
        target = f"{RPC_PREFIX}/{pb.SERVICE}/RepositoryModelLoad"
        body = pb.RepositoryModelLoadRequest(model_name="echo").SerializeToString()
    assert (await changing.change("/v2/repository/models/echo/unload", b"")).ok
    workers.each[1].loader.failures[ModelId("echo", 1)] = invalid("no room")
    refused = await changing.change(target, body)
    assert refused.status == 400
    assert (private.CODE in refused.headers) == (protocol == "gRPC")
    assert "no room; (refused by worker 1, done before by 1 of 2 workers, and undone)" in text_of(refused)
    assert [worker.has("echo") for worker in workers.each] == [False, False]
    workers.each[1].loader.failures.clear()
    assert (await changing.change(target, body)).ok
    assert [worker.has("echo") for worker in workers.each] == [True, True]


async def test_a_worker_that_cannot_load_a_model_again_ends(
    changing: Changing, workers: Workers, tmp_path: Path
) -> None:
    """Worker 1 keeps the model; worker 0 has unloaded it when a third dies in the middle, and cannot go back."""
    workers.each[0].loader.failures[ModelId("echo", 1)] = invalid("no room")
    number = "7"
    assert (await workers.call(0, "POST", "/v2/repository/models/echo/unload", b"", ((private.CHANGE, number),))).ok
    note = [number, *private.coded([Change("/v2/repository/models/echo/unload", b"")])]
    Place(0, 2, 0, tmp_path).note.write_bytes(orjson.dumps(note))
    async with changing.locked():
        assert [worker.left for worker in workers.each] == [True, False]
    assert [worker.has("echo") for worker in workers.each] == [False, True]


async def through(app: SharedApp, method: str, path: str) -> tuple[str, int, bytes]:
    """The name of the application that has responded, the status and the body."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": []}
    await app({**scope, "query_string": b"", "root_path": ""}, receive, send)
    headers = dict(sent[0]["headers"])
    return headers.get(b"app", b"shared").decode(), sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize(
    ("method", "path", "app", "empty"),
    [
        ("GET", "/v2/models/stats", "shared", False),
        ("HEAD", "/v2/models/stats", "shared", True),
        ("POST", "/v2/models/stats", "own", False),
        ("POST", "/v2/repository/index", "shared", False),
        ("GET", "/v2/repository/index", "own", False),
        ("GET", "/v2/repository/models/echo/load", "own", False),
        ("GET", "/v2/models/echo/ready", "shared", False),
        ("GET", "/v2/cudasharedmemory/status", "shared", False),
        ("GET", "/v2/models/echo", "own", False),
    ],
)
async def test_which_calls_are_those_of_all(
    changing: Changing, workers: Workers, method: str, path: str, app: str, empty: bool
) -> None:
    async def own(scope: Any, receive: Any, send: Any) -> None:
        await private.respond(send, 200, b"own", (("app", "own"),))

    shared = SharedApp(own, workers, changing, workers.each[0].server)
    name, status, body = await through(shared, method, path)
    assert (name, status, body == b"") == (app, 200, empty)


async def test_regions_that_any_of_them_has_are_listed(changing: Changing, workers: Workers) -> None:
    assert (await changing.change(REGISTER, REGION)).ok
    await workers.call(0, "POST", UNREGISTER)

    async def own(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    shared = SharedApp(own, workers, changing, workers.each[0].server)
    for path in ("/v2/cudasharedmemory/status", "/v2/cudasharedmemory/region/g/status"):
        _, status, body = await through(shared, "GET", path)
        assert (status, [region["name"] for region in orjson.loads(body)]) == (200, ["g"])
