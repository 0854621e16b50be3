"""From an ensemble's directory to a model that takes requests."""

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from modserve.backends.registry import BackendRegistry
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import ModserveError, not_found
from modserve.core.loading import Listing, UnreadableModelError
from modserve.core.tensors import dtypes
from modserve.core.version import ModelId
from modserve.models.loading.loader import Loader, LoaderOptions
from modserve.models.serving.ensemble import EnsembleModel
from modserve.pb import inference as pb
from modserve.repository.local import LocalRepository
from modserve.repository.locks import LentServable, Loans
from modserve.testing import config, write_model

CONFIG = """
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "a" model_version: 2 input_map { key: "x" value: "IN" } output_map { key: "y" value: "mid" } },
  { model_name: "b" model_version: -1 input_map { key: "x" value: "mid" } output_map { key: "y" value: "OUT" } }
] }
"""


class Composing:
    """A model to be borrowed."""

    def __init__(self, name: str, **more: object) -> None:
        self.id = ModelId(name, 2)
        self.config: ModelConfig = dataclasses.replace(
            config(name, max_batch_size=0),
            inputs=(TensorSpec("x", dtypes.FP32, (4,)),),
            outputs=(TensorSpec("y", dtypes.FP32, (4,)),),
            **more,  # type: ignore[arg-type]
        )
        self.labels = {"y": (name,)}


class Bench:
    def __init__(self, root: Path, executor: ThreadPoolExecutor) -> None:
        self.root = root
        self.loans = Loans()
        self.models = {("a", 2): Composing("a"), ("b", None): Composing("b")}
        self.loader = Loader(BackendRegistry({}), LoaderOptions(4), executor, self.borrow)

    def borrow(self, name: str, version: int | None) -> LentServable:
        found = self.models.get((name, version))
        if found is None:
            raise not_found(f"no {name}")
        return self.loans.lend(found)  # type: ignore[arg-type]

    def write(self, text: str = CONFIG, versions: tuple[str, ...] = ("1", "3")) -> Listing:
        write_model(self.root, "e", text, versions)
        return LocalRepository(self.root).read("e")

    async def load(self, directory: Listing) -> EnsembleModel:
        loaded = await (await self.loader.inspect(directory)).load(directory.path, 3)
        assert isinstance(loaded, EnsembleModel)
        assert repr(self.loans) == "Loans(0 servables)"
        return loaded


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def bench(tmp_path: Path, executor: ThreadPoolExecutor) -> Bench:
    return Bench(tmp_path, executor)


async def test_an_ensemble(bench: Bench) -> None:
    directory = bench.write()
    blueprint = await bench.loader.inspect(directory)
    assert (blueprint.versions, blueprint.needs) == ((3,), {"a": {2}, "b": {None}})
    found = await bench.load(directory)
    assert found.id == ("e", 3)
    assert (found.config.decoupled, found.config.backend, found.config.served_platform) == (False, "", "ensemble")
    assert found.labels == {"OUT": ("b",)}


async def test_its_configuration_as_clients_see_it(bench: Bench) -> None:
    bench.models["b", None] = Composing("b", decoupled=True)
    found = await bench.load(bench.write())
    message = pb.ModelConfig.FromString(found.config_message)
    assert found.config.decoupled
    assert message.model_transaction_policy.decoupled
    assert not message.instance_group
    assert message.version_policy.latest.num_versions == 1


async def test_labels_of_its_own_win(bench: Bench) -> None:
    directory = bench.write(
        CONFIG.replace("dims: [ 4 ] } ]\nensemble", 'dims: [ 4 ] label_filename: "l" } ]\nensemble')
    )
    (directory.path / "l").write_text("x\ny")
    assert (await bench.load(directory)).labels == {"OUT": ("x", "y")}


async def test_a_configuration_that_comes_with_the_load(bench: Bench) -> None:
    maps = {"inputMap": {"x": "IN"}, "outputMap": {"y": "OUT"}}
    tensor = {"dataType": "TYPE_FP32", "dims": [4]}
    text = json.dumps(
        {
            "platform": "ensemble",
            "input": [{"name": "IN", **tensor}],
            "output": [{"name": "OUT", **tensor}],
            "ensembleScheduling": {"step": [{"modelName": "b", "modelVersion": "-1", **maps}]},
        }
    )
    directory = dataclasses.replace(bench.write(), config=text)
    assert (await bench.loader.inspect(directory)).needs == {"b": {None}}
    await bench.load(directory)


async def test_what_can_not_be_loaded(bench: Bench) -> None:
    directory = bench.write()
    bench.models["a", 2] = Composing("a")
    bench.models["a", 2].config = dataclasses.replace(bench.models["a", 2].config, inputs=())
    with pytest.raises(ModserveError, match="in ensemble e, ensemble tensor IN is mapping to non-existing input x"):
        await bench.load(directory)
    del bench.models["b", None]
    with pytest.raises(ModserveError, match="ensemble 'e' depends on 'b': no b"):
        await bench.load(directory)
    assert repr(bench.loans) == "Loans(0 servables)"


async def test_what_can_not_be_read(bench: Bench) -> None:
    with pytest.raises(UnreadableModelError):
        await bench.loader.inspect(bench.write("ensemble_scheduling {"))


async def test_without_a_version(bench: Bench) -> None:
    with pytest.raises(ModserveError, match="at least one version must be available under the version policy"):
        await bench.loader.inspect(bench.write(versions=()))


async def test_loans_are_waited_for(bench: Bench) -> None:
    handle = bench.borrow("a", 2)
    waiting = asyncio.create_task(bench.loans.wait_until_returned(handle.servable))
    await asyncio.sleep(0)
    assert not waiting.done()
    handle.release()
    await waiting
