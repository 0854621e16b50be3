"""Which models are wanted: by the start, by polling and by calls."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from fake_loader import FakeLoader, turns

from modserve.core.errors import Code, ModserveError, internal, invalid
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.core.version import ModelId
from modserve.repository.control import ControlMode, ControlOptions, ModelControl
from modserve.repository.manager import ModelManager
from modserve.repository.scanning import repositories_at
from modserve.repository.table import ModelTable
from modserve.testing import write_model

EXPLICIT, POLL = ControlOptions(ControlMode.EXPLICIT), ControlOptions(ControlMode.POLL, poll_seconds=0)
ALL = ControlOptions(ControlMode.EXPLICIT, ("*",))
NOT_ALLOWED = "explicit model load / unload is not allowed"


class Bench:
    """A repository of models `a` and `b`, each with version 1."""

    def __init__(self, root: Path, options: ControlOptions = EXPLICIT) -> None:
        self.root = root
        for name in ("a", "b"):
            write_model(root, name, "x: 1")
        self.loader = FakeLoader()
        self.table = ModelTable()
        self.manager = ModelManager(self.table, self.loader, 4)
        self.control = ModelControl(self.manager, repositories_at([root]), options)

    @property
    def ready(self) -> list[tuple[str, int]]:
        return [(entry.name, entry.version or 0) for entry in self.table.index() if entry.state is LifecycleState.READY]

    async def refusal(self, name: str, config: str | None = None, files: dict[str, bytes] | None = None) -> str:
        with pytest.raises(ModserveError) as caught:
            await self.control.load(name, config, files)
        assert caught.value.code in (Code.INVALID_ARG, Code.NOT_FOUND, Code.INTERNAL)
        return f"{caught.value.code.name}: {caught.value.message}"

    def touch(self, path: str, seconds: int) -> None:
        """Modified so many seconds after the epoch."""
        os.utime(self.root / path, (seconds, seconds))


# The start


@pytest.mark.parametrize(
    ("options", "ready"),
    [
        (ControlOptions(), [("a", 1), ("b", 1)]),
        (POLL, [("a", 1), ("b", 1)]),
        (EXPLICIT, []),
        (ALL, [("a", 1), ("b", 1)]),
        (ControlOptions(ControlMode.EXPLICIT, ("b",)), [("b", 1)]),
    ],
    ids=["none", "poll", "explicit", "explicit, all", "explicit, one"],
)
async def test_what_is_loaded_at_the_start(tmp_path: Path, options: ControlOptions, ready: list[object]) -> None:
    bench = Bench(tmp_path, options)
    await bench.control.start()
    assert bench.ready == ready
    never = [name for name in ("a", "b") if (name, 1) not in ready]
    entries = [entry for entry in await bench.control.index() if entry.state is not LifecycleState.READY]
    assert entries == [IndexEntry(name, None, LifecycleState.UNKNOWN, "") for name in never]
    await bench.control.stop()
    assert bench.ready == []


async def test_a_model_to_load_at_the_start_that_is_not_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ControlOptions(ControlMode.EXPLICIT, ("a", "nosuch")))
    await bench.control.start()
    assert bench.ready == [("a", 1)]
    reason = "Not found: failed to load 'nosuch', failed to poll from model repository"
    assert bench.table.unready() == [IndexEntry("nosuch", None, LifecycleState.UNAVAILABLE, reason)]
    write_model(tmp_path, "nosuch")
    await bench.control.load("nosuch")
    assert bench.table.unready() == []


async def test_what_is_no_model_is_told_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "resnet.onnx").touch()
    await ModelControl(ModelManager(ModelTable(), FakeLoader(), 4), repositories_at([tmp_path]), EXPLICIT).start()
    assert caplog.messages == [
        f"'{tmp_path}/resnet.onnx' is ignored: a model is a folder, such as 'resnet/1/model.onnx'",
        f"there are no models in '{tmp_path}': a model is a folder in it",
    ]


async def test_models_that_wait_for_a_call_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "modserve.repository.control")
    await Bench(tmp_path, ControlOptions(ControlMode.EXPLICIT, ("a",))).control.start()
    assert caplog.messages == ["loading 1 model", "not loaded until requested by a call or --load-model: b"]


# Calls


async def test_load_and_unload(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.control.start()
    await bench.control.load("a")
    await bench.control.load("a")
    assert (bench.ready, bench.loader.order) == ([("a", 1)], [("a", 1)])
    await bench.control.unload("a")
    assert bench.ready == []
    await turns(lambda: bench.table.unready() == [])
    assert [(entry.name, entry.state, entry.reason) for entry in await bench.control.index()] == [
        ("a", LifecycleState.UNAVAILABLE, "unloaded"),
        ("b", LifecycleState.UNKNOWN, ""),
    ]
    await bench.control.load("a")
    assert bench.ready == [("a", 1)]
    assert repr(bench.control) == "ModelControl(explicit, 1 models wanted)"


async def test_changed_files_are_loaded(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.control.load("a")
    bench.touch("a/config.pbtxt", 1)
    await bench.control.load("a")
    assert bench.loader.order == [("a", 1)] * 2
    (tmp_path / "a" / "1" / "sub").mkdir()
    (tmp_path / "a" / "1" / "sub" / "file").write_text("x")
    await bench.control.load("a")
    assert bench.loader.order == [("a", 1)] * 3


async def test_a_configuration_is_kept_while_no_file_changes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for config in ("{}", "{}", None, "{ }", None):
        await bench.control.load("a", config)
    assert [directory.config for directory in bench.loader.listings] == ["{}", "{ }"]
    bench.touch("a/config.pbtxt", 1)
    await bench.control.load("a")
    await bench.control.load("a", "{}")
    await bench.control.unload("a")
    await bench.control.load("a")
    assert [directory.config for directory in bench.loader.listings[2:]] == [None, "{}", None]
    assert bench.loader.order == [("a", 1)] * 5
    assert {directory.path for directory in bench.loader.listings} == {tmp_path / "a"}


async def test_files_make_a_temporary_repository(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.control.load("a", "{}", {"2/model": b"m", "2/sub/x": b"y"})
    (directory,) = bench.loader.listings
    assert (directory.name, directory.versions, directory.config) == ("a", (2,), "{}")
    assert (directory.path / "2" / "model").read_bytes() == b"m"
    assert (directory.path / "2" / "sub" / "x").read_bytes() == b"y"
    assert bench.ready == [("a", 2)]
    await bench.control.load("a")
    assert bench.ready == [("a", 1)], "as on disk"
    await bench.control.stop()
    assert not directory.path.exists()


async def test_a_model_made_of_files_need_not_be_in_a_repository(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.control.load("new", "{}", {"1/model": b"m"})
    assert bench.ready == [("new", 1)]
    (directory,) = bench.loader.listings
    await bench.control.stop()
    assert not directory.path.parent.exists()


async def test_files_of_a_failed_load_are_deleted(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.control.load("a")
    bench.loader.failures[ModelId("a", 2)] = internal("broken")
    assert await bench.refusal("a", "{}", {"2/model": b"m"}) == (
        "INVALID_ARG: load failed for model 'a': version 2 is at UNAVAILABLE state: Internal: broken;\n"
    )
    assert not bench.loader.listings[-1].path.exists()
    assert bench.ready == [("a", 1)]


POLL_FAILED = "failed to load '{name}', failed to poll from model repository"


@pytest.mark.parametrize(
    ("name", "config", "files", "text"),
    [
        ("nosuch", None, {}, "NOT_FOUND: " + POLL_FAILED.format(name="nosuch")),
        (".hidden", None, {}, "NOT_FOUND: " + POLL_FAILED.format(name=".hidden")),
        (
            "twice",
            "{}",
            {},
            "INTERNAL: " + POLL_FAILED.format(name="twice") + ": model appears in two or more repositories",
        ),
        ("", None, {}, "INVALID_ARG: Model name cannot be empty. Please enter a valid name to deploy."),
        (" \t", None, {}, "INVALID_ARG: Model name cannot be empty. Please enter a valid name to deploy."),
        (
            "../a",
            None,
            {},
            "INVALID_ARG: invalid model name '../a', model name must not contain path traversal characters",
        ),
        (
            "..",
            "{}",
            {"1/x": b""},
            "INVALID_ARG: invalid model name '..', model name must not contain path traversal characters",
        ),
        (
            "a",
            None,
            {"1/x": b""},
            "INVALID_ARG: Load parameter 'config' must be specified for model file override",
        ),
    ],
)
async def test_a_refused_load(
    tmp_path: Path, name: str, config: str | None, files: dict[str, bytes], text: str
) -> None:
    bench = Bench(tmp_path / "one")
    for repository in ("one", "two"):
        write_model(tmp_path / repository, "twice")
    write_model(tmp_path / "one", ".hidden")
    bench.control = ModelControl(bench.manager, repositories_at([tmp_path / "one", tmp_path / "two"]), EXPLICIT)
    assert await bench.refusal(name, config, files) == text
    assert (bench.table.index(), bench.loader.order) == ([], [])


@pytest.mark.parametrize(
    ("options", "polling"), [(ControlOptions(), ""), (POLL, " if polling is enabled")], ids=["none", "poll"]
)
async def test_calls_are_for_mode_explicit(tmp_path: Path, options: ControlOptions, polling: str) -> None:
    bench = Bench(tmp_path, options)
    await bench.control.start()
    for call in (bench.control.load("a"), bench.control.unload("a")):
        with pytest.raises(ModserveError) as caught:
            await call
        assert caught.value.code is Code.UNAVAILABLE
        assert caught.value.message.startswith(f"{NOT_ALLOWED}{polling}: the model control mode of this server is '")
    assert bench.ready == [("a", 1), ("b", 1)]


async def test_a_caller_that_goes_away_does_not_end_the_load(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.loader.patient = True
    caller = asyncio.create_task(bench.control.load("a"))
    await bench.loader.begun("a", 1)
    caller.cancel()
    await asyncio.wait((caller,))
    assert caller.cancelled()
    assert bench.table.state("a", 1).state is LifecycleState.LOADING
    bench.loader.finish("a", 1)
    await turns(lambda: bench.ready == [("a", 1)])


async def test_stopping_ends_a_load(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.loader.patient = True
    caller = asyncio.create_task(bench.control.load("a"))
    await bench.loader.begun("a", 1)
    await bench.control.stop()
    with pytest.raises(ModserveError, match="Server not ready"):
        await caller
    assert bench.table.state("a", 1).state is LifecycleState.UNAVAILABLE


async def test_the_index_of_a_repository_that_can_not_be_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "gone")
    await bench.control.load("a")
    shutil.rmtree(tmp_path / "gone")
    assert [entry.name for entry in await bench.control.index()] == ["a"]


# Polling


async def polled(root: Path) -> Bench:
    bench = Bench(root, POLL)
    await bench.control.start()
    bench.loader.order.clear()
    return bench


async def test_a_look_without_changes_does_nothing(tmp_path: Path) -> None:
    bench = await polled(tmp_path)
    await bench.control.poll()
    assert bench.loader.order == []


async def test_a_model_that_is_new(tmp_path: Path) -> None:
    bench = await polled(tmp_path)
    write_model(tmp_path, "c")
    await bench.control.poll()
    assert bench.loader.order == [("c", 1)]
    assert bench.ready == [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.parametrize(
    ("change", "order", "ready"),
    [
        ("a/config.pbtxt", [("a", 1)], [("a", 1), ("b", 1)]),
        ("a/1/model", [("a", 1)], [("a", 1), ("b", 1)]),
        ("a/2/model", [("a", 2)], [("a", 1), ("a", 2), ("b", 1)]),
        ("a/labels.txt", [("a", 1)], [("a", 1), ("b", 1)]),
        ("a/1/__pycache__/utils.cpython-311.pyc", [], [("a", 1), ("b", 1)]),
    ],
    ids=["configuration", "model file", "new version", "other file", "what Python keeps of its modules"],
)
async def test_a_model_that_has_changed(tmp_path: Path, change: str, order: list[object], ready: list[object]) -> None:
    bench = await polled(tmp_path)
    (tmp_path / change).parent.mkdir(exist_ok=True)
    (tmp_path / change).write_text("new content")
    await bench.control.poll()
    assert (bench.loader.order, bench.ready) == (order, ready)


async def test_a_model_that_is_gone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, POLL)
    bench.loader.failures[ModelId("b", 1)] = invalid("bad")
    await bench.control.start()
    assert [entry.name for entry in bench.table.unready()] == ["b"]
    for name in ("a", "b"):
        shutil.rmtree(tmp_path / name)
    await bench.control.poll()
    await turns(lambda: bench.table.unready() == [])
    assert [(entry.name, entry.reason) for entry in bench.table.index()] == [("a", "unloaded")]


async def test_what_fails_is_tried_again_when_it_has_changed(tmp_path: Path) -> None:
    bench = await polled(tmp_path)
    bench.loader.failures[ModelId("a", 1)] = invalid("bad")
    bench.touch("a/config.pbtxt", 1)
    for _ in range(2):
        await bench.control.poll()
        assert bench.loader.order == [("a", 1)]
    assert bench.ready == [("a", 1), ("b", 1)]
    assert "Invalid argument: bad" in bench.table.index()[0].reason
    bench.loader.failures.clear()
    bench.touch("a/config.pbtxt", 2)
    await bench.control.poll()
    assert bench.loader.order == [("a", 1)] * 2
    assert bench.table.index()[0].reason == ""


async def test_a_model_that_appears_twice_is_served_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "one")
    (tmp_path / "two").mkdir()
    bench.control = ModelControl(bench.manager, repositories_at([tmp_path / "one", tmp_path / "two"]), POLL)
    await bench.control.start()
    write_model(tmp_path / "two", "a")
    await bench.control.poll()
    assert bench.ready == [("a", 1), ("b", 1)]
    assert bench.table.index()[0].reason == "model appears in two or more repositories"
    shutil.rmtree(tmp_path / "two" / "a")
    await bench.control.poll()
    assert bench.table.index()[0].reason == ""
    assert bench.loader.order == [("a", 1), ("b", 1)]


async def test_a_repository_that_can_not_be_read_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await polled(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    await bench.control.poll()
    assert bench.ready == [("a", 1), ("b", 1)]
    assert "cannot read model repository" in caplog.text


async def test_it_is_looked_again_and_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ControlOptions(ControlMode.POLL, poll_seconds=1e-6))
    await bench.control.start()
    write_model(tmp_path, "c")
    await bench.loader.begun("c", 1)
    await bench.control.stop()
    assert bench.ready == []
