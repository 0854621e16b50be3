"""What `lifecycle.py` changes: each function makes one change, and returns a complaint or an empty text."""

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

from lifecycle_clients import Count, Target, Traffic, call
from lifecycle_models import CANARY, LARGE, MODEL, SLOW_S, Site, config, model_of

OUTAGE_S, SHORT_OUTAGE_S = 10.0, 2.0
EVENTUALLY_S = 30.0
SETTLE_S = 0.05
"""So long only the latest version may respond to what names no version."""
LAST_REQUESTS = 40
ROUTING = {
    "labels": {"stable": 1, "canary": 2},
    "split": {"stable": 70, "canary": 30},
    "rollback": {"version": "canary", "p95_ms": 400, "last_requests": LAST_REQUESTS, "error_share": 0.01},
}
"""The canary passes its limit only while it is slow: its batches take `SLOW_S` then, and a millisecond otherwise."""


class Control:
    """Changes the repository, calls the server, and counts what happens."""

    def __init__(self, site: Site, port: int, log: Path, traffic: Traffic, outage_s: float) -> None:
        self.site = site
        self.folder = site.models / MODEL
        self.outage_s = outage_s
        self._port, self._log, self._traffic = port, log, traffic
        self.instances, self.delay_us = 1, 0

    @property
    def target(self) -> Target:
        return self.site.targets[0]

    @property
    def count(self) -> Count:
        return self._traffic.count

    def happened(self, what: str, times: int = 1) -> None:
        self.count.events[what] += times

    def logged(self, text: str) -> int:
        """How often the server's log has it."""
        return read(self._log).count(text)

    async def call(self, method: str, path: str, document: object = None) -> tuple[int, Any]:
        """The status, and the response's JSON."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            body = b"" if document is None else orjson.dumps(document)
            status, answer = await call(reader, writer, method, path, body)
        finally:
            writer.close()
        return status, orjson.loads(answer) if answer else None

    async def load(self, parameters: dict[str, str] | None = None) -> str:
        """The error that the server returns, empty if there is none."""
        document = {"parameters": parameters} if parameters else {}
        status, answer = await self.call("POST", f"/v2/repository/models/{MODEL}/load", document)
        self.happened("load calls" if status == 200 else "refused load calls")
        return "" if status == 200 else f"{status} {answer}"

    async def ready_versions(self) -> set[str]:
        rows = (await self.call("POST", "/v2/repository/index"))[1]
        return {row.get("version", "") for row in rows if row["name"] == MODEL and row.get("state") == "READY"}

    def write_config(self) -> None:
        place(self.folder / "config.pbtxt", config(self.instances, self.delay_us))

    def write_version(self, version: int) -> None:
        """A whole folder appears at once."""
        hidden = self.folder.parent / f".{version}"
        hidden.mkdir()
        (hidden / "model.onnx").write_bytes(model_of(version))
        hidden.rename(self.folder / str(version))


def place(path: Path, content: bytes) -> None:
    """Put a file in the place of another."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_bytes(content)
    hidden.replace(path)


def read(log: Path) -> str:
    return log.read_text(errors="replace")


async def eventually(check: Callable[[], Awaitable[bool]]) -> bool:
    """Whether it becomes true within `EVENTUALLY_S`."""
    limit = time.monotonic() + EVENTUALLY_S
    while not await check():
        if time.monotonic() > limit:
            return False
        await asyncio.sleep(0.05)
    return True


# Loads by a client


async def reload(control: Control, time_: int) -> str:
    """The weights are written anew, and the version is loaded beside the one that serves."""
    place(control.folder / "1" / "model.onnx", model_of(1))
    return await control.load()


async def change_instances(control: Control, time_: int) -> str:
    control.instances = (2, 4, 1, 3)[time_ % 4]
    control.write_config()
    return await control.load()


async def change_queue(control: Control, time_: int) -> str:
    control.delay_us = (500, 0, 2000)[time_ % 3]
    control.write_config()
    return await control.load()


async def change_by_call(control: Control, time_: int) -> str:
    """The configuration comes with the call; every third time its file holds again."""
    if time_ % 3 == 2:
        control.write_config()
        return await control.load()
    tensor = {"data_type": "TYPE_FP32", "dims": [8]}
    document = {
        "backend": "onnxruntime",
        "max_batch_size": 8,
        "input": [{"name": "x", **tensor}],
        "output": [{"name": "y", **tensor}],
        "version_policy": {"all": {}},
        "instance_group": [{"count": 1 + time_ % 2, "kind": "KIND_CPU"}],
        "dynamic_batching": {},
    }
    return await control.load({"config": json.dumps(document)})


