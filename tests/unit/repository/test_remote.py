"""A repository whose models are not on this machine is one more implementation of `Repository`.

Here with the real loader: what is read, fetched and given back, and how often.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.message import Message

from modserve import config
from modserve.backends.registry import BackendRegistry
from modserve.core.errors import ModserveError, invalid, unavailable
from modserve.core.files.config_file import CONFIG_FILE
from modserve.core.lifecycle import LifecycleState
from modserve.core.loading import DirectoryLease, Listing, Repository
from modserve.models.loading.loader import Loader, LoaderOptions
from modserve.repository.control import ControlMode, ControlOptions, ModelControl
from modserve.repository.local import LocalRepository
from modserve.repository.manager import ModelManager
from modserve.repository.table import ModelTable
from modserve.testing import PuppetBackend, write_model

CONFIG = """
backend: "puppet"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 4 ] } ]
"""
ALL_VERSIONS = "version_policy { all {} }"
EXPLICIT, POLL = ControlOptions(ControlMode.EXPLICIT), ControlOptions(ControlMode.POLL, poll_seconds=0)


class Store:
    """Implements `core.loading.Repository`: objects by key, as in a bucket; a version is downloaded when it is fetched.

    Files that versions share are there as long as one of them is.
    """

    def __init__(self, cache: Path) -> None:
        self.objects: dict[str, bytes] = {}
        self.downloads: list[str] = []
        """The keys of the weights that were downloaded, in order."""
        self.leases: dict[Path, int] = {}
        self.looks: list[str] = []
        """The models whose configuration was downloaded, in order."""
        self.failure: ModserveError | None = None
        """What a look raises."""
        self.free = asyncio.Event()
        """Set when the last lease is released."""
        self.broken: set[str] = set()
        """The keys whose download breaks off."""
        self._cache = cache

    def __str__(self) -> str:
        return "memory://models"

    def put(self, name: str, text: str, *versions: int) -> None:
        self.objects[f"{name}/{CONFIG_FILE}"] = text.encode()
        for version in versions:
            self.objects[f"{name}/{version}/model"] = b"%d" % version

    async def names(self) -> Collection[str]:
        if self.failure is not None:
            raise self.failure
        return {key.partition("/")[0] for key in self.objects}

    async def look(self, names: Collection[str] | None = None) -> Mapping[str, Listing]:
        return {name: self._listing(name) for name in await self.names() if names is None or name in names}

    def _listing(self, name: str) -> Listing:
        self.looks.append(name)
        marks: dict[int | None, object] = {None: self.objects.get(f"{name}/{CONFIG_FILE}")}
        for key in self.objects:
            model, part, *_ = key.split("/")
            if model == name and part.isdigit():
                marks[int(part)] = self.objects[key]
        versions = tuple(sorted(version for version in marks if version is not None))
        content = self.objects.get(f"{name}/{CONFIG_FILE}")
        return Listing(name, self, Path("memory:", name), versions, content, marks=marks)

    async def fetch(self, listing: Listing, version: int) -> DirectoryLease:
        root = self._cache / listing.name
        self.leases[root] = self.leases.get(root, 0) + 1
        key = f"{listing.name}/{version}/model"
        self.downloads.append(key)
        if key in self.broken:
            await self._release(root, version)
            raise unavailable(f"the download of '{key}' broke off")
        (root / str(version)).mkdir(parents=True)
        (root / str(version) / "model").write_bytes(self.objects[key])

        async def release() -> None:
            await self._release(root, version)

        return DirectoryLease(root, release)

    async def _release(self, root: Path, version: int) -> None:
        shutil.rmtree(root / str(version), ignore_errors=True)
        self.leases[root] -= 1
        if not self.leases[root]:
            del self.leases[root]
            self.free.set()
            shutil.rmtree(root, ignore_errors=True)

    async def remarks(self) -> Sequence[str]:
        return ()


class Bench:
    """A control over some repositories, with the real loader on a puppet backend."""

    def __init__(self, repositories: Sequence[Repository], options: ControlOptions, executor: ThreadPoolExecutor):
        self.backend = PuppetBackend()
        self.table = ModelTable()
        loader = Loader(BackendRegistry({"puppet": self.backend}), LoaderOptions(4), executor, self.table.borrow)
        self.manager = ModelManager(self.table, loader, 2)
        self.control = ModelControl(self.manager, repositories, options)

    @property
    def ready(self) -> list[tuple[str, int | None]]:
        return [(entry.name, entry.version) for entry in self.table.index() if entry.state is LifecycleState.READY]

    @property
    def reasons(self) -> dict[str, str]:
        return {entry.name: entry.reason for entry in self.table.index() if entry.reason}


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@asynccontextmanager
async def serving(
    executor: ThreadPoolExecutor, *repositories: Repository, options: ControlOptions = EXPLICIT
) -> AsyncIterator[Bench]:
    """After it nothing is open."""
    bench = Bench(repositories, options, executor)
    await bench.control.start()
    yield bench
    await bench.control.stop()
    assert (bench.backend.open_models, bench.backend.open_instances) == (0, 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "cache")
    made.put("m", CONFIG + ALL_VERSIONS, 1, 2, 3)
    yield made
    assert made.leases == {}
    assert not any(files for _, _, files in os.walk(tmp_path / "cache"))


async def test_a_version_is_fetched_when_it_is_loaded_and_released_when_it_is_unloaded(
    store: Store, executor: ThreadPoolExecutor
) -> None:
    async with serving(executor, store) as bench:
        assert (store.looks, store.downloads) == ([], [])
        assert [entry.name for entry in await bench.control.index()] == ["m"]
        await bench.control.load("m")
        assert bench.ready == [("m", 1), ("m", 2), ("m", 3)]
        assert sorted(store.downloads) == ["m/1/model", "m/2/model", "m/3/model"]
        (source, *_) = bench.backend.sources
        assert source.model_directory.is_dir()
        await bench.control.unload("m")
        async with asyncio.timeout(30):
            await store.free.wait()
        assert not source.model_directory.exists()


async def test_only_the_versions_of_the_policy_are_fetched(store: Store, executor: ThreadPoolExecutor) -> None:
    store.put("m", CONFIG)
    async with serving(executor, store) as bench:
        await bench.control.load("m")
        assert (bench.ready, store.downloads) == ([("m", 3)], ["m/3/model"])


async def test_only_what_has_changed_is_fetched_again(store: Store, executor: ThreadPoolExecutor) -> None:
    async with serving(executor, store, options=POLL) as bench:
        store.downloads.clear()
        await bench.control.poll()
        assert store.downloads == []
        store.objects["m/4/model"] = b"4"
        del store.objects["m/1/model"]
        await bench.control.poll()
        assert (bench.ready, store.downloads) == ([("m", 2), ("m", 3), ("m", 4)], ["m/4/model"])
        await bench.manager.reconcile({"m": (await bench.manager.inspect((await store.look()).values()))["m"]})
        assert list(store.leases.values()) == [3]


async def test_a_store_that_disappears_leaves_what_serves(
    store: Store, executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(executor, store, options=POLL) as bench:
        store.failure = unavailable("the bucket cannot be reached")
        await bench.control.poll()
        assert bench.ready == [("m", 1), ("m", 2), ("m", 3)]
        assert "the bucket cannot be reached; loaded models stay" in caplog.text
        assert [entry.name for entry in await bench.control.index()] == ["m"] * 3


async def test_a_download_that_breaks_off_is_the_failure_of_its_version(
    store: Store, executor: ThreadPoolExecutor
) -> None:
    store.broken = {"m/2/model"}
    async with serving(executor, store, options=POLL) as bench:
        assert bench.ready == [("m", 1), ("m", 3)]
        assert bench.reasons == {"m": "Unavailable: the download of 'm/2/model' broke off"}
        assert list(store.leases.values()) == [2]


async def test_several_repositories_mixed(store: Store, executor: ThreadPoolExecutor, tmp_path: Path) -> None:
    local = tmp_path / "models"
    write_model(local, "here", CONFIG)
    write_model(local, "m", CONFIG)
    store.put("there", CONFIG, 7)
    async with serving(executor, LocalRepository(local), store, options=POLL) as bench:
        assert bench.ready == [("here", 1), ("there", 7)]
        assert bench.reasons == {"m": "model appears in two or more repositories"}
        shutil.rmtree(local / "m")
        await bench.control.poll()
        assert bench.ready == [("here", 1), ("m", 1), ("m", 2), ("m", 3), ("there", 7)]


async def test_an_ensemble_of_models_from_two_repositories(
    store: Store, executor: ThreadPoolExecutor, tmp_path: Path
) -> None:
    step = (
        'model_name: "m" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" }'
    )
    ensemble = CONFIG.replace('backend: "puppet"', 'platform: "ensemble"')
    write_model(tmp_path / "models", "e", ensemble + "ensemble_scheduling { step [ { " + step + " } ] }")
    async with serving(executor, LocalRepository(tmp_path / "models"), store) as bench:
        await bench.control.load("e")
        assert bench.ready == [("e", 1), ("m", 1), ("m", 2), ("m", 3)]


async def test_a_configuration_that_cannot_be_used_downloads_nothing(
    store: Store, executor: ThreadPoolExecutor
) -> None:
    store.put("m", CONFIG + "nosuch: 1")
    async with serving(executor, store, options=POLL) as bench:
        assert (bench.ready, store.downloads) == ([], [])
        assert bench.reasons["m"].startswith(
            "Invalid argument: 1 problem in the configuration of model 'm'\nmemory:/m/"
        )


# One reading of a configuration a look


class Counts:
    """How often what reads configurations and directories is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parses = self.checks = self.walks = 0
        parse, check, scandir = text_format.Parse, config.check, os.scandir

        def counted_parse(text: str, message: Message) -> Message:
            self.parses += 1
            return parse(text, message)

        def counted_check(draft: config.Draft, **options: Any) -> None:
            self.checks += 1
            check(draft, **options)

        def counted_scandir(path: Path) -> object:
            self.walks += Path(path).name == "m"
            return scandir(path)

        monkeypatch.setattr(text_format, "Parse", counted_parse)
        monkeypatch.setattr(config, "check", counted_check)
        monkeypatch.setattr(os, "scandir", counted_scandir)


