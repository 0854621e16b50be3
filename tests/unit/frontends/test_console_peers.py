"""The table of other servers in the console, whose calls are played."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from modserve.client.address import Access, Address
from modserve.client.errors import ClientError, make_timeout_error, unreachable
from modserve.client.transport import HEALTH, INDEX, STATISTICS, ControlCall
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.frontends.http.console import peers
from modserve.frontends.http.console.peers import PeerReader
from modserve.server import Server


class Own:
    """As much of a server as the table needs: it has `a` and `b`, and is loading `c`."""

    def index(self) -> Sequence[IndexEntry]:
        states = {"a": LifecycleState.READY, "b": LifecycleState.READY, "c": LifecycleState.LOADING}
        return [IndexEntry(name, 1, state, "") for name, state in states.items()]


class Peer:
    """What a server responds; an exception in place of all."""

    def __init__(self) -> None:
        self.ready = ["a", "b"]
        self.health: Any = {"ready": True}
        self.success = 0
        self.trouble: Exception | None = None

    def response(self, call: ControlCall) -> Any:
        if self.trouble is not None:
            raise self.trouble
        if call.operation is HEALTH:
            return self.health
        if call.operation is INDEX:
            return [{"name": name, "version": "1", "state": "READY"} for name in self.ready]
        assert call.operation is STATISTICS
        row = {"inference_stats": {"success": {"count": self.success}, "fail": {"count": 2}}}
        return {"model_stats": [row, row]}


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, text: str = "http://p:1,http://q:1") -> None:
        self.peers = {"http://p:1": Peer(), "http://q:1": Peer()}
        self.now = 100.0
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.open = 0
        world = self

        class Transport:
            def __init__(self, place: Address, access: Access) -> None:
                self._place, self._access = str(place), access
                world.open += 1

            async def call(self, call: ControlCall) -> Any:
                world.calls.append((self._place, dict(self._access.headers)))
                return world.peers[self._place].response(call)

            async def close(self) -> None:
                world.open -= 1

        monkeypatch.setattr(peers, "AsyncHttpTransport", Transport)
        self.reader = PeerReader(
            cast(Server, Own()), text, clock=lambda: self.now, resolve=lambda name, port: ["10.0.0.1"]
        )

    async def rows(self, **credentials: str) -> list[Sequence[str]]:
        self.now += 10
        return await self.reader.rows(credentials)


async def test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert await world.rows() == [
        ("http://p:1", "ready", "", "2", "–", "4"),
        ("http://q:1", "ready", "", "2", "–", "4"),
    ]
    world.peers["http://p:1"].success = 50
    world.peers["http://q:1"].health = {"ready": False, "phase": "stopping"}
    world.peers["http://q:1"].ready = ["b", "z"]
    assert await world.rows() == [
        ("http://p:1", "ready", "", "2", "10", "4"),
        ("http://q:1", "not ready: stopping", "no a 1, z 1", "2", "0", "4"),
    ]
    assert world.open == 0


@pytest.mark.parametrize(
    ("trouble", "text"),
    [
        (make_timeout_error(2.0), "no response within 2 s"),
        (unreachable("http://q:1", OSError(111, "Connection refused")), "Connection refused"),
        (ClientError(403, "this call needs a key"), "this call needs a key"),  # type: ignore[arg-type]
        (ClientError(404, "Not Found"), "Not Found: --peers has to name its admin port"),  # type: ignore[arg-type]
        (KeyError("name"), "does not speak the protocol"),
    ],
)
async def test_one_in_trouble(monkeypatch: pytest.MonkeyPatch, trouble: Exception, text: str) -> None:
    world = World(monkeypatch)
    world.peers["http://q:1"].trouble = trouble
    first, second = await world.rows()
    assert first[1] == "ready"
    assert second == ("http://q:1", text, "", "–", "–", "–")
    assert world.open == 0


async def test_many_differences_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.peers["http://p:1"].ready = [f"m{index}" for index in range(9)]
    assert (await world.rows())[0][2] == "no a 1, no b 1, m0 1, m1 1, m2 1, 6 more"


async def test_the_key_of_the_reader_is_sent_and_rows_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    await world.rows(authorization="Bearer one")
    assert {headers["authorization"] for _, headers in world.calls} == {"Bearer one"}
    count = len(world.calls)
    await world.reader.rows({"authorization": "Bearer one"})  # at once: the same again
    assert len(world.calls) == count
    await world.reader.rows({"authorization": "Bearer two"})
    assert len(world.calls) == 2 * count
    for index in range(100):
        await world.reader.rows({"x-api-key": str(index)})
    assert len(world.reader._rows) <= 32


@pytest.mark.parametrize(
    ("text", "url", "state"),
    [
        ("ftp://x", "ftp://x", "'ftp://x' is not the address of a server"),
        ("grpc://x", "grpc://x:8001", "expected the address of its HTTP port"),
    ],
)
async def test_wrong_addresses(monkeypatch: pytest.MonkeyPatch, text: str, url: str, state: str) -> None:
    [row] = await World(monkeypatch, text).rows()
    assert row[0] == url
    assert row[1].startswith(state)


async def test_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, "dns:///svc:1")
    world.peers["http://10.0.0.1:1"] = Peer()
    assert [row[0] for row in await world.rows()] == ["http://10.0.0.1:1"]
