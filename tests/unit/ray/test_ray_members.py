"""The server of a replica as it is made, in this process and without Ray."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from modserve import InferenceServer, Settings
from modserve.core.configuration.trace_settings import TraceSettings
from modserve.ray.member import ReplicaMember
from modserve.ray.replica_set import LedgerLostError, ReplicaSet
from modserve.routing.router import RouteRollback
from modserve.server.member import ServerMember
from modserve.workers import pickles

REPOSITORY = Path(__file__).parents[3] / "model_repository"


class NoLedger:
    """Implements `LedgerCalls` where there is none."""

    async def change(self, change: bytes) -> bytes:
        raise LedgerLostError

    async def since(self, number: int) -> tuple[int, list[bytes]]:
        raise LedgerLostError

    async def restore(self, number: int, changes: list[bytes]) -> None:
        raise LedgerLostError


class Broadcasts:
    """What a replica has said to the others."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.heard = asyncio.Event()

    async def __call__(self, data: bytes, seconds: float) -> list[Any]:
        self.calls.append(pickles.loads(data))
        self.heard.set()
        return []


def member(name: str, broadcasts: Broadcasts) -> ServerMember:
    return ReplicaMember(ReplicaSet(name, broadcasts, NoLedger()), None)


async def test_a_server_with_all_that_asks_its_member(tmp_path: Path) -> None:
    """Traces, records, sequences and the control of engines: each asks the member while the server is made."""
    settings = Settings(
        model_repository=[REPOSITORY],
        model_control_mode="explicit",
        load_model=["simple"],
        trace_level={"TIMESTAMPS"},
        trace_rate=1,
        trace_file=str(tmp_path / "trace.json"),
        record=f"dir={tmp_path / 'records'},rate=1",
    )
    async with InferenceServer(settings, member=member("r7", Broadcasts())) as server:
        ones = np.ones((1, 16), np.int32)
        response = await server.infer("simple", {"INPUT0": ones, "INPUT1": ones})
        assert response.outputs["OUTPUT0"].array.tolist() == [[2] * 16]
        assert server.tracer.settings().file == str(tmp_path / "trace.json.replica-r7")
        assert (tmp_path / "records").is_dir()


def test_replicas_of_one_node_trace_to_files_of_their_own() -> None:
    """One file for two would be truncated by whoever opens it later."""
    settings = TraceSettings(file="/var/log/trace.json")
    files = {member(name, Broadcasts()).trace(settings).file for name in ("r1", "r2")}
    assert files == {"/var/log/trace.json.replica-r1", "/var/log/trace.json.replica-r2"}
    assert member("r1", Broadcasts()).trace(TraceSettings()) == TraceSettings()


async def test_the_others_hear_of_a_rollback() -> None:
    broadcasts = Broadcasts()
    rollback = RouteRollback("m", 2, "errors", {"routes": []})
    member("r1", broadcasts).roll_back_elsewhere(rollback)
    await broadcasts.heard.wait()
    [(sender, method, (sent,))] = broadcasts.calls
    assert (sender, method, sent) == ("r1", "roll_back", rollback)
