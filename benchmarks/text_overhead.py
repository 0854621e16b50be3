"""The part `overhead` of benchmarks/text.py: what ``/v1/embeddings`` costs over a tensor call of the same model.

The model looks up a row of a table for each token, so that next to nothing is the engine's; its tokenizer is that of
all-MiniLM-L6-v2, its vectors are as wide. One client sends one request after the other. Counted is the CPU time of all
threads of the server's process; the calls take turns, and a figure is the median of all turns. What the libraries take
of it is measured by themselves, in this process: tokenizing, the mean, and the JSON of the vector.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

import text_chat
import text_embeddings

TEXT = "the quick brown fox jumps over the lazy dog"
WIDTH = 384
VOCABULARY = 30_522


def make_model(folder: Path) -> Path:
    """A folder of a text model."""
    snapshot = text_embeddings.snapshot()
    table = np.random.default_rng(1).normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "tokens", WIDTH])
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])]
    graph = helper.make_graph(nodes, "table", inputs, [output], [numpy_helper.from_array(table, "table")])
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for name in text_embeddings.FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(snapshot / name, folder / name)
    (folder / "model.onnx").write_bytes(network.SerializeToString())
    return folder


def calls(tokenizer: Tokenizer) -> dict[str, tuple[str, dict[str, Any]]]:
    """By name: path and body."""
    ids = tokenizer.encode(TEXT).ids
    tensors = {"input_ids": ids, "attention_mask": [1] * len(ids)}
    inputs = [
        {"name": name, "datatype": "INT64", "shape": [1, len(ids)], "data": values} for name, values in tensors.items()
    ]
    binary = [{"name": "last_hidden_state", "parameters": {"binary_data": True}}]
    return {
        "`/v2/models/…/infer`, JSON in, binary out": ("/v2/models/table/infer", {"inputs": inputs, "outputs": binary}),
        "`/v1/embeddings`": ("/v1/embeddings", {"model": "table", "input": TEXT}),
        "`/v1/embeddings`, base64": (
            "/v1/embeddings",
            {"model": "table", "input": TEXT, "encoding_format": "base64"},
        ),
    }


def library_parts(tokenizer: Tokenizer) -> dict[str, Callable[[], object]]:
    count = len(tokenizer.encode(TEXT).ids)
    hidden = np.random.default_rng(2).normal(size=(count, WIDTH)).astype(np.float32)

    def mean() -> object:
        vector = np.add.reduce(hidden, axis=0) / np.float32(count)
        return vector / np.float32(np.sqrt(np.dot(vector, vector)))

    vector = hidden[0]
    return {
        "tokenizing": lambda: np.array(tokenizer.encode_batch_fast([TEXT])[0].ids, np.int64),
        "the mean, of length 1": mean,
        "the vector as JSON": lambda: orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY),
    }


def alone_us(work: Callable[[], object], count: int = 2000) -> float:
    """Microseconds of CPU of one call."""
    times = []
    for _ in range(7):
        start = time.process_time()
        for _ in range(count):
            work()
        times.append((time.process_time() - start) / count * 1e6)
    return statistics.median(times[1:])


def report(plan: text_chat.Plan) -> str:
    """A table in Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        path = make_model(Path(folder, "table"))
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        with text_chat.serving([f"table={path}"]) as (port, pid):
            times = text_chat.measure(plan, calls(tokenizer), port, pid)
    first, *_ = times.values()
    lines = [f"| call, text of {len(TEXT.split())} words | CPU µs a request | over the tensor call |", "|---|---|---|"]
    lines += [f"| {name} | {each:.0f} | {each - first:.0f} |" for name, each in times.items()]
    lines += ["", "| of it, by the libraries alone | CPU µs |", "|---|---|"]
    lines += [f"| {name} | {alone_us(work):.1f} |" for name, work in library_parts(tokenizer).items()]
    return "\n".join(lines)
