"""TensorFlow models through a real server, by the real clients; those that cannot load harm nobody."""

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_models
import tensorflow as tf
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray
from saved_models import WEIGHTS, spec
from server_process import ServerProcess, serving
from wire import HOST, http

X: NDArray[np.float32] = np.arange(12, dtype=np.float32).reshape(3, 4)

SUMS = """
platform: "tensorflow_graphdef"
max_batch_size: 8
input [ { name: "a" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "b" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "sum" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
PAGE = Path(__file__).parents[2] / "docs" / "engines" / "tensorflow.md"
(TUNED,) = re.findall(r"```\n(platform.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)

BAD: dict[str, tuple[str, str]] = {
    "cut": ("", r"it is truncated or not a TensorFlow file.*\n.*saved_model.pb' is truncated: it should have"),
    "weightless": ("", r"It must contain the folder 'variables'"),
    "pointer": ("", r"failed to load.*(.|\n)*is not a model: it is the pointer of Git LFS"),
    "type": (
        'backend: "tensorflow" input [ { name: "x" data_type: TYPE_INT32 dims: [ 4 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]',
        r"TYPE_INT32",
    ),
    "rank": (
        'backend: "tensorflow" input [ { name: "x" data_type: TYPE_FP32 dims: [ 4, 4, 4 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]',
        r"dimensions",
    ),
    "named": (
        'backend: "tensorflow" input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        'output [ { name: "z" data_type: TYPE_FP32 dims: [ 2 ] } ]',
        r"unexpected inference output 'z', allowed outputs are: y",
    ),
    "signature": (
        'backend: "tensorflow" parameters { key: "TF_SIGNATURE_DEF" value { string_value: "nosuch" } }',
        r"expected 'nosuch' signature; it has: 'serving_default'",
    ),
}


def write_bad(root: Path, good: Path) -> None:
    for name, (text, _) in BAD.items():
        shutil.copytree(good, root / name / "1" / "model.savedmodel")
        (root / name / "config.pbtxt").write_text(text)
    cut = root / "cut" / "1" / "model.savedmodel" / "saved_model.pb"
    cut.write_bytes(cut.read_bytes()[:-100])
    shutil.rmtree(root / "weightless" / "1" / "model.savedmodel" / "variables")
    (root / "pointer" / "1" / "model.savedmodel" / "saved_model.pb").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    dense = saved_models.save_dense(root / "dense" / "1" / "model.savedmodel")
    shutil.copytree(dense, root / "as_tensorflow_serving" / "1")
    saved_models.save_two_signatures(root / "tuned" / "1" / "model.savedmodel")
    (root / "tuned" / "config.pbtxt").write_text(TUNED)
    saved_models.write_graph(root / "sums" / "1" / "model.graphdef", saved_models.build_sums)
    (root / "sums" / "config.pbtxt").write_text(SUMS)
    saved_models.save_copier(root / "copier" / "1" / "model.savedmodel")
    (root / "copier" / "config.pbtxt").write_text('backend: "tf"')
    saved_models.save(
        root / "gather" / "1" / "model.savedmodel",
        lambda x, index: {"y": tf.gather(x, index, axis=1, batch_dims=1)},
        spec("x"),
        spec("index", tf.int32, (None, 1)),
    )
    write_bad(root, dense)
    return root


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    errors = [*(f"'{name}'" for name in BAD), "execution failed: TensorFlow refused the request"]
    # With TensorFlow there are many more Python objects, which are all gone through when the models have loaded.
    options = ["--strict-readiness=false"]
    with serving(repository, options=options, errors=errors) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """A client, and the module that it is from."""
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]
    port = server.http_port if request.param == "http" else server.grpc_port
    with module.InferenceServerClient(f"{HOST}:{port}") as opened:
        yield opened, module


def infer(client: tuple[Any, Any], model: str, **arrays: NDArray[Any]) -> Any:
    opened, module = client
    names = {"float32": "FP32", "int32": "INT32", "object": "BYTES"}
    inputs = [
        module.InferInput(name, list(array.shape), names[str(array.dtype)]).set_data_from_numpy(array)
        for name, array in arrays.items()
    ]
    return opened.infer(model, inputs)


@pytest.mark.parametrize("model", ["dense", "as_tensorflow_serving"])
def test_a_saved_model(client: tuple[Any, Any], model: str) -> None:
    assert np.array_equal(infer(client, model, x=X).as_numpy("y"), X @ WEIGHTS)


def test_a_frozen_graph(client: tuple[Any, Any]) -> None:
    assert np.array_equal(infer(client, "sums", a=X, b=X).as_numpy("sum"), X + X)


def test_parameters(client: tuple[Any, Any]) -> None:
    assert np.array_equal(infer(client, "tuned", x=X).as_numpy("y"), X / 2)


def test_all_types_and_strings(server: ServerProcess) -> None:
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        inputs, sent = [], {}
        for name in saved_models.TYPES:
            if name == "BYTES":
                array = np.array([[b"one", b"\xff\x00", b""]], dtype=object)
            else:
                array = np.array([[0, 1, 1]]).astype(saved_models.TYPES[name].as_numpy_dtype)
            sent[name] = array
            tensor = tritonclient.grpc.InferInput(f"in_{name}", [1, 3], name)
            inputs.append(tensor.set_data_from_numpy(array))
        result = client.infer("copier", inputs)
        for name, array in sent.items():
            assert result.as_numpy(f"out_{name}").tolist() == array.tolist(), name


def test_the_configuration_is_completed_from_the_signature(server: ServerProcess) -> None:
    config = http(server.http_port, "GET", "/v2/models/dense/config").json
    assert (config["backend"], config["platform"]) == ("tensorflow", "tensorflow_savedmodel")
    assert config["max_batch_size"] == 4
    assert [(tensor["name"], tensor["data_type"], tensor["dims"]) for tensor in config["input"]] == [
        ("x", "TYPE_FP32", [4])
    ]
    assert [(tensor["name"], tensor["dims"]) for tensor in config["output"]] == [("y", [2])]
    assert config["instance_group"][0]["count"] == 2
    assert http(server.http_port, "GET", "/v2/models/copier/config").json["backend"] == "tensorflow"


def test_what_runs_a_model(server: ServerProcess) -> None:
    report = http(server.http_port, "GET", "/v2/models/tuned/engine").json
    text = str(report)
    for part in ("'engine': 'TensorFlow'", f"'version': '{tf.__version__}'", "'signature': 'halve'", "'sessions': 2"):
        assert part in text, text


def test_many_requests_at_a_time(server: ServerProcess) -> None:
    rows = [np.full((1, 4), number, np.float32) for number in range(64)]
    with (
        tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client,
        ThreadPoolExecutor(16) as pool,
    ):
        results = pool.map(lambda row: infer((client, tritonclient.grpc), "dense", x=row).as_numpy("y"), rows)
        for row, result in zip(rows, results, strict=True):
            assert np.array_equal(result, row @ WEIGHTS)


def test_a_request_that_tensorflow_refuses(client: tuple[Any, Any]) -> None:
    index = np.array([[1], [2], [9]], np.int32)
    with pytest.raises(Exception, match="TensorFlow refused the request: ") as caught:
        infer(client, "gather", x=X, index=index)
    assert "500" in str(caught.value) or "INTERNAL" in str(caught.value)
    assert infer(client, "gather", x=X, index=index % 4).as_numpy("y").tolist() == [[1.0], [6.0], [9.0]]


@pytest.mark.parametrize("model", BAD)
def test_a_model_that_does_not_load_says_why(server: ServerProcess, model: str) -> None:
    index = {entry["name"]: entry for entry in http(server.http_port, "POST", "/v2/repository/index").json}
    assert index[model]["state"] == "UNAVAILABLE"
    assert re.search(BAD[model][1], index[model]["reason"]), index[model]["reason"]