async def add_and_remove(control: Control, time_: int) -> str:
    """A version comes, takes what names no version, and goes again."""
    version, latest = 2 + time_, control.target.latest
    control.write_version(version)
    latest.add(version)
    if complaint := await control.load():
        return complaint
    latest.remove(1)
    await asyncio.sleep(SETTLE_S)
    latest.add(1)
    shutil.rmtree(control.folder / str(version))
    if complaint := await control.load():
        return complaint
    latest.remove(version)
    return ""


async def break_version(control: Control, time_: int) -> str:
    """A version that is cut off comes, and what serves goes on; then it is repaired by going."""
    folder = control.folder / "99"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(model_of(99)[:50])
    complaint = await control.load()
    shutil.rmtree(folder)
    if "99" not in complaint:
        return f"the server took a version that is cut off: {complaint}"
    return await control.load()


# A canary


async def roll_back(control: Control, time_: int) -> str:
    """The canary gets its share, becomes slow, and must lose its share; then it is fast again."""
    path, latest = f"/v2/models/{CANARY}/routing", control.target.latest

    async def canary() -> dict[str, Any]:
        routes = (await control.call("GET", path))[1]["routes"]
        return next(each for each in routes if each["version"] == 2)

    async def is_used() -> bool:
        return bool((await canary())["requests"] >= 2 * LAST_REQUESTS)

    async def is_rolled_back() -> bool:
        return "rolled_back" in await canary()

    latest |= {1, 2}
    status, answer = await control.call("POST", path, ROUTING)
    if status != 200:
        return f"{status} {answer}"
    if not await eventually(is_used) or await is_rolled_back():
        return f"the canary lost its share before it was slow: {await canary()}"
    control.site.slow.touch()
    try:
        if not await eventually(is_rolled_back):
            return "the canary was slow, and was not rolled back"
        latest.remove(2)
        control.happened("rollbacks")
        control.happened("requests to the canary", (await canary())["requests"])
    finally:
        control.site.slow.unlink()
    await asyncio.sleep(SLOW_S)
    return ""


# Memory


async def evict(control: Control, time_: int) -> str:
    """As many models as there are leave memory, for others to come into it."""

    async def total(name: str) -> int:
        return sum(each[name] for each in (await control.call("GET", "/v2/memory"))[1]["models"])

    loads, evictions = await total("loads"), await total("evictions")

    async def evicted() -> bool:
        return await total("evictions") >= evictions + len(LARGE)

    if not await eventually(evicted):
        return f"only {await total('evictions') - evictions} models left memory in {EVENTUALLY_S:.0f} s"
    memory = (await control.call("GET", "/v2/memory"))[1]
    control.happened("evictions", sum(each["evictions"] for each in memory["models"]) - evictions)
    control.happened("loads", sum(each["loads"] for each in memory["models"]) - loads)
    if memory["held"] > memory["limit"]:
        return f"the models hold {memory['held']} bytes, and the limit is {memory['limit']}"
    return ""


# A bucket


async def lose_bucket(control: Control, time_: int) -> str:
    """The bucket is gone for a while; what serves goes on, and a version that comes afterwards is loaded."""
    store, latest = control.site.store, control.target.latest
    assert store is not None
    gone, back = "loaded models stay", "can be read again"
    before = control.logged(gone), control.logged(back)

    async def noticed() -> bool:
        return control.logged(gone) > before[0]

    async def read_again() -> bool:
        return control.logged(back) > before[1]

    began = time.monotonic()
    store.door.shut()
    try:
        await asyncio.sleep(control.outage_s)
        if not await eventually(noticed):
            return "the bucket was gone, and the server did not say so"
        if (await control.call("GET", "/v2/health/ready"))[0] != 200:
            return "the server is not ready because the bucket is gone"
    finally:
        store.door.open()
    control.happened("seconds without the bucket", round(time.monotonic() - began))
    if not await eventually(read_again):
        return "the bucket is back, and the server did not say so"
    version = 2 + time_
    latest.add(version)
    key = f"repository/{MODEL}/{version}/model.onnx"
    await asyncio.to_thread(store.bucket.put, key, model_of(version))
    if not await eventually(lambda: _is_ready(control, version)):
        return f"version {version} came into the bucket, and was not loaded"
    latest.remove(1)
    await asyncio.sleep(SETTLE_S)
    latest.add(1)
    await asyncio.to_thread(store.bucket.delete, key)
    if not await eventually(lambda: _is_ready(control, version, False)):
        return f"version {version} left the bucket, and was not unloaded"
    latest.remove(version)
    control.happened("changes followed", 2)
    return ""


async def _is_ready(control: Control, version: int, expected: bool = True) -> bool:
    return (str(version) in await control.ready_versions()) is expected
