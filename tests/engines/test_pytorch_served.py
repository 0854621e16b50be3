"""The pytorch backend in a real server, by the real clients, and with a real speech model."""

# mypy: allow-subclassing-any, allow-untyped-defs, allow-incomplete-defs

import asyncio
import json
import re
import subprocess
import sys
import urllib.request
import warnings
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

pytest.importorskip("torch")

import torch
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from pytorch_models import floats, put, python_class, running, script, tensors
from server_process import ServerProcess, serving

from modserve.backends.pytorch.threads import InstanceThreads, ProcessModes, SharedThreads
from modserve.core.tensors.tensor import Array
from modserve.execution.placement import available_cores


class Text(torch.nn.Module):
    """Token ids to a vector, and texts to their lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(100, 8)

    def forward(self, ids: torch.Tensor, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        vector = self.embedding(ids)
        return {"vector": vector * weights, "half": vector.to(torch.float16)}


PAGE = (Path(__file__).parents[2] / "docs" / "engines" / "pytorch.md").read_text(encoding="utf-8")
(CONFIG,) = re.findall(r"^```\n((?:backend|platform): .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
CLASS_CONFIG = """
backend: "pytorch"
runtime: "model.py"
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
CLASS = """
import torch

class Doubler(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.factor
"""


@pytest.fixture(scope="module")
def text() -> Text:
    module: Text = Text().eval()
    return module


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, text: Text) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    put(repository, "text", CONFIG, script(text))
    put(repository, "doubler", CLASS_CONFIG, python_class(CLASS, {"factor": torch.tensor([2.0])}))
    # PyTorch brings 165,000 objects, through which Python's collector goes once after the load: 0.12 s and more.
    with serving(repository, errors=["execution failed: pytorch refused the request"]) as running_server:
        yield running_server


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_by_tritonclient(server: ServerProcess, text: Text, protocol: str) -> None:
    library: Any = http_client if protocol == "http" else grpc_client
    port = server.http_port if protocol == "http" else server.grpc_port
    ids, weights = np.arange(6).reshape(2, 3), floats(2, 8)
    with torch.no_grad():
        expected = text(torch.from_numpy(ids), torch.from_numpy(weights))
    with library.InferenceServerClient(f"127.0.0.1:{port}") as client:
        inputs = []
        for name, array, datatype in (("ids", ids, "INT64"), ("weights", weights, "FP32")):
            inputs.append(library.InferInput(name, array.shape, datatype))
            inputs[-1].set_data_from_numpy(array)
        result = client.infer("text", inputs)
        np.testing.assert_allclose(result.as_numpy("vector"), expected["vector"].numpy(), rtol=1e-6)
        np.testing.assert_array_equal(result.as_numpy("half"), expected["half"].numpy())
        inputs[0].set_data_from_numpy(ids + 1000)
        with pytest.raises(Exception, match=r"pytorch refused the request: .*(range|index)") as caught:
            client.infer("text", inputs)
        assert "Traceback" not in str(caught.value)
        doubled = library.InferInput("x", [3], "FP32")
        doubled.set_data_from_numpy(np.arange(3, dtype=np.float32))
        assert client.infer("doubler", [doubled]).as_numpy("y").tolist() == [0, 2, 4]


def test_what_runs_it(server: ServerProcess) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/v2/models/doubler/engine") as response:
        report = json.load(response)
    assert report["engine"] == "PyTorch"
    assert (report["version"], report["form"], report["file"]) == (torch.__version__, "class in Python", "model.py")
    assert (report["precision"], report["device"], report["compiled"]) == ("fp32", "cpu", False)
    assert report["threads"] >= 1


async def test_requests_side_by_side(tmp_path: Path, text: Text) -> None:
    """Instances share the model, and each request gets its own results."""
    ids, weights = np.arange(90).reshape(30, 3), floats(30, 8)
    with torch.no_grad():
        expected = text(torch.from_numpy(ids), torch.from_numpy(weights))["vector"].numpy()
    config = CONFIG + "instance_group [ { count: 3 kind: KIND_CPU } ]"
    async with running(tmp_path, config, script(text)) as model:
        for _ in range(5):
            rows = [slice(start, start + 1 + start % 3) for start in range(27)]
            found = await asyncio.gather(*(model({"ids": ids[row], "weights": weights[row]}) for row in rows))
            for row, each in zip(rows, found, strict=True):
                np.testing.assert_allclose(each["vector"], expected[row], rtol=1e-5, atol=1e-6)


