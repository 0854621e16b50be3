"""Where TensorFlow is not installed, OpenVINO runs SavedModels for the tensorflow backend, and says what it cannot."""

import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

pytest.importorskip("openvino")

import tritonclient.grpc
import tritonclient.http
from model_packages import unpacked
from numpy.typing import NDArray
from server_process import ServerProcess, serving
from wire import HOST, http

from modserve import Code, InferenceServer, ModserveError, Settings
from modserve.backends.api import ModelSource
from modserve.backends.catalogue import BY_BACKEND
from modserve.backends.openvino.instance import OpenVinoInstance
from modserve.backends.registry import BackendRegistry
from modserve.backends.tensorflow.backend import TensorFlowBackend
from modserve.core.configuration.model_config import TensorSpec
from modserve.core.pip_command import pip_install
from modserve.core.tensors import dtypes
from modserve.testing import config, instance_spec

pytestmark = pytest.mark.skipif(BY_BACKEND["tensorflow"].installed, reason="TensorFlow is installed")

INSTALL = pip_install("tensorflow")
BY_OPENVINO = f"OpenVINO runs it, because TensorFlow is not installed; TensorFlow may be able to: {INSTALL}"
PLACEHOLDER = (
    b"\x12\x0bPlaceholder*\x0b\n\x05dtype\x12\x020\x01*\x1c\n\x05shape\x12\x13:\x11\x12\x0b\x08"
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x12\x02\x08\x04"
)
SUM = (
    b"\n;\n\x01a" + PLACEHOLDER + b"\n;\n\x01b" + PLACEHOLDER + b"\n\x1b\n\x03sum\x12\x05AddV2\x1a\x01a\x1a\x01b"
    b'*\x07\n\x01T\x12\x020\x01"\x03\x08\xaa\x13'
)
"""A serialised ``tensorflow.GraphDef``, as TensorFlow 2.21 wrote it: sum = a + b, FP32 [-1, 4]."""
OUTPUTS = ("note", "onset", "contour")
"""In the order of the ONNX file's."""


@pytest.fixture(scope="module")
def folder() -> Path:
    """basic-pitch, which finds the notes in music."""
    return unpacked("basic-pitch==0.4.0") / "basic_pitch" / "saved_models" / "icassp_2022"


@pytest.fixture(scope="module")
def audio() -> NDArray[np.float32]:
    """Two seconds, twice: a chord, and noise."""
    times = np.arange(43844) / 22050
    chord = sum(np.sin(2 * np.pi * frequency * times) for frequency in (261.6, 329.6, 392.0)) / 3
    noise = np.random.default_rng(1).uniform(-1, 1, 43844)
    return np.stack([chord, noise]).astype(np.float32)[..., np.newaxis]


@pytest.fixture(scope="module")
def expected(folder: Path, audio: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / "nmp.onnx"), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    results = dict(zip(names, session.run(names, {session.get_inputs()[0].name: audio}), strict=True))
    by_number = {name.rpartition(":")[2]: array for name, array in results.items()}
    return {"contour": by_number["0"], "note": by_number["1"], "onset": by_number["2"]}