@pytest.mark.parametrize("options", [EXPLICIT, POLL], ids=["explicit", "start"])
async def test_a_load_of_three_versions_is_one_parse_and_one_walk(
    executor: ThreadPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: ControlOptions
) -> None:
    write_model(tmp_path, "m", CONFIG + ALL_VERSIONS, versions=("1", "2", "3"))
    async with serving(executor, options=options):
        pass  # what is imported on first use is there
    counts = Counts(monkeypatch)
    bench = Bench([LocalRepository(tmp_path)], options, executor)
    await bench.control.start()
    if options is EXPLICIT:
        await bench.control.load("m")
    assert bench.ready == [("m", 1), ("m", 2), ("m", 3)]
    assert (counts.parses, counts.checks, counts.walks) == (1, 1, 1)
    await bench.control.stop()


async def test_a_file_that_changes_after_the_look_changes_no_version_of_the_load(
    executor: ThreadPoolExecutor, tmp_path: Path
) -> None:
    model = write_model(tmp_path, "m", CONFIG + ALL_VERSIONS, versions=("1", "2"))
    bench = Bench([LocalRepository(tmp_path)], EXPLICIT, executor)
    listings = await LocalRepository(tmp_path).look()
    (model / CONFIG_FILE).write_text("this is no configuration")
    blueprints = await bench.manager.inspect(listings.values())
    (model / CONFIG_FILE).unlink()
    assert await bench.manager.update(blueprints) == {}
    assert [servable.config.max_batch_size for servable in bench.table.ready_versions("m")] == [8, 8]
    await bench.manager.reconcile({})


