"""``--record`` under real traffic, and ``modserve replay`` of it: to the same server, and to the next version.

One server records calls of `tritonclient` over HTTP and gRPC, a stream, sequences, shared memory, texts and failures.
"""

import json
import os
import queue
import shutil
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from minilm_folder import minilm
from onnx import TensorProto, helper, numpy_helper
from repositories import EXAMPLES, write_accumulator, write_identity
from server_here import serving_here, started_here
from server_process import LOADED, Server, eventually, started
from tritonclient.utils import InferenceServerException
from wire import HOST, http, metric

from modserve.commands.replay.record_index import index_of

KEY = "c0ffee-record-7d21"
"""Goes to the models as a header, too, which the server forwards."""
SECRET = "the secret of the text"
HEADERS = {"authorization": f"Bearer {KEY}", "x-visible": KEY}
SUMS = [1, 3, 33]


def write_scale(repository: Path) -> None:
    """OUT is IN times 2, in version 2 a bit more; `NEXT` of it, which version 2 gives as 64 bits."""
    for version, factor in ((1, 2.0), (2, 2.001)):
        graph = helper.make_graph(
            [
                helper.make_node("Mul", ["IN", "factor"], ["OUT"]),
                helper.make_node("ArgMax", ["IN"], ["BEST"], axis=1, keepdims=1),
            ],
            "scale",
            [helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["batch", 4])],
            [
                helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["batch", 4]),
                helper.make_tensor_value_info("BEST", TensorProto.INT64, ["batch", 1]),
            ],
            [numpy_helper.from_array(np.array([factor], np.float32), "factor")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        (repository / "scale" / str(version)).mkdir(parents=True)
        onnx.save(model, repository / "scale" / str(version) / "model.onnx")
    text = 'backend: "onnxruntime"\nmax_batch_size: 8\nversion_policy { all { } }\ndynamic_batching { }\n'
    (repository / "scale" / "config.pbtxt").write_text(text)


class Place(NamedTuple):
    server: Server
    records: Path
    """A copy of the files when all was recorded: what is replayed is recorded again."""
    counts: Counter[str]
    """Requests by model."""


def inputs(module: Any, **arrays: Any) -> list[Any]:
    tensors = []
    for name, array in arrays.items():
        datatype = "BYTES" if array.dtype == object else {"f": "FP32", "i": "INT32", "u": "UINT32"}[array.dtype.kind]
        tensor = module.InferInput(name, array.shape, datatype)
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


def call_over(module: Any, port: int, counts: Counter[str]) -> None:
    """Numbers, a failure, texts and a sequence, by one of the protocols."""
    with module.InferenceServerClient(f"{HOST}:{port}") as client:
        for value in range(5):
            values = np.full((1 + value % 2, 4), value, np.float32)
            values[0, 0] = np.nan if value == 4 else 9
            client.infer("scale", inputs(module, IN=values), "1", headers=dict(HEADERS))
        with pytest.raises(InferenceServerException, match="shape"):
            client.infer("scale", inputs(module, IN=np.ones((1, 5), np.float32)), "1", headers=dict(HEADERS))
        text = np.array([[SECRET.encode()]], object)
        client.infer("hidden", inputs(module, INPUT0=text), headers=dict(HEADERS))
        for index, value in enumerate((1, 2, 30)):
            result = client.infer(
                "sums",
                inputs(module, INPUT=np.array([[value]], np.int32)),
                sequence_id=port,
                sequence_start=not index,
                sequence_end=index == 2,
                headers=dict(HEADERS),
            )
            assert result.as_numpy("OUTPUT").tolist() == [[SUMS[index]]]
    counts.update(scale=6, hidden=1, sums=3)


def stream(server: Server) -> None:
    """A request with three responses."""
    results: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: results.put(error or result), headers=dict(HEADERS))
        each = inputs(
            tritonclient.grpc,
            IN=np.array([7, 8, 9], np.int32),
            DELAY=np.zeros(3, np.uint32),
            WAIT=np.zeros(1, np.uint32),
        )
        client.async_stream_infer("repeat", each, request_id="stream")
        assert [results.get(timeout=30).as_numpy("OUT").tolist() for _ in range(3)] == [[7], [8], [9]]
        client.stop_stream()