# Threads


class Instances:
    """Instances of one model, each with a thread, whose executions begin and end as a test says."""

    def __init__(self, own: int, count: int) -> None:
        shared = SharedThreads(own, count)
        self.each = [InstanceThreads(shared) for _ in range(count)]
        self._threads = [ThreadPoolExecutor(1) for _ in range(count)]

    def begin(self, number: int) -> int:
        def enter() -> int:
            self.each[number].__enter__()
            return int(torch.get_num_threads())

        return self._threads[number].submit(enter).result(10)

    def end(self, number: int) -> None:
        self._threads[number].submit(self.each[number].__exit__, None, None, None).result(10)

    def run(self, number: int) -> int:
        threads = self.begin(number)
        self.end(number)
        return threads

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown()


@pytest.fixture
def three() -> Iterator[Instances]:
    made = Instances(own=2, count=3)
    yield made
    made.close()


def test_one_instance_has_the_threads_of_all_while_requests_come_one_by_one(three: Instances) -> None:
    assert [three.run(number) for number in (1, 0, 0, 2, 1, 0)] == [2, 6, 6, 2, 2, 6]


def test_after_two_executions_met_each_has_its_own_threads_for_a_while(three: Instances) -> None:
    assert (three.begin(0), three.begin(1)) == (6, 2)
    three.end(0)
    three.end(1)
    assert [three.run(0) for _ in range(10)] == [2] * 8 + [6] * 2


def test_another_instance_gets_the_threads_when_the_first_one_leaves(three: Instances) -> None:
    assert (three.run(0), three.run(1)) == (6, 2)
    three.each[2].close()
    assert (three.run(0), three.run(1)) == (6, 2)
    three.each[0].close()
    assert three.run(1) == 6


def test_an_instance_by_itself_has_always_the_same(three: Instances) -> None:
    alone = Instances(own=3, count=1)
    assert (alone.run(0), alone.begin(0)) == (3, 3)
    alone.end(0)
    alone.close()


def test_the_number_of_threads_is_that_of_the_calling_thread() -> None:
    before = torch.get_num_threads()
    elsewhere = Instances(own=before + 3, count=1)
    assert elsewhere.run(0) == before + 3
    elsewhere.close()
    assert torch.get_num_threads() == before


def test_a_load_leaves_no_threads_of_its_own_behind() -> None:
    """libgomp counts them, and lets those of executions wait in a slower way when there are more than cores."""
    program = """
import concurrent.futures, os, torch
from modserve.backends.pytorch.threads import one_thread

def threads():
    return len(os.listdir("/proc/self/task"))

def work():
    torch.set_num_threads(4)
    before = threads()
    with one_thread():
        torch.ones(4_000_000).to(torch.bfloat16)
    within = threads()
    torch.ones(4_000_000).to(torch.bfloat16)
    return within - before, threads() - before, torch.get_num_threads()

print(*concurrent.futures.ThreadPoolExecutor(1).submit(work).result())
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["0", "3", "4"]


async def test_requests_one_by_one_run_all_on_the_first_instance(tmp_path: Path) -> None:
    """The one with the threads of all."""
    source = """
