"""The models that `bad_texts_table` is about, small and with real tokenizers, and a check of each row."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save
from text_models import FUNCTIONS, write_speaker
from wire import Answer, send

from bad_texts_table import BODIES, EMBEDDINGS, OPENAI_CALLS, ROWS, TEI_CALLS, Row, embed, say
from text_folders import IDS, MODULES, write_folder


def write_models(folder: Path) -> list[str]:
    """Write them, and give the command line that serves them."""
    write_speaker(folder / "models")
    write_speaker(folder / "models", "raw", None)
    (folder / "functions.py").write_text(FUNCTIONS)
    sentences = {"modules.json": MODULES, "sentence_bert_config.json": {"max_seq_length": 256}}
    _write_network(folder / "minilm", "token_embeddings", 384, sentences)
    for name, labels in (("ranker", 1), ("classifier", 3)):
        config = {
            "architectures": ["BertForSequenceClassification"],
            "id2label": {str(number): f"label {number}" for number in range(labels)},
        }
        _write_network(folder / name, "logits", labels, {"config.json": config})
    named = [f"{name}={folder / name}" for name in ("minilm", "ranker", "classifier")]
    functions = [f"{folder / 'functions.py'}:{name}" for name in ("shout", "recite", "add")]
    return [*named, *functions, f"--model-repository={folder / 'models'}"]


def _write_network(folder: Path, output: str, width: int, files: Mapping[str, object]) -> None:
    """A row of a table for each token; for labels, their mean."""
    write_folder(folder, files)
    table = np.random.default_rng(width).normal(size=(len(IDS), width)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["rows"])]
    nodes.append(
        helper.make_node("Identity", ["rows"], [output])
        if output == "token_embeddings"
        else helper.make_node("ReduceMean", ["rows"], [output], axes=[1], keepdims=0)
    )
    shape: list[str | int | None] = ["batch", *(["length"] if output == "token_embeddings" else []), width]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
        for name in ("input_ids", "attention_mask")
    ]
    graph = helper.make_graph(
        nodes,
        folder.name,
        inputs,
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(table, "table")],
    )
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(folder / "model.onnx")
    )


def post(connection: HTTPConnection, path: str, content: bytes) -> Answer:
    return send(connection, "POST", path, content)


def check_good(connection: HTTPConnection) -> None:
    """The mistake was none of framing, and has broken nothing."""
    good = post(connection, "/v1/chat/completions", json.dumps(say("fine")).encode())
    assert good.json["choices"][0]["message"]["content"] == "<user> fine <bos>"


def check_row(row: Row, connection: HTTPConnection) -> None:
    answer = post(connection, row.path, row.content)
    assert answer.status == row.status, answer.body
    if row.path in OPENAI_CALLS:
        kind = {"message": row.message, "type": "invalid_request_error", "param": row.param, "code": row.code}
        assert answer.json == {"error": kind}
    else:
        assert answer.json == {"error": row.message, "error_type": row.code}
    check_good(connection)


def check_body(path: str, body: bytes, connection: HTTPConnection) -> None:
    """It is no object: wrong for every call."""
    answer = post(connection, path, body)
    assert answer.status == 400, answer.body
    error = answer.json["error"] if path in TEI_CALLS else answer.json["error"]["message"]
    assert error
    check_good(connection)


def check_texts(connection: HTTPConnection) -> None:
    """Characters of all kinds, none of which a tokenizer or a template stumbles over."""
    texts = [
        "\x00",
        "\ufeff",
        " ",
        "\n" * 5000,
        "\u202e\u200d",
        "😀" * 3000,
        "\U0010ffff",
        "a\u0301" * 999,
        "<|im_end|>",
    ]
    answer = post(connection, EMBEDDINGS, json.dumps(embed(texts)).encode())
    assert len(answer.json["data"]) == len(texts)
    for text in texts:
        chat = post(connection, "/v1/chat/completions", json.dumps(say(text + "x")).encode())
        assert chat.status == 200, chat.body
        assert chat.json["choices"][0]["message"]["content"].strip().endswith("<bos>")


CHECKS: Mapping[str, Callable[[HTTPConnection], None]] = {
    **{name: partial(check_row, row) for name, row in ROWS.items()},
    **{
        f"{path}: {name}": partial(check_body, path, body)
        for path in (*OPENAI_CALLS, *TEI_CALLS)
        for name, body in BODIES.items()
    },
    "texts that look wrong are fine": check_texts,
}
