"""The trial of what may share a batch, with made-up engines. Real ones: tests/engines/test_shared_batches.py."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from modserve import InferenceServer
from modserve.backends import batch_trial
from modserve.backends.api import InstanceSpec, ModelSource
from modserve.core.configuration.model_config import DescribedTensor, InstanceKind, ModelConfig, ModelDescription
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array
from modserve.settings.settings import Settings

Run = Callable[[Mapping[str, Array]], Array]


def tensor(name: str, *shape: int, datatype: Datatype = dtypes.FP32, symbols: tuple[str, ...] = ()) -> DescribedTensor:
    return DescribedTensor(name, datatype, shape, symbols=symbols)


@dataclass
class Engine:
    """A backend that computes OUT from its inputs, and notes the rows of each execution."""

    run: Run
    inputs: tuple[DescribedTensor, ...] = (tensor("IN", -1, 2),)
    outputs: tuple[DescribedTensor, ...] = (tensor("OUT", -1, 2),)
    rows: list[int] = field(default_factory=list)
    default_model_filename = "model.made"
    default_cpu_instances = 1
    any_thread = True

    def gpu_count(self) -> int:
        return 0

    def open(self, source: ModelSource) -> "Engine":
        return self

    def describe(self) -> ModelDescription:
        return ModelDescription(self.inputs, self.outputs, 4)

    def instance(self, spec: InstanceSpec) -> "Engine":
        return self

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        self.rows.append(len(next(iter(inputs.values()))))
        return {"OUT": self.run(inputs)}

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def no_earlier_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(batch_trial, "_results", {})


def served(folder: Path, engine: Engine, config: str = "") -> AbstractAsyncContextManager[InferenceServer]:
    version = folder / "models" / "m" / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.made").write_text("a model")
    (version.parent / "config.pbtxt").write_text(f'backend: "made"\n{config}')
    return InferenceServer(Settings(model_repository=(folder / "models",)), backends={"made": engine})


IDS = (tensor("input_ids", -1, -1, datatype=dtypes.INT64), tensor("attention_mask", -1, -1, datatype=dtypes.INT64))


def wide(inputs: Mapping[str, Array]) -> Array:
    """Takes 64 columns, or fails."""
    return inputs["IN"].reshape(-1, 64)[:, :2] * 2


def masked_means(inputs: Mapping[str, Array]) -> Array:
    mask = inputs["attention_mask"]
    means = (inputs["input_ids"] * mask).sum(1, keepdims=True) / mask.sum(1, keepdims=True)
    return np.repeat(means, 2, 1).astype(np.float32)


def few(inputs: Mapping[str, Array]) -> Array:
    """Looks up a table of two."""
    return np.eye(2, dtype=np.float32)[inputs["IN"][:, 0]]


def pixels(inputs: Mapping[str, Array]) -> Array:
    return inputs["IN"][:, :2] / np.float32(255)


ROW_BY_ROW: dict[str, Engine] = {
    "numbers": Engine(lambda inputs: inputs["IN"] * 2),
    "texts": Engine(masked_means, IDS),
    "a size of its own": Engine(wide, (tensor("IN", -1, -1),)),
    "indices": Engine(few, (tensor("IN", -1, 1, datatype=dtypes.INT64),)),
    "images": Engine(
        lambda inputs: inputs["IN"][:, :2] / np.float32(255), (tensor("IN", -1, 9, datatype=dtypes.UINT8),)
    ),
    "names that exporters number": Engine(
        lambda inputs: inputs["IN"] * 2,
        (tensor("IN", -1, 2, symbols=("unk__7", "")),),
        (tensor("OUT", -1, 2, symbols=("unk__8", "")),),
    ),
    "noise of another batch size": Engine(lambda inputs: inputs["IN"] * np.float32(1 + 1e-6 * len(inputs["IN"]))),
}


@pytest.mark.parametrize("name", ROW_BY_ROW)
async def test_rows_that_know_nothing_of_each_other_share_batches(tmp_path: Path, name: str) -> None:
    async with served(tmp_path, ROW_BY_ROW[name]) as server:
        config = server.model("m").config
        assert (config.max_batch_size, config.dynamic_batching is None) == (4, False)


def failing(inputs: Mapping[str, Array]) -> Array:
    raise ValueError("these are\n  no numbers for me")


def one_only(inputs: Mapping[str, Array]) -> Array:
    if len(inputs["IN"]) > 1:
        raise ValueError("one, please")
    return inputs["IN"] * 2


NOT_SHOWN: dict[str, tuple[Engine, str]] = {
    "values": (
        Engine(lambda inputs: inputs["IN"] - inputs["IN"].mean(0, keepdims=True)),
        "rows that run together give other values of output 'OUT' than apart",
    ),
    "order": (
        Engine(lambda inputs: np.sort(inputs["IN"], 0)),
        "rows that run together give other values of output 'OUT' than apart",
    ),
    "equal rows": (
        Engine(lambda inputs: inputs["IN"][np.sort(np.unique(inputs["IN"], axis=0, return_index=True)[1])]),
        "output 'OUT' has the shape [1, 2] for two rows of the inputs, [1, 2] for one",
    ),
    "columns": (
        Engine(lambda inputs: inputs["IN"] @ inputs["IN"].T, outputs=(tensor("OUT", -1, -1),)),
        "output 'OUT' has the shape [2, 2] for two rows of the inputs, [1, 1] for one",
    ),
    "a constant": (
        Engine(lambda inputs: inputs["IN"] * 0),
        "its outputs are the same for all generated data, which proves nothing",
    ),
    "a failure": (Engine(failing), "it fails with generated data: these are no numbers for me"),
    "a failure with two": (Engine(one_only), "it takes one row, but fails with two: one, please"),
    "noise": (
        Engine(lambda inputs: inputs["IN"] + np.random.default_rng().random((1, 2), np.float32)),
        "rows that run together give other values of output 'OUT' than apart",
    ),
    "a name on another axis": (
        Engine(lambda inputs: inputs["IN"], (tensor("IN", -1, -1, symbols=("n", "n")),)),
        "dimension 1 of 'IN' is 'n', too",
    ),
    "two names": (
        Engine(
            lambda inputs: inputs["IN"],
            (tensor("IN", -1, 2, symbols=("nodes", "")), tensor("MORE", -1, symbols=("edges",))),
        ),
        "it is 'nodes' in 'IN', 'edges' in 'MORE'",
    ),
}


@pytest.mark.parametrize("name", NOT_SHOWN)
async def test_others_run_alone_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    engine, why = NOT_SHOWN[name]
    caplog.set_level(logging.INFO)
    async with served(tmp_path, engine) as server:
        config = server.model("m").config
        assert (config.max_batch_size, config.dynamic_batching, config.inputs[0].dims[0]) == (0, None, -1)
    (line,) = [each for each in caplog.messages if "shown to be a batch" in each]
    assert line.endswith(f": {why}. If it is one, write max_batch_size: N into config.pbtxt")


async def test_a_configured_batch_is_believed(tmp_path: Path) -> None:
    engine, _ = NOT_SHOWN["values"]
    engine.rows.clear()
    async with served(tmp_path, engine, "max_batch_size: 8") as server:
        assert server.model("m").config.max_batch_size == 8
        assert engine.rows == []


@pytest.mark.parametrize("directory", [True, False], ids=["on disk", "in memory"])
async def test_results_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: bool) -> None:
    engine = Engine(lambda inputs: inputs["IN"] * 2)
    if not directory:
        (tmp_path / "cache").write_text("no folder")
    for _ in range(2):
        async with served(tmp_path, engine):
            pass
        if directory:
            monkeypatch.setattr(batch_trial, "_results", {})
    assert len(engine.rows) == 12
    (tmp_path / "models" / "m" / "1" / "model.made").write_text("another")
    async with served(tmp_path, engine) as server:
        assert server.model("m").config.max_batch_size == 4


async def test_the_content_of_large_files_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_trial, "_LARGEST_DIGESTED", 1000)
    engine = Engine(lambda inputs: inputs["IN"] * 2)
    weights, copy = tmp_path / "models" / "m" / "1" / "weights", tmp_path / "copy"
    weights.parent.mkdir(parents=True)
    for each in (weights, copy):
        each.write_bytes(bytes(2000))
    for _ in range(2):
        async with served(tmp_path, engine):
            assert len(engine.rows) == 12
    copy.replace(weights)
    async with served(tmp_path, engine):
        assert len(engine.rows) == 24, "by its content, it would be the same model"


def test_a_slow_model_gets_fewer_samples(tmp_path: Path) -> None:
    engine = Engine(lambda inputs: inputs["IN"] * 2)

    def obstacle(seconds: float) -> str:
        engine.rows.clear()

        def clock() -> float:
            return len(engine.rows) * seconds

        spec = InstanceSpec("m_0", InstanceKind.CPU, 0, 0, ModelConfig("m", "made"))
        return batch_trial.batching_obstacle(engine, spec, engine.describe(), tmp_path / "absent", clock)

    assert (obstacle(0.1), len(engine.rows)) == ("", 12)
    assert (obstacle(2), len(engine.rows)) == ("", 6)
    assert obstacle(20) == "a trial takes longer than 60 s"


async def test_batches_that_lose_rows_end_batching(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(lambda inputs: inputs["IN"][:2] * 2)  # which two rows do not show
    async with served(tmp_path, engine) as server:
        assert server.model("m").config.max_batch_size == 4
        for _ in range(3):
            engine.rows.clear()
            requests = [server.infer("m", {"IN": np.full((1, 2), number, np.float32)}) for number in range(8)]
            for number, response in enumerate(await asyncio.gather(*requests)):
                assert response.outputs["OUT"].array.tolist() == [[2 * number] * 2]
        assert engine.rows == [1] * 8
    assert len([each for each in caplog.messages if "Each request runs on its own" in each]) == 1