def share(server: Server) -> None:
    """A request whose input is in shared memory, which the client overwrites as soon as it has the response."""
    client = tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}")
    region = shm.create_shared_memory_region("r", f"/modserve-record-{os.getpid()}", 16)
    try:
        with client:
            client.register_system_shared_memory("r", f"/modserve-record-{os.getpid()}", 16, headers=dict(HEADERS))
            shm.set_shared_memory_region(region, [np.array([[1, 2, 3, 4]], np.float32)])
            tensor = tritonclient.http.InferInput("IN", [1, 4], "FP32")
            tensor.set_shared_memory("r", 16)
            client.infer("scale", [tensor], "1", request_id="shared", headers=dict(HEADERS))
            shm.set_shared_memory_region(region, [np.zeros((1, 4), np.float32)])
            client.unregister_system_shared_memory("r", headers=dict(HEADERS))
    finally:
        shm.destroy_shared_memory_region(region)


def post_others(server: Server) -> None:
    """Calls that make requests of texts and of JSON of their own."""
    for path, body in (
        ("/v1/embeddings", {"model": "minilm", "input": ["A cat sleeps", "Rain is expected"]}),
        ("/v1/models/scale/versions/1:predict", {"instances": [{"IN": [1, 2, 3, 4]}]}),
        ("/v2/models/repeat/generate_stream", {"IN": [7, 8], "DELAY": [0, 0], "WAIT": 0}),
    ):
        response = http(server.http_port, "POST", path, json.dumps(body).encode(), HEADERS)
        assert response.status == 200, response.body


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    repository, folder = tmp_path_factory.mktemp("recorded"), tmp_path_factory.mktemp("records")
    write_scale(repository)
    write_identity(repository, "hidden", "BYTES")
    write_accumulator(repository, "sums", "direct { }", "max_sequence_idle_microseconds: 600000000")
    shutil.copytree(EXAMPLES / "repeat", repository / "repeat")
    options = [
        f"--record=dir={folder / 'live'},rate=1",
        "--record=redact=hidden:*",
        f"--model-file=minilm={minilm()}",
        "--allow-client-shm=true",
        "--auth-open=metrics",
        "--http-header-forward-pattern=(?i)authorization|x-vis",
        "--grpc-header-forward-pattern=(?i)authorization|x-vis",
    ]
    with serving_here(repository, options=options, environment={"MODSERVE_API_KEY": KEY}) as server:
        counts: Counter[str] = Counter()
        call_over(tritonclient.http, server.http_port, counts)
        call_over(tritonclient.grpc, server.grpc_port, counts)
        stream(server)
        share(server)
        post_others(server)
        counts.update(repeat=2, minilm=2, scale=2)
        eventually(lambda: recorded(server) == counts.total())
        shutil.copytree(folder / "live", folder / "copy")
        yield Place(server, folder / "copy", counts)
        assert stat.S_IMODE((folder / "live").stat().st_mode) == 0o700


def recorded(server: Server) -> int:
    page = http(server.metrics_port, "GET", "/metrics").body.decode()
    return next(
        int(float(line.split()[1])) for line in page.splitlines() if line.startswith("modserve_recorded_requests_")
    )


def replay(place: Place, *words: str, over_grpc: bool = False) -> tuple[int, str]:
    """The exit code, and what the command prints."""
    port = place.server.grpc_port if over_grpc else place.server.http_port
    url = f"{'grpc' if over_grpc else 'http'}://{HOST}:{port}"
    command = [sys.executable, "-m", "modserve", "replay", *words, "--url", url]
    environment = {**os.environ, "MODSERVE_API_KEY": KEY}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def test_the_same_server_responds_alike(place: Place) -> None:
    code, output = replay(place, str(place.records), "--json")
    document = json.loads(output)
    assert code == 0, output
    models = {name: (each["records"], each["equal"], each["different"]) for name, each in document["models"].items()}
    expected = {name: (count, count, 0) for name, count in place.counts.items()}
    assert models == {**expected, "hidden": (2, 0, 0)}
    assert document["not_compared"] == {"an input is redacted": 2}
    assert document["remarks"] == []
    code, output = replay(place, str(place.records / "sums"), str(place.records / "repeat"), over_grpc=True)
    assert (code, "8 equal, 0 different" in output) == (0, True), output


