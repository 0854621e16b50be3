"""ONNX Runtime in a real server: classifiers of scikit-learn, operators of a library, threads, and what goes wrong."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from model_packages import unpacked
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx_repository import copied, write
from server_process import ServerProcess, serving
from triton_http import connected
from tritonclient.utils import InferenceServerException
from wire import HOST
from wire import http as request

ort = pytest.importorskip("onnxruntime")
datasets = pytest.importorskip("sklearn.datasets")
linear_model = pytest.importorskip("sklearn.linear_model")

EXTENSIONS = "onnxruntime-extensions==0.15.2"
ANY_FLOATS = helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["batch", 4])
SAME_FLOATS = helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["batch", 4])
RELU = helper.make_node("Relu", ["IN"], ["OUT"])
FLOWERS, KINDS = datasets.load_iris(return_X_y=True)


def trained() -> Any:
    """A classifier of iris flowers that knows them by name."""
    names = np.array(["virginica", "setosa", "versicolor"])[KINDS]
    return linear_model.LogisticRegression(max_iter=1000).fit(FLOWERS, names)


def write_classifier(repository: Path, classifier: Any) -> None:
    """As skl2onnx exports it: a label, and a dictionary of probabilities for each row."""
    labels = [str(name) for name in classifier.classes_]
    linear = helper.make_node(
        "LinearClassifier",
        ["X"],
        ["output_label", "probabilities"],
        domain="ai.onnx.ml",
        classlabels_strings=labels,
        coefficients=classifier.coef_.ravel().tolist(),
        intercepts=classifier.intercept_.tolist(),
        post_transform="SOFTMAX",
    )
    zipmap = helper.make_node(
        "ZipMap", ["probabilities"], ["output_probability"], domain="ai.onnx.ml", classlabels_strings=labels
    )
    dictionary = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    write(
        repository,
        "iris",
        [linear, zipmap],
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 4])],
        [
            helper.make_tensor_value_info("output_label", TensorProto.STRING, [None]),
            helper.make_value_info("output_probability", helper.make_sequence_type_proto(dictionary)),
        ],
    )


def write_upper(repository: Path) -> None:
    """With an operator of onnxruntime-extensions, whose library lies beside the model."""
    texts = [helper.make_tensor_value_info(name, TensorProto.STRING, [None]) for name in ("IN", "OUT")]
    node = helper.make_node("StringUpper", ["IN"], ["OUT"], domain="ai.onnx.contrib")
    config = 'model_operations { op_library_filename: "libextensions.so" }'
    file = write(repository, "upper", [node], texts[:1], texts[1:], config)
    (library,) = (unpacked(EXTENSIONS) / "onnxruntime_extensions").glob("_extensions_pydll*.so")
    copied(library, file.parent / "libextensions.so")


def write_sizes(repository: Path) -> None:
    """Makes as many zeros as the largest number of the batch says."""
    nodes = [
        helper.make_node("ReduceMax", ["N"], ["MOST"], axes=[0], keepdims=0),
        helper.make_node("ConstantOfShape", ["MOST"], ["ZEROS"]),
        helper.make_node("ReduceSum", ["ZEROS"], ["ZERO"], keepdims=0),
        helper.make_node("Cast", ["N"], ["FLOATS"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["FLOATS", "ZERO"], ["OUT"]),
    ]
    write(
        repository,
        "sizes",
        nodes,
        [helper.make_tensor_value_info("N", TensorProto.INT64, ["batch", 1])],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["batch", 1])],
        "max_batch_size: 3 instance_group { count: 1 } dynamic_batching { max_queue_delay_microseconds: 1000000 "
        "preferred_batch_size: 3 }",
    )


def write_broken(repository: Path) -> None:
    """Five models that cannot be loaded."""
    file = write(repository, "cut", [RELU], [ANY_FLOATS], [SAME_FLOATS])
    file.write_bytes(file.read_bytes()[:-20])
    unknown = helper.make_node("Unheard", ["IN"], ["OUT"], domain="ai.onnx.contrib")
    write(repository, "unknown", [unknown], [ANY_FLOATS], [SAME_FLOATS])
    missing = 'model_operations { op_library_filename: "libnowhere.so" }'
    write(repository, "missing", [RELU], [ANY_FLOATS], [SAME_FLOATS], missing)
    ranks = 'max_batch_size: 2 input { name: "IN" data_type: TYPE_FP64 dims: [ 2, 2 ] }'
    write(repository, "ranks", [RELU], [ANY_FLOATS], [SAME_FLOATS], ranks)
    provider = 'parameters { key: "execution_providers" value { string_value: "xnnpack" } }'
    write(repository, "provider", [RELU], [ANY_FLOATS], [SAME_FLOATS], provider)


BROKEN = {
    "cut": "It is truncated or not an ONNX file",
    "unknown": "ai.onnx.contrib:Unheard.* is not a registered function/op",
    "missing": "the operator library 'libnowhere.so' .* cannot be used: .*cannot open shared object file",
    "ranks": "TYPE_FP64",
    "provider": "asks for 'xnnpack', but this build of ONNX Runtime .* has no XnnpackExecutionProvider",
}


@pytest.fixture(scope="module")
def classifier() -> Any:
    return trained()


@pytest.fixture(scope="module")
def errors() -> list[str]:
    """What the tests make the server log."""
    return ["ERROR .* model 'gather': execution failed: onnxruntime refused the request"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, classifier: Any, errors: list[str]) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    write_classifier(repository, classifier)
    write_upper(repository)
    write_sizes(repository)
    write_broken(repository)
    gather = helper.make_node("Gather", ["TABLE", "INDEX"], ["OUT"])
    table = helper.make_node("Constant", [], ["TABLE"], value_floats=[1.5, 2.5, 3.5])
    index = helper.make_tensor_value_info("INDEX", TensorProto.INT64, ["batch", 1])
    values = helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["batch", 1])
    write(repository, "gather", [table, gather], [index], [values], "max_batch_size: 4")
    for share in ("true", "false"):
        threads = 'parameters { key: "intra_op_thread_count" value { string_value: "6" } }'
        shared = f'parameters {{ key: "share_session_between_instances" value {{ string_value: "{share}" }} }}'
        config = f"{threads} {shared} instance_group {{ count: 3 }}"
        write(repository, f"share_{share}", [RELU], [ANY_FLOATS], [SAME_FLOATS], config)
    options = ["--exit-on-error=false", "--model-control-mode=explicit", "--log-info=true"]
    options += [f"--load-model={name}" for name in ("iris", "upper", "sizes", "gather")]
    options.append("--backend-config=onnxruntime,default-max-batch-size=256")
    with serving(repository, options=options, errors=errors) as running:
        yield running
        with connected(running) as client:
            assert all(client.is_model_ready(name) for name in ("iris", "upper", "sizes", "gather"))


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with connected(server) as opened:
        yield opened


def tensor(name: str, values: NDArray[Any], datatype: str) -> Any:
    made = http.InferInput(name, values.shape, datatype)
    made.set_data_from_numpy(values)
    return made


def test_the_log_names_the_build(server: ServerProcess) -> None:
    assert re.search(rf"onnxruntime {re.escape(ort.__version__)}: .*CPUExecutionProvider", server.log)
    assert server.log.count(f"onnxruntime {ort.__version__}: ") == 1


# Classifiers


def test_probabilities_are_those_of_scikit_learn(client: Any, classifier: Any) -> None:
    metadata = client.get_model_metadata("iris")
    described = {output["name"]: (output["datatype"], output["shape"]) for output in metadata["outputs"]}
    assert described == {"output_label": ("BYTES", [-1, 1]), "output_probability": ("FP32", [-1, 3])}
    response = client.infer("iris", [tensor("X", FLOWERS.astype(np.float32), "FP32")])
    np.testing.assert_allclose(response.as_numpy("output_probability"), classifier.predict_proba(FLOWERS), atol=1e-5)
    assert [label.decode() for label in response.as_numpy("output_label").ravel()] == classifier.predict(
        FLOWERS
    ).tolist()


def test_what_runs_a_model(server: ServerProcess) -> None:
    report = request(server.http_port, "GET", "/v2/models/iris/engine").json
    assert report["engine"] == "ONNX Runtime"
    assert (report["version"], report["device"]) == (ort.__version__, "CPU")
    assert report["providers"] == ["CPUExecutionProvider"]
    assert report["class_labels"] == {"output_probability": ["setosa", "versicolor", "virginica"]}


# Operators of a model's own


def test_operators_of_a_library(client: Any) -> None:
    texts = np.array([[b"abc"], [b"Xyz 1"]], object)
    response = client.infer("upper", [tensor("IN", texts, "BYTES")])
    assert response.as_numpy("OUT").tolist() == [[b"ABC"], [b"XYZ 1"]]


# Threads


def test_threads_of_shared_sessions_and_others(server: ServerProcess, client: Any) -> None:
    """One session for three instances of six threads, or three sessions with the same number in all."""

    def threads() -> int:
        return len([*Path(f"/proc/{server.pid}/task").iterdir()])

    counts = {}
    for share in ("true", "false"):
        before = threads()
        client.load_model(f"share_{share}")
        counts[share] = threads() - before
        response = client.infer(f"share_{share}", [tensor("IN", -np.ones((2, 4), np.float32), "FP32")])
        assert not response.as_numpy("OUT").any()
    # Of each session five, and one of each instance; the server may have begun one or two more.
    assert all(18 <= count <= 20 for count in counts.values()), counts


# What goes wrong


@pytest.mark.parametrize("name", BROKEN)
def test_models_that_cannot_be_loaded(client: Any, errors: list[str], name: str) -> None:
    errors.append(f"ERROR .* model '{name}', version 1: ")
    with pytest.raises(InferenceServerException, match=BROKEN[name]) as caught:
        client.load_model(name)
    assert caught.value.status() == "400"
    assert client.is_model_ready("iris")


def test_values_out_of_range_harm_only_their_own_request(server: ServerProcess) -> None:
    with grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as caller:
        good = grpc.InferInput("INDEX", [1, 1], "INT64")
        good.set_data_from_numpy(np.array([[2]]))
        bad = grpc.InferInput("INDEX", [1, 1], "INT64")
        bad.set_data_from_numpy(np.array([[99]]))
        with ThreadPoolExecutor(8) as threads:
            calls = [threads.submit(caller.infer, "gather", [good if index else bad]) for index in range(8)]
            with pytest.raises(InferenceServerException, match="indices element out of data bounds, idx=99"):
                calls[0].result()
            assert [call.result().as_numpy("OUT").item() for call in calls[1:]] == [3.5] * 7


def test_no_memory_for_one_request_of_a_batch(server: ServerProcess, errors: list[str]) -> None:
    errors.append("ERROR .* model 'sizes': execution failed: onnxruntime has no memory for the request")

    def ask(size: int) -> Any:
        with connected(server) as own:  # such a client belongs to a thread
            return own.infer("sizes", [tensor("N", np.array([[size]]), "INT64")])

    with ThreadPoolExecutor(3) as threads:
        small, huge, other = (threads.submit(ask, size) for size in (5, 10**13, 7))
        with pytest.raises(InferenceServerException, match="Failed to allocate memory") as caught:
            huge.result()
        assert caught.value.status() == "500"
        assert (small.result().as_numpy("OUT").item(), other.result().as_numpy("OUT").item()) == (5, 7)
