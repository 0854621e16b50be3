"""Models that can not be loaded: the others serve, and everybody who asks is told why."""

import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from repositories import copy_example
from server_process import LOADED, ServerProcess, serving, started
from tritonclient.grpc import service_pb2
from wire import SECONDS, Ask, assert_serving, channel, grpc_infer, http, http_infer, stub

FIVE_MISTAKES = """\
name: "mistaken"
backend: "onnxruntime"
max_batch_sise: 8
input [
  { name: "INPUT0" data_type: TYPE_INT23 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ "sixteen" ] }
]
dynamic_batching { max_queue_delay_microseconds: -1 }
instance_group [ { count: 1 kind: KIND_TPU } ]
"""

ERRORS = [r"'mistaken'", r"'cut', version 1", r"'no_versions'"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("bad")
    for name in ("simple", "cut", "mistaken", "odd_versions", "no_versions"):
        copy_example(found, "simple", name)
    (found / "mistaken" / "config.pbtxt").write_text(FIVE_MISTAKES)
    onnx = found / "cut" / "1" / "model.onnx"
    onnx.write_bytes(onnx.read_bytes()[: onnx.stat().st_size // 2])
    (found / "odd_versions" / "1").rename(found / "odd_versions" / "2")
    for odd in ("01", "x", "0", "-1", "1.5", "03"):
        (found / "odd_versions" / odd).mkdir()
    (found / "no_versions" / "1").rename(found / "no_versions" / "01")
    (found / "no_versions" / "x").mkdir()
    (found / "a_file").write_text("no model")
    (found / ".hidden").mkdir()
    return found


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    with serving(repository, errors=ERRORS) as running:
        yield running


ARTIFACTS: dict[str, tuple[dict[str, bytes], str]] = {
    "weights": (
        {"1/model.safetensors": b"x"},
        r"'1/model.safetensors' is a file of weights without the model's graph: ",
    ),
    "pickled": (
        {"1/classifier.pkl": b"x"},
        r"rename '1/classifier.pkl' to '1/model.pkl', or write default_model_filename",
    ),
    "keras": ({"1/model.h5": b"x"}, r"'1/model.h5' is a Keras file: .*model.export\('model.savedmodel'\)"),
    "llama": ({"1/llama.gguf": b"x"}, r"'\S+/1/llama.gguf' is not a GGUF file that can be read: it ends too early"),
    "plan": ({"1/model.plan": b"ptrt"}, r"is a TensorRT engine\. It needs the kind of .* Serve the ONNX file that"),
    "flat": ({"resnet.onnx": b"x"}, r"move 'resnet.onnx' to '1/model.onnx'"),
    "v": ({"v1/model.onnx": b"x"}, r"folder 'v1' is not a version: versions are named by whole numbers, such as '1'"),
    "pointer": (
        {"1/model.onnx": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"},
        r"'\S+/1/model.onnx' is not a model: it is the pointer of Git LFS .*'git lfs pull'",
    ),
}


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that nobody can load, and two whose backends go by other names."""
    root = tmp_path_factory.mktemp("artifacts")
    for name, (files, _) in ARTIFACTS.items():
        for file, content in files.items():
            path = root / name / file
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
    copy_example(root, "simple", "cut")
    onnx = root / "cut" / "1" / "model.onnx"
    onnx.write_bytes(onnx.read_bytes()[:-20])
    for name, backend in (("other_name", "onnx_runtime"), ("misspelt", "onnxruntim"), ("unknown", "llama_cpp")):
        copy_example(root, "simple", name)
        config = root / name / "config.pbtxt"
        config.write_text(config.read_text().replace('platform: "onnxruntime_onnx"', f'backend: "{backend}"'))
    return root


def test_unknown_artifacts_and_names_of_backends(artifacts: Path) -> None:
    """Without strict readiness, the server is ready nevertheless."""
    errors = [*(f"'{name}'" for name in ARTIFACTS), "'cut'", "'unknown'"]
    with serving(artifacts, options=["--strict-readiness=false"], errors=errors) as server:
        assert http(server.http_port, "GET", "/v2/health/ready").status == 200
        index = {model["name"]: model for model in http(server.http_port, "POST", "/v2/repository/index").json}
        for name, (_, advice) in ARTIFACTS.items():
            assert index[name]["state"] == "UNAVAILABLE"
            assert re.search(advice, index[name]["reason"]), index[name]["reason"]
        assert re.search("\ninstalled backends: .*'onnxruntime' takes <version>/model.onnx", index["weights"]["reason"])
        assert index["flat"]["reason"] == (
            "Invalid argument: move 'resnet.onnx' to '1/model.onnx': model files belong in the folder of their "
            f"version\n'{artifacts}/flat' holds: resnet.onnx"
        )
        assert re.search(
            r"Protobuf parsing failed(.|\n)*1/model.onnx' is truncated: it should have", index["cut"]["reason"]
        )
        assert "unable to find backend 'llama_cpp', installed backends are: " in index["unknown"]["reason"]
        for name, written in (("other_name", "'onnx_runtime'"), ("misspelt", "'onnxruntim'")):
            assert http_infer(server.http_port, Ask(model=name)).status == 200
            assert http(server.http_port, "GET", f"/v2/models/{name}/config").json["backend"] == "onnxruntime"
            server.wait_for(rf"WARNING .*{name}/config.pbtxt:\d+:\d+: backend {written} of model '{name}' is ")


def reasons(server: ServerProcess) -> dict[tuple[str, str], str]:
    answer = http(server.http_port, "GET", "/v2/health/ready")
    assert answer.status == 400
    assert answer.json["ready"] is False
    return {(entry["name"], entry["version"]): entry["reason"] for entry in answer.json["reasons"]}


def test_the_good_model_is_served(server: ServerProcess) -> None:
    assert_serving(server)
    assert http(server.http_port, "GET", "/v2/models/simple/ready").status == 200


def test_live_but_not_ready(server: ServerProcess) -> None:
    assert http(server.http_port, "GET", "/v2/health/live").status == 200
    with channel(server.grpc_port) as opened:
        assert stub(opened).ServerLive(service_pb2.ServerLiveRequest(), timeout=SECONDS).live
        assert not stub(opened).ServerReady(service_pb2.ServerReadyRequest(), timeout=SECONDS).ready


def test_readiness_names_the_bad_models_and_no_others(server: ServerProcess) -> None:
    assert sorted(reasons(server)) == [("cut", "1"), ("mistaken", ""), ("no_versions", "")]


def test_all_five_mistakes_are_reported_with_their_places(server: ServerProcess, repository: Path) -> None:
    reason = reasons(server)["mistaken", ""]
    path = repository / "mistaken" / "config.pbtxt"
    assert reason.startswith("Invalid argument: 5 problems in the configuration of model 'mistaken'\n")
    for place, words in (
        ("3:1", ("max_batch_sise", "max_batch_size")),
        ("5:31", ("TYPE_INT23", "TYPE_INT32")),
        ("8:51", ("sixteen",)),
        ("10:50", ("-1",)),
        ("11:35", ("KIND_TPU", "KIND_GPU")),
    ):
        (line,) = [line for line in reason.splitlines() if line.startswith(f"{path}:{place}: ")]
        assert all(word in line for word in words), line


def test_the_cut_file_is_named(server: ServerProcess, repository: Path) -> None:
    reason = reasons(server)["cut", "1"]
    assert reason.startswith("Invalid argument: failed to load model 'cut' ")
    assert str(repository / "cut" / "1" / "model.onnx") in reason


def test_directories_that_are_no_versions_are_none(server: ServerProcess) -> None:
    reason, held, *mistakes = reasons(server)["no_versions", ""].split("\n")
    assert reason == (
        "Invalid argument: at least one version must be available under the version policy of model 'no_versions'"
    )
    assert held.endswith("no_versions' holds: 01/ (model.onnx), config.pbtxt, x/ (empty)")
    assert mistakes == ["folder '01' is not a version: versions are named by whole numbers, such as '1'"]
    assert http(server.http_port, "GET", "/v2/models/odd_versions").json["versions"] == ["2"]
    assert http_infer(server.http_port, Ask(model="odd_versions")).status == 200
    answer = http_infer(server.http_port, Ask(model="odd_versions", version="01"))
    assert answer.json == {"error": "Request for unknown model: 'odd_versions' version 1 is not found"}


@pytest.mark.parametrize(
    ("model", "version", "status", "code", "text", "why"),
    [
        ("cut", "", 404, grpc.StatusCode.NOT_FOUND, "'cut' has no available versions", "model.onnx"),
        ("cut", "1", 503, grpc.StatusCode.UNAVAILABLE, "'cut' version 1 is not at ready state", "model.onnx"),
        ("mistaken", "", 404, grpc.StatusCode.NOT_FOUND, "'mistaken' has no available versions", "max_batch_sise"),
        ("mistaken", "1", 404, grpc.StatusCode.NOT_FOUND, "'mistaken' version 1 is not found", "max_batch_sise"),
        ("no_versions", "", 404, grpc.StatusCode.NOT_FOUND, "'no_versions' has no available versions", "at least one"),
        ("a_file", "", 404, grpc.StatusCode.NOT_FOUND, "'a_file' is not found", ""),
        (".hidden", "", 404, grpc.StatusCode.NOT_FOUND, "'.hidden' is not found", ""),
    ],
)
def test_inference_on_a_bad_model(
    server: ServerProcess, model: str, version: str, status: int, code: grpc.StatusCode, text: str, why: str
) -> None:
    """Triton's text, and behind it why the model did not load."""
    text = f"Request for unknown model: {text}"
    answer = http_infer(server.http_port, Ask(model=model, version=version))
    assert answer.status == status
    found = answer.json["error"]
    assert found.startswith(f"{text}: ") if why else found == text
    assert why in found
    with pytest.raises(grpc.RpcError) as raised:
        grpc_infer(server.grpc_port, Ask(model=model, version=version))
    assert (raised.value.code(), raised.value.details()) == (code, found)


@pytest.mark.parametrize("model", ["cut", "mistaken", "no_versions"])
def test_a_bad_model_is_not_ready(server: ServerProcess, model: str) -> None:
    answer = http(server.http_port, "GET", f"/v2/models/{model}/ready")
    assert answer.status == 400
    assert answer.json["error"].startswith(f"Model version not ready: Request for unknown model: '{model}' ")
    with channel(server.grpc_port) as opened:
        request = service_pb2.ModelReadyRequest(name=model)
        assert not stub(opened).ModelReady(request, timeout=SECONDS).ready


def test_the_table_of_models_says_why(server: ServerProcess) -> None:
    for line in (
        r"cut +1 +UNAVAILABLE",
        r"mistaken +- +UNAVAILABLE",
        r".*5 problems in the configuration of model 'mistaken'",
        r"odd_versions +2 +READY",
    ):
        server.wait_for(rf"{LOADED}\n(?:.*\n)*{line}")


def test_exit_on_error(repository: Path) -> None:
    with started(repository, options=["--exit-on-error=true"]) as server:
        server.wait(1, errors=[*ERRORS, r"--exit-on-error is set: cut, mistaken, no_versions"])


def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "nosuch"
    with started(missing) as server:
        server.wait(1, errors=[f"cannot read model repository '{missing}': No such file or directory"])