def test_the_next_version_differs(place: Place) -> None:
    words = str(place.records / "scale"), "--model-version", "2"
    code, output = replay(place, *words)
    assert code == 1
    # Those that fail do so in both versions. So much is within the tolerance of no number but 0.
    assert "2 equal, 12 different" in output, output
    code, output = replay(place, *words, "--json")
    document = json.loads(output)
    assert document["models"]["scale"]["largest_error"]["OUT"] == pytest.approx(0.009, rel=0.01)
    first = document["differences"][0]
    assert (first["tensor"], first["index"], first["recorded"]) == ("OUT", [0, 0], "18.0")
    assert float(first["replayed"]) == pytest.approx(18.009)
    assert {each["tensor"] for each in document["differences"]} == {"OUT"}
    code, output = replay(place, *words, "--tolerance", "0.001")
    assert (code, "14 equal, 0 different" in output) == (0, True), output


def test_what_is_recorded(place: Place) -> None:
    index = index_of(sorted(place.records.rglob("*.jsonl")))
    records = [each.read() for each in index.places]
    assert Counter(each.model for each in records) == place.counts
    assert {each.tenant for each in records} == {"default"}
    (shared,) = [each for each in records if each.id == "shared"]
    content = shared.inputs["IN"].content
    assert content is not None
    assert content.array.tolist() == [[1, 2, 3, 4]]
    (streamed,) = [each for each in records if each.id == "stream"]
    assert [len(each.outputs or {}) for each in streamed.outcomes][:3] == [2, 2, 2]
    ids = [each.parameters["sequence_id"] for each in records if each.model == "sums"]
    assert ids == [place.server.http_port] * 3 + [place.server.grpc_port] * 3


def test_no_secret_is_in_the_files(place: Place) -> None:
    content = b"".join(path.read_bytes() for path in place.records.rglob("*.jsonl"))
    assert b'"left_out":' in content  # of headers, or none came so far
    for secret in (KEY, SECRET, "secret"):
        assert secret.encode() not in content
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.records.rglob("*.jsonl")} == {0o600}


def test_a_full_disk_and_a_sudden_end(tmp_path: Path) -> None:
    """Files have at most 100,000 bytes here: what comes after that is dropped, and every request gets its response."""
    write_identity(tmp_path / "models", "echo", "FP32")
    options = [f"--record=dir={tmp_path / 'records'},rate=1"]
    with started(tmp_path / "models", options=options, before=["prlimit", "--fsize=100000"]) as server:
        server.wait_for(LOADED)
        with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
            values = np.random.default_rng(1).random((1, 2000), np.float32)
            for _ in range(10):
                result = client.infer("echo", inputs(tritonclient.http, INPUT0=values))
                assert np.array_equal(result.as_numpy("OUTPUT0"), values)
        eventually(lambda: recorded(server) + metric(server, "modserve_record_dropped_total", reason="disk") == 10)
        kept = recorded(server)
        server.wait_for(r"requests cannot be recorded, and are left out: \[Errno 27\] File too large")
        assert server.log.count("requests cannot be recorded") == 1
        os.kill(server.pid, 9)
    index = index_of((tmp_path / "records").rglob("*.jsonl"))
    assert (len(index.places), index.remarks, 3 <= kept <= 5) == (kept, [], True)


def test_a_folder_that_cannot_be_written_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with started_here(EXAMPLES, options=[f"--record=dir={tmp_path / 'file'}"]) as server:
        server.wait(1, errors=["requests cannot be recorded: .*file.*; '--record dir=DIR' names another folder"])