@pytest.fixture(scope="module")
def repository(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(folder / "nmp", root / "pitch" / "1" / "model.savedmodel")
    shutil.copytree(folder / "nmp", root / "as_tensorflow_serving" / "1")
    shutil.copytree(folder / "nmp", root / "named" / "1" / "model.savedmodel")
    (root / "named" / "config.pbtxt").write_text(
        'platform: "tensorflow_savedmodel" max_batch_size: 2\n'
        'parameters { key: "TF_SIGNATURE_DEF" value { string_value: "serving_default" } }\n'
        'parameters { key: "TF_NUM_INTRA_THREADS" value { string_value: "1" } }\n'
        'parameters { key: "TF_NUM_INTER_THREADS" value { string_value: "1" } }\n'
    )
    return root


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    with serving(repository) as running:
        yield running


def test_the_backend_is_among_those_that_run() -> None:
    registry = BackendRegistry()
    assert "tensorflow" in registry.names
    assert isinstance(registry.get("tensorflow"), TensorFlowBackend)


@pytest.mark.parametrize("model", ["pitch", "as_tensorflow_serving", "named"])
def test_it_agrees_with_onnx_runtime(
    server: ServerProcess, audio: NDArray[np.float32], expected: dict[str, NDArray[np.float32]], model: str
) -> None:
    for module, port in ((tritonclient.http, server.http_port), (tritonclient.grpc, server.grpc_port)):
        with module.InferenceServerClient(f"{HOST}:{port}") as client:
            tensor = module.InferInput("input_2", list(audio.shape), "FP32").set_data_from_numpy(audio)
            result = client.infer(model, [tensor])
        for name in OUTPUTS:
            assert np.abs(result.as_numpy(name) - expected[name]).max() < 1e-3, name


def test_the_configuration_is_that_of_tensorflow(server: ServerProcess) -> None:
    complete = http(server.http_port, "GET", "/v2/models/pitch/config").json
    assert (complete["backend"], complete["platform"]) == ("tensorflow", "tensorflow_savedmodel")
    assert [(tensor["name"], tensor["dims"]) for tensor in complete["input"]] == [("input_2", [43844, 1])]
    assert sorted(tensor["name"] for tensor in complete["output"]) == sorted(OUTPUTS)
    server.wait_for("model 'named': parameter 'TF_NUM_INTER_THREADS' has no effect: OpenVINO runs it, because")


@pytest_asyncio.fixture
async def library(repository: Path) -> AsyncIterator[InferenceServer]:
    async with InferenceServer(Settings(model_repository=[repository])) as opened:
        yield opened


async def test_in_process(library: InferenceServer, audio: NDArray[np.float32]) -> None:
    response = await library.infer("pitch", {"input_2": audio[:1]})
    assert {name: tensor.shape for name, tensor in response.outputs.items()} == {
        "contour": (1, 172, 264),
        "note": (1, 172, 88),
        "onset": (1, 172, 88),
    }


def test_a_frozen_graph(tmp_path: Path) -> None:
    (tmp_path / "model.graphdef").write_bytes(SUM)
    tensors = {name: TensorSpec(name, dtypes.FP32, (4,)) for name in ("a", "b", "sum")}
    written = config(inputs=(tensors["a"], tensors["b"]), outputs=(tensors["sum"],), backend="tensorflow")
    model = TensorFlowBackend().open(ModelSource(written, 1, tmp_path / "model.graphdef", tmp_path))
    instance = model.instance(instance_spec(written))
    assert isinstance(instance, OpenVinoInstance)
    array = np.ones((2, 4), np.float32)
    assert instance.execute({"a": array, "b": array}, ("sum",))["sum"].tolist() == [[2.0] * 4] * 2
    instance.close()
    model.close()


# What it cannot


def refusal(path: Path, **parameters: str) -> ModserveError:
    written = config(inputs=(), outputs=(), backend="tensorflow", parameters=parameters)
    with pytest.raises(ModserveError) as caught:
        TensorFlowBackend().open(ModelSource(written, 1, path, path.parent))
    return caught.value


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [("TF_SIGNATURE_DEF", "other", "expected 'serving_default', the only signature"), ("TF_GRAPH_TAG", "train", "tag")],
)
def test_other_signatures_and_tags(folder: Path, key: str, value: str, text: str) -> None:
    error = refusal(folder / "nmp", **{key: value})
    assert error.code is Code.INVALID_ARG
    assert text in error.message
    assert error.message.endswith(BY_OPENVINO)


def test_operations_that_initialise_a_graph(folder: Path) -> None:
    error = refusal(folder / "nmp", TF_INIT_OPS_FILE="init.json")
    assert error.message == f"model 'model': 'TF_INIT_OPS_FILE' needs TensorFlow: {INSTALL}"


def test_no_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nosuch").message.startswith("unable to find model file '")


def test_operators_of_a_library(folder: Path) -> None:
    written = replace(config(inputs=(), outputs=(), backend="tensorflow"), operation_libraries=("ops.so",))
    with pytest.raises(ModserveError, match="'model_operations' needs TensorFlow"):
        TensorFlowBackend().open(ModelSource(written, 1, folder / "nmp", folder))


@pytest.mark.parametrize("size", [0, 100, 50_000])
def test_a_file_that_openvino_cannot_read(folder: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.savedmodel"
    shutil.copytree(folder / "nmp", path)
    content = (path / "saved_model.pb").read_bytes()
    (path / "saved_model.pb").write_bytes(content[:size])
    error = refusal(path)
    assert error.code is Code.INVALID_ARG
    assert error.message.endswith(BY_OPENVINO)
