"""Folders that are still being copied while a model loads, and versions that come while others serve."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from modserve import InferenceServer, ModserveError, Settings
from modserve.backends.api import INSTANCES, ModelSource
from modserve.testing import PuppetBackend, write_model

CONFIG = """backend: "puppet"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] } ]
version_policy { all {} }
"""
CHANGED = "/m/2/weights' has changed while it was loaded"


class Copied(PuppetBackend):
    """While it opens version 2, something is done to the file."""

    in_place = INSTANCES

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[Path], None]] = []

    def open(self, source: ModelSource) -> Any:
        if source.version == 2 and self.meanwhile:
            self.meanwhile.pop(0)(source.path.parent / "2" / "weights")
        return super().open(source)


class Bench:
    def __init__(self, root: Path, **options: object) -> None:
        self.backend = Copied()
        self.weights = root / "m" / "2" / "weights"
        settings = Settings(model_repository=[root], model_control_mode="poll", repository_poll_secs=0, **options)
        self.server = InferenceServer(settings, backends={"puppet": self.backend})

    async def add(self, *meanwhile: Callable[[Path], None]) -> None:
        """Version 2 comes, and the repository is looked through."""
        self.backend.meanwhile = list(meanwhile)
        if not self.weights.exists():
            self.weights.parent.mkdir()
            self.weights.write_text("half")
        await self.poll()

    async def poll(self) -> None:
        await self.server._control.poll()

    async def states(self) -> dict[int | None, tuple[str, str]]:
        return {each.version: (each.state.value, each.reason) for each in await self.server.repository_index(False)}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    write_model(tmp_path, "m", CONFIG)
    made = Bench(tmp_path)
    async with made.server:
        yield made
    assert (made.backend.open_models, made.backend.open_instances) == (0, 0)


def more(path: Path) -> None:
    with path.open("a") as file:
        file.write("more")


def gone(path: Path) -> None:
    path.unlink()


async def test_what_changes_once_is_loaded_again_at_once(bench: Bench) -> None:
    await bench.add(more)
    assert await bench.states() == {1: ("READY", ""), 2: ("READY", "")}
    assert [source.version for source in bench.backend.sources] == [1, 2, 2]
    await bench.poll()  # once more, since the files are not those of the look
    seen = len(bench.backend.sources)
    await bench.poll()
    assert len(bench.backend.sources) == seen


@pytest.mark.parametrize("last", [more, gone])
async def test_what_goes_on_changing_is_tried_again_at_the_next_look(
    bench: Bench, last: Callable[[Path], None]
) -> None:
    await bench.add(more, last)
    states = await bench.states()
    assert states[1][0] == "READY"
    assert states[2][0] == "UNAVAILABLE"
    assert states[2][1].endswith(CHANGED)
    assert bench.server.ready
    assert bench.backend.open_models == 1
    bench.weights.write_text("the whole file")
    await bench.poll()
    assert await bench.states() == {1: ("READY", ""), 2: ("READY", "")}


async def test_a_load_that_fails_says_that_a_file_has_changed(bench: Bench) -> None:
    def cut(path: Path) -> None:
        more(path)
        raise RuntimeError("cut off")

    await bench.add(cut, cut)
    state, reason = (await bench.states())[2]
    assert state == "UNAVAILABLE"
    assert "cut off\n" in reason
    assert reason.endswith(CHANGED)


async def test_engines_that_run_what_is_in_the_folder_may_write_there(bench: Bench) -> None:
    bench.backend.in_place = frozenset()
    bench.backend.code = "what is in the folder"
    await bench.add(more, more)
    assert (await bench.states())[2] == ("READY", "")


# Readiness


async def test_a_new_version_that_loads_or_fails_takes_no_readiness(bench: Bench) -> None:
    seen: list[bool] = []

    def look(path: Path) -> None:
        seen.append(bench.server.ready)
        raise RuntimeError("no good")

    await bench.add(look)
    assert seen == [True]
    assert (await bench.states())[2][0] == "UNAVAILABLE"
    assert bench.server.ready
    assert bench.server.unready_reasons() == []


async def test_strictly_it_does(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        raise RuntimeError("no good")

    write_model(tmp_path, "m", CONFIG)
    bench = Bench(tmp_path, strict_version_readiness=True)
    async with bench.server as server:
        await bench.add(fail)
        assert not server.ready
        [entry] = server.unready_reasons()
        assert (entry.version, entry.state.value) == (2, "UNAVAILABLE")


async def test_what_fails_at_the_start_keeps_the_server_from_being_ready(tmp_path: Path) -> None:
    write_model(tmp_path, "m", CONFIG, ("1", "2"))
    bench = Bench(tmp_path)

    def fail(path: Path) -> None:
        raise RuntimeError("no good")

    bench.backend.meanwhile = [fail]
    async with bench.server as server:
        assert not server.ready
        assert [entry.version for entry in server.unready_reasons()] == [2]


async def test_the_new_version_counts_once_nothing_else_serves(bench: Bench) -> None:
    def fail(path: Path) -> None:
        raise RuntimeError("no good")

    await bench.add(fail)
    assert bench.server.ready
    await bench.server._control._manager.update({"m": None})
    assert not bench.server.ready
    with pytest.raises(ModserveError):
        bench.server.model("m")