async def test_an_unreadable_configuration_is_a_reason(executor: ThreadPoolExecutor, tmp_path: Path) -> None:
    model = write_model(tmp_path, "m", versions=("1",))
    (model / CONFIG_FILE).unlink(missing_ok=True)
    (model / CONFIG_FILE).mkdir()
    async with serving(executor, LocalRepository(tmp_path), options=POLL) as bench:
        assert "reading the configuration of model 'm': [Errno 21] Is a directory" in bench.reasons["m"]


async def test_what_a_store_raises_at_the_start(store: Store, executor: ThreadPoolExecutor) -> None:
    store.failure = invalid("no such bucket")
    with pytest.raises(ModserveError, match="no such bucket"):
        await Bench([store], POLL, executor).control.start()


async def test_a_store_that_takes_its_time_holds_nobody_up(store: Store, executor: ThreadPoolExecutor) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    fetch = store.fetch

    async def fetch_slowly(listing: Listing, version: int) -> DirectoryLease:
        begun.set()
        await go.wait()
        return await fetch(listing, version)

    store.fetch = fetch_slowly  # type: ignore[method-assign]
    async with serving(executor, store) as bench:
        loading = asyncio.create_task(bench.control.load("m"))
        async with asyncio.timeout(30):
            await begun.wait()
        assert {entry.state for entry in bench.table.index()} == {LifecycleState.LOADING}
        await bench.control.unload("another")
        assert not loading.done()
        go.set()
        await loading
