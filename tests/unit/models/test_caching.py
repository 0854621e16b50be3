"""Which versions share their responses with other servers."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from modserve.config import Draft, parse
from modserve.core.configuration.cache_settings import CacheSettings, RedisSettings
from modserve.core.version import ModelId
from modserve.models.serving import caching as caching_module
from modserve.models.serving.caching import VersionCaches, make_cache
from modserve.resources.response_cache import ResponseCache
from modserve.resources.shared_cache import SharedCache

CACHED = "response_cache { enable: true }"
REDIS = CacheSettings(redis=RedisSettings("127.0.0.1", 1))


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for file in ("1/model.onnx", "2/model.onnx", "labels.txt", "1/__pycache__/m.pyc"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(file)
    return tmp_path


def caching(options: object = None) -> VersionCaches:
    return VersionCaches(make_cache(REDIS), options)


def draft(config: str) -> Draft:
    return parse(config, Path("m/config.pbtxt"), "m")


async def place(
    cache: VersionCaches,
    model: Path,
    executor: ThreadPoolExecutor,
    version: int = 1,
    config: str = CACHED,
    needs: str = "",
) -> str:
    of = await cache.of(ModelId("e" if needs else "m", version), model, draft(config), needs.split(), executor)
    return str(getattr(of, "_prefix", ""))


async def test_the_same_model_on_another_server(model: Path, executor: ThreadPoolExecutor) -> None:
    first, second = caching(), caching()
    before = await place(first, model, executor)
    assert before.startswith("modserve:1:m:1:")
    assert await place(second, model, executor) == before
    (model / "2" / "model.onnx").write_text("the other version")
    (model / "1" / "__pycache__" / "m.pyc").write_text("by another Python")
    assert await place(second, model, executor) == before


async def test_what_makes_another_model_of_it(model: Path, executor: ThreadPoolExecutor) -> None:
    places = [await place(caching(), model, executor), await place(caching({"a": "b"}), model, executor)]
    places.append(await place(caching(), model, executor, version=2))
    places.append(await place(caching(), model, executor, config=f"max_batch_size: 1 {CACHED}"))
    (model / "1" / "model.onnx").write_text("1/model.onnX")
    places.append(await place(caching(), model, executor))
    (model / "labels.txt").rename(model / "label.txt")
    places.append(await place(caching(), model, executor))
    places += [await place(caching(), model / "absent", executor) for _ in range(2)]
    assert len(set(places)) == len(places)


async def test_an_ensemble_is_its_models_too(model: Path, executor: ThreadPoolExecutor) -> None:
    cache = caching()
    unknown = [await place(cache, model, executor, needs="m") for _ in range(2)]
    await place(cache, model, executor)
    known = [await place(cache, model, executor, needs="m") for _ in range(2)]
    await place(cache, model, executor, config=f"max_batch_size: 1 {CACHED}")
    other = await place(cache, model, executor, needs="m")
    cache.forget("m")
    gone = await place(cache, model, executor, needs="m")
    assert known[0] == known[1]
    assert len({*unknown, *known, other, gone}) == 5


async def test_the_files_of_a_model_without_a_cache_are_read_for_an_ensemble_only(
    model: Path, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    add = caching_module._add_file

    def noted(digest: Any, file: Path, name: str) -> None:
        read.append(name)
        add(digest, file, name)

    monkeypatch.setattr(caching_module, "_add_file", noted)
    ensembles = []
    for content in ("1/model.onnx", "1/model.onnX"):
        (model / "1" / "model.onnx").write_text(content)
        for _ in range(2):
            cache = caching()
            assert await place(cache, model, executor, config="") == ""
            assert read == []
            ensembles += [await place(cache, model / "2", executor, needs="m") for _ in range(2)]
            assert read.count("1/model.onnx") == 1
            read.clear()
    assert ensembles[:4] == ensembles[:1] * 4
    assert ensembles[4:] == ensembles[4:5] * 4
    assert ensembles[0] != ensembles[4]
    cache = caching()
    await place(cache, model, executor, config="")
    (model / "1" / "model.onnx").write_text("changed since")
    assert await place(cache, model / "2", executor, needs="m") != await place(
        caching(), model / "2", executor, needs="m"
    )


async def test_a_cache_of_this_process(model: Path, executor: ThreadPoolExecutor) -> None:
    cache = make_cache(CacheSettings(100))
    assert isinstance(cache, ResponseCache)
    assert await VersionCaches(cache).of(ModelId("m", 1), model / "absent", draft(CACHED), (), executor) is cache
    assert make_cache(CacheSettings()) is None
    shared = VersionCaches(make_cache(REDIS))
    shared.ending()
    await shared.close()
    await VersionCaches(cache).close()
    assert isinstance(make_cache(REDIS), SharedCache)


def test_credentials_of_the_environment() -> None:
    environment = {"TRITONCACHE_REDIS_USERNAME": "u", "TRITONCACHE_REDIS_PASSWORD": "secret"}
    settings = RedisSettings("h", 1).with_credentials(environment)
    assert (settings.user, settings.password) == ("u", "secret")
    assert "secret" not in repr(settings)
    settings = RedisSettings("h", 1, "own", "mine").with_credentials(environment)
    assert (settings.user, settings.password) == ("own", "mine")