import threading

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tensor([torch.get_num_threads(), threading.get_ident()])
"""
    config = tensors("input", ("x", "FP32", "1")) + tensors("output", ("y", "INT64", "2"))
    config += 'backend: "pytorch"\nruntime: "model.py"\ninstance_group [ { count: 3 kind: KIND_CPU } ]'
    async with running(tmp_path, config, python_class(source)) as model:
        found = [(await model({"x": np.ones(1, np.float32)}))["y"].tolist() for _ in range(20)]
    threads, _ = found[-1]
    assert threads == 3 * max(1, available_cores() // 3)
    assert found[9:] == [found[-1]] * 11


def test_what_the_process_has_once(caplog: pytest.LogCaptureFixture) -> None:
    modes = ProcessModes()
    modes.configure("model 'a'", 0, {"ENABLE_JIT_PROFILING": True}, cudnn=False)
    assert caplog.text == ""
    modes.configure("model 'b'", 0, {"ENABLE_JIT_PROFILING": False}, cudnn=True)
    assert "model 'b': parameter 'ENABLE_JIT_PROFILING' has no effect: PyTorch has one value" in caplog.text


# A real model


WHEEL = "silero-vad==6.2.3"
RATE = 16000
FRAME = 512


@pytest.fixture(scope="module")
def silero(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's folder of models."""
    folder = tmp_path_factory.mktemp("silero")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), WHEEL]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / "silero_vad" / "data"


class Resetting(torch.nn.Module):
    """The package's model keeps its state to itself; this forgets it when a sequence starts."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        if bool(start[0, 0]):
            self.inner.reset_states()
        return self.inner(x, 16000)


SILERO = (
    "max_batch_size: 1\n"
    + tensors("input", ("x", "FP32", str(FRAME)))
    + tensors("output", ("probability", "FP32", "1"))
    + 'sequence_batching { direct { } control_input [ { name: "start" control [ { kind: CONTROL_SEQUENCE_START\n'
    "  fp32_false_true: [ 0, 1 ] } ] } ] }\n"
    "instance_group [ { count: 2 kind: KIND_CPU } ]"
)


def _speech(seed: int) -> Array:
    """A second of a voice-like sound between two of silence: a few harmonics, louder and softer."""
    time = np.arange(RATE) / RATE
    pitch = 110 + 20 * seed
    harmonics = np.sum([np.sin(2 * np.pi * pitch * n * time) / n for n in range(1, 20)], axis=0)
    voice = harmonics * (0.5 + 0.5 * np.sin(2 * np.pi * 4 * time)) * 0.2
    noise = np.random.default_rng(seed).standard_normal(3 * RATE) * 1e-3
    noise[RATE : 2 * RATE] += voice
    return noise.astype(np.float32)[: len(noise) // FRAME * FRAME].reshape(-1, 1, FRAME)


async def test_a_stateful_speech_model(tmp_path: Path, silero: Path) -> None:
    """Two sequences at a time, each on an instance with a model of its own, as the package does by itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inner = torch.jit.load(str(silero / "silero_vad.jit"))
    sounds = [_speech(seed) for seed in range(2)]
    expected = []
    for sound in sounds:
        inner.reset_states()
        with torch.no_grad():
            expected.append([float(inner(torch.from_numpy(frame), RATE)) for frame in sound])
    async with running(tmp_path, SILERO, script(Resetting(inner))) as model:
        assert model.reason == ""
        for _ in range(2):
            found: list[list[float]] = [[], []]

            async def one(number: int, results: list[list[float]] = found) -> None:
                for place, frame in enumerate(sounds[number]):
                    parameters = {"sequence_id": number + 1, "sequence_start": place == 0}
                    parameters["sequence_end"] = place == len(sounds[number]) - 1
                    result = await model({"x": frame}, parameters=parameters)
                    results[number].append(float(result["probability"][0, 0]))

            await asyncio.gather(one(0), one(1))
            np.testing.assert_allclose(found, expected, atol=1e-4)
    assert max(map(max, expected)) > 0.3
    np.testing.assert_allclose(expected[0], _by_onnx(silero / "silero_vad.onnx", sounds[0]), atol=1e-3)


def _by_onnx(file: Path, sound: Array) -> list[float]:
    """The package's other form, whose state is passed along, with the end of the frame before."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    context, state = np.zeros((1, 64), np.float32), np.zeros((2, 1, 128), np.float32)
    results = []
    for frame in sound:
        whole = np.concatenate([context, frame], axis=1)
        probability, state = session.run(None, {"input": whole, "state": state, "sr": np.array(RATE)})
        context = whole[:, -64:]
        results.append(float(probability[0, 0]))
    return results
