"""The benchmark's encoder is a correct one: padding and neighbours in a batch change nothing."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from encoder import EncoderSize, main, write_repository

TINY = EncoderSize(layers=2, width=64, heads=4, feed_forward=128, sequence=32, vocabulary=100)

Ids = NDArray[np.int64]


class Encoder:
    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def __call__(self, ids: Ids, mask: Ids | None = None) -> NDArray[np.float32]:
        mask = np.ones_like(ids) if mask is None else mask
        embedding: NDArray[np.float32]
        (embedding,) = self.session.run(["embedding"], {"input_ids": ids, "attention_mask": mask})
        return embedding


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("repository"), TINY)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return Encoder(folder / "1" / "model.onnx")


def random_ids(batch: int, length: int) -> Ids:
    return np.random.default_rng(batch * 1000 + length).integers(0, TINY.vocabulary, (batch, length))


def test_model_is_valid_onnx(folder: Path) -> None:
    model = onnx.load(folder / "1" / "model.onnx")
    onnx.checker.check_model(model, full_check=True)

    assert model.ir_version <= 10
    assert [opset.version for opset in model.opset_import] == [17]
    used = {name for node in model.graph.node for name in node.input}
    assert {weight.name for weight in model.graph.initializer} <= used


def test_graph_and_config_name_the_same_tensors(folder: Path, encoder: Encoder) -> None:
    config = (folder / "config.pbtxt").read_text(encoding="utf-8")
    shapes = {tensor.name: tensor.shape for tensor in encoder.session.get_inputs() + encoder.session.get_outputs()}

    assert folder.name == "encoder"
    assert shapes == {
        "input_ids": ["batch", "sequence"],
        "attention_mask": ["batch", "sequence"],
        "embedding": ["batch", 64],
    }
    assert all(f'name: "{name}"' in config for name in shapes)
    assert "dims: [ 64 ]" in config
    assert "max_batch_size: 16" in config
    assert "dynamic_batching { }" in config


@pytest.mark.parametrize("length", [1, 7, 31])
def test_padding_with_mask_changes_nothing(encoder: Encoder, length: int) -> None:
    ids = random_ids(3, length)
    padded = random_ids(3, TINY.sequence)
    padded[:, :length] = ids
    mask = np.zeros_like(padded)
    mask[:, :length] = 1

    np.testing.assert_allclose(encoder(padded, mask), encoder(ids), rtol=1e-4, atol=1e-6)


def test_mask_matters(encoder: Encoder) -> None:
    ids = random_ids(1, 16)
    mask = np.ones_like(ids)
    mask[:, 8:] = 0

    assert not np.allclose(encoder(ids, mask), encoder(ids), rtol=1e-2)


def test_order_of_tokens_matters(encoder: Encoder) -> None:
    ids = random_ids(1, 16)

    assert not np.allclose(encoder(ids[:, ::-1].copy()), encoder(ids), rtol=1e-2)


def test_batch_equals_its_rows(encoder: Encoder) -> None:
    ids = random_ids(5, 20)
    mask = (np.arange(20) < np.array([[20], [1], [13], [19], [7]])).astype(np.int64)

    rows = [encoder(ids[row : row + 1], mask[row : row + 1]) for row in range(5)]

    np.testing.assert_allclose(encoder(ids, mask), np.concatenate(rows), rtol=1e-4, atol=1e-6)


def test_nothing_but_padding_gives_zeros(encoder: Encoder) -> None:
    ids = random_ids(1, 4)

    np.testing.assert_array_equal(encoder(ids, np.zeros_like(ids)), np.zeros((1, TINY.width), np.float32), strict=True)


def test_agrees_with_the_textbook(folder: Path, encoder: Encoder) -> None:
    model = onnx.load(folder / "1" / "model.onnx")
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    ids = random_ids(1, 9)

    np.testing.assert_allclose(encoder(ids)[0], textbook(weights, ids[0]), rtol=1e-4, atol=1e-5)


def textbook(weights: dict[str, NDArray[np.float32]], ids: Ids) -> NDArray[np.float64]:
    """The encoder for one sequence without padding, in plain numpy and double precision."""

    def dense(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        return np.asarray(x @ weights[f"{name}.weight"] + weights[f"{name}.bias"], np.float64)

    def normalised(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True), np.float64)

    def attention(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        query, key, value = (np.split(dense(x, f"{name}.{part}"), TINY.heads, -1) for part in ("query", "key", "value"))
        mixed = []
        for q, k, v in zip(query, key, value, strict=True):
            scores = np.exp(q @ k.T / np.sqrt(q.shape[-1]))
            mixed.append(scores / scores.sum(-1, keepdims=True) @ v)
        return dense(np.concatenate(mixed, -1), f"{name}.output")

    def gelu(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2, np.float64)

    hidden = normalised(weights["tokens"][ids].astype(np.float64) + weights["positions"][: len(ids)])
    for layer in ("layer0", "layer1"):
        hidden = normalised(hidden + attention(hidden, f"{layer}.attention"))
        inner = gelu(dense(hidden, f"{layer}.feed_forward.up"))
        hidden = normalised(hidden + dense(inner, f"{layer}.feed_forward.down"))
    return np.asarray(hidden.mean(0), np.float64)


def test_same_seed_same_bytes(folder: Path, tmp_path: Path) -> None:
    again = write_repository(tmp_path / "again", TINY)
    other = write_repository(tmp_path / "other", TINY, seed=1)

    expected = (folder / "1" / "model.onnx").read_bytes()
    assert (again / "1" / "model.onnx").read_bytes() == expected
    assert (other / "1" / "model.onnx").read_bytes() != expected


def test_weights_have_the_size_asked_for(folder: Path) -> None:
    layer = 4 * (64 * 64 + 64) + (64 * 128 + 128) + (128 * 64 + 64) + 4 * 64
    numbers = 2 * layer + (100 + 32) * 64 + 2 * 64
    model = onnx.load(folder / "1" / "model.onnx")

    floats = [
        weight for weight in model.graph.initializer if weight.data_type == onnx.TensorProto.FLOAT and weight.dims
    ]
    assert sum(int(np.prod(weight.dims)) for weight in floats) == numbers


@pytest.mark.parametrize(
    ("change", "message"), [({"heads": 5}, "not a multiple of heads"), ({"layers": 0}, "layers must be at least 1")]
)
def test_impossible_sizes_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)


def test_unbatched_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_batch_size"):
        write_repository(tmp_path, TINY, max_batch_size=0)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "--layers 1 --width 8 --heads 2 --feed-forward 16 --sequence 4 --vocabulary 10 --max-batch-size 2 --seed 3"
    )
    main([str(tmp_path), *options.split()])

    size = EncoderSize(layers=1, width=8, heads=2, feed_forward=16, sequence=4, vocabulary=10)
    expected = write_repository(tmp_path / "expected", size, max_batch_size=2, seed=3)
    for file in ("config.pbtxt", "1/model.onnx"):
        assert (tmp_path / "encoder" / file).read_bytes() == (expected / file).read_bytes()
    assert "bytes of model" in capsys.readouterr().out


def test_command_line_explains_a_wrong_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--heads", "7"])

    assert "not a multiple of heads" in capsys.readouterr().err
