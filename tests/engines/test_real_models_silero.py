"""Silero VAD, a speech model with a memory: streams whose state the server keeps are what the package itself hears."""

import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc as grpc
from model_packages import place, unpacked
from numpy.typing import NDArray
from served_examples import Example, load, prepared, run
from server_process import ServerProcess, serving
from wire import HOST, SECONDS

from modserve.backends.catalogue import BY_BACKEND

pytest.importorskip("torch")  # the package wants it

PACKAGE = "silero-vad==6.2.3"
RATE, CHUNK, CONTEXT = 16000, 512, 64

_PACKAGE_ITSELF = """
import sys
import warnings

import numpy as np

folder, sounds, results = sys.argv[1:]
sys.path.insert(0, folder)
warnings.simplefilter("ignore")
import torch
from silero_vad import get_speech_timestamps
from silero_vad.model import load_silero_vad

network = load_silero_vad(onnx=True)
heard = {}
for name, samples in np.load(sounds).items():
    audio = torch.from_numpy(samples)
    rate = 8000 if name.endswith("_8k") else 16000
    heard[name] = network.audio_forward(audio, rate)[0].numpy()
    network.reset_states()
    stamps = get_speech_timestamps(audio, network, threshold=0.5, sampling_rate=rate)
    heard[f"{name}_segments"] = np.array([[stamp["start"], stamp["end"]] for stamp in stamps]) / rate
np.savez(results, **heard)
"""

Samples = NDArray[np.float32]


class Sounds(NamedTuple):
    """What is heard, and what the package says of it: the probability in each chunk, and segments in seconds."""

    samples: Mapping[str, Samples]
    heard: Mapping[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Sounds:
    client = load(prepared("speech_detection") / "client.py")
    samples: dict[str, Samples] = {"conversation": client.conversation()}
    for number, pitch in enumerate((95, 130, 180, 220, 250)):
        pauses = [client.room(0.3 + 0.2 * number, number), client.room(1, number + 50)]
        voices = [client.voice(0.8, pitch, number), client.voice(1.1, pitch, number + 50)]
        samples[f"stream_{number}"] = np.concatenate([pauses[0], voices[0], pauses[1], voices[1]])
    samples["nobody"] = client.room(1.5)
    samples["conversation_8k"] = samples["conversation"][::2].copy()
    folder = tmp_path_factory.mktemp("silero")
    np.savez(folder / "sounds.npz", **samples)  # type: ignore[arg-type]
    script = [sys.executable, "-c", _PACKAGE_ITSELF, str(unpacked(PACKAGE))]
    subprocess.run([*script, str(folder / "sounds.npz"), str(folder / "heard.npz")], check=True)
    return Sounds(samples, dict(np.load(folder / "heard.npz")))


@pytest.fixture(scope="module")
def example() -> Iterator[Example]:
    yield from run("speech_detection")


@pytest.mark.parametrize("name", ["conversation", "stream_0", "stream_4", "nobody"])
def test_a_stream_is_heard_as_by_the_package(example: Example, sounds: Sounds, name: str) -> None:
    heard = example.client.probabilities(example.grpc(), sounds.samples[name])
    np.testing.assert_allclose(heard, sounds.heard[name], atol=1e-5)


def test_segments_are_those_of_the_package(example: Example, sounds: Sounds) -> None:
    """Its segments are longer by 30 ms at either end; the example's last as long as the sound does not fade."""
    heard = example.client.probabilities(example.grpc(), sounds.samples["conversation"])
    segments = np.array([*example.client.segments(heard)])
    expected = sounds.heard["conversation_segments"] + [0.03, -0.03]
    assert segments.shape == expected.shape == (2, 2)
    np.testing.assert_allclose(segments, expected, atol=2 * CHUNK / RATE)
    nobody = example.client.probabilities(example.grpc(), sounds.samples["nobody"])
    assert [*example.client.segments(nobody)] == []


def test_streams_at_the_same_time_do_not_hear_each_other(example: Example, sounds: Sounds) -> None:
    """Each is what it is alone, and the server runs chunks of several as one batch."""
    names = [f"stream_{number}" for number in range(5)] * 2
    start = threading.Barrier(len(names))

    def listen(number: int) -> list[float]:
        client = example.grpc()
        start.wait(SECONDS)
        heard: list[float] = example.client.probabilities(client, sounds.samples[names[number]], number + 1)
        return heard

    before = example.executions("speech_detection")
    with ThreadPoolExecutor(len(names)) as pool:
        results = list(pool.map(listen, range(len(names))))
    for name, heard in zip(names, results, strict=True):
        np.testing.assert_allclose(heard, sounds.heard[name], atol=1e-5)
    assert example.executions("speech_detection") - before < sum(map(len, results)) * 0.9


# The forms in the package, as they are: the client sends each chunk behind the end of the one before.

_STREAMING = """
backend: "{engine}"
max_batch_size: 0
input {{ name: "{audio}" data_type: TYPE_FP32 dims: [ {dims} ] }}
{rate}
output {{ name: "{speech}" data_type: TYPE_FP32 dims: [ {results} ] }}
sequence_batching {{ state {{ input_name: "state" output_name: "{state}" data_type: TYPE_FP32 dims: [ 2, 1, 128 ] }} }}
instance_group {{ kind: KIND_CPU count: 1 }}
"""
_IN_ONE_GO = """
backend: "onnxruntime"
max_batch_size: 0
input { name: "input" data_type: TYPE_FP32 dims: [ -1, 576 ] }
output { name: "speech_probs" data_type: TYPE_FP32 dims: [ -1 ] }
sequence_batching {
  state { input_name: "h" output_name: "hn" data_type: TYPE_FP32 dims: [ 1, 1, 128 ] }
  state { input_name: "c" output_name: "cn" data_type: TYPE_FP32 dims: [ 1, 1, 128 ] }
}
instance_group { kind: KIND_CPU count: 1 }
"""


class Form(NamedTuple):
    """A network of the package that takes a chunk in a request, on some engine, and what its tensors are called."""

    file: str
    engine: str = "onnxruntime"
    has_rate: bool = True
    dims: str = "-1, -1"
    results: str = "-1, 1"
    audio: str = "input"
    speech: str = "output"
    state: str = "stateN"

    def config(self) -> str:
        rate = 'input { name: "sr" data_type: TYPE_INT64 dims: [ 1 ] }' if self.has_rate else ""
        return _STREAMING.format(rate=rate, **self._asdict())


_FOR_ONE_RATE: Any = {"has_rate": False, "dims": "1, 576", "results": "1, 1"}
FORMS = {
    "both_rates": Form("silero_vad.onnx"),
    "opset_15": Form("silero_vad_16k_op15.onnx"),
    "opset_18": Form("silero_vad_op18_ifless.onnx"),
    "without_rate": Form("silero_vad_openvino_16k.onnx", **_FOR_ONE_RATE),
    "openvino": Form("silero_vad_openvino_16k.onnx", "openvino", **_FOR_ONE_RATE),
    # What the package's TorchScript keeps for itself is an argument and a result of the network inside it.
    "torchscript": Form(
        "silero_vad.jit", "pytorch", False, "-1, 576", "-1, 1", audio="x", speech="OUTPUT__0", state="OUTPUT__1"
    ),
}


def is_installed(form: Form) -> bool:
    return BY_BACKEND[form.engine].installed


def stateless(path: Path, folder: Path) -> Path:
    """The network for 16 kHz inside the package's TorchScript, as a file of its own."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it prefers torch.export by now
        torch.jit.load(path)._model.save(folder / "network.pt")
    return folder / "network.pt"


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository, data = tmp_path_factory.mktemp("forms"), unpacked(PACKAGE) / "silero_vad" / "data"
    place(data / "silero_vad_16k_sequence.onnx", repository / "in_one_go", _IN_ONE_GO)
    for model, form in FORMS.items():
        if model == "torchscript":
            network = stateless(data / form.file, tmp_path_factory.mktemp("network"))
            place(network, repository / model, form.config(), "model.pt")
        elif is_installed(form):
            place(data / form.file, repository / model, form.config())
    # The first full garbage collection visits all that PyTorch has made at its import: 0.14 s on two busy cores.
    with serving(repository) as server:
        yield server


def frames(samples: Samples, rate: int = RATE) -> NDArray[np.float32]:
    """FP32 [chunks, context and chunk]: each chunk behind the end of the one before it."""
    chunk, context = CHUNK * rate // RATE, CONTEXT * rate // RATE
    chunks = np.pad(samples, (0, -len(samples) % chunk)).reshape(-1, chunk)
    ends = np.concatenate([np.zeros((1, context), np.float32), chunks[:-1, -context:]])
    return np.concatenate([ends, chunks], axis=1)


def tensor(name: str, array: NDArray[Any], datatype: str) -> Any:
    return grpc.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array)


def listen(server: ServerProcess, model: str, samples: Samples, rate: int = RATE) -> NDArray[np.float32]:
    """The probability in each chunk, by a form of the package that takes one chunk in a request."""
    form, heard, rows = FORMS[model], [], frames(samples, rate)
    with grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        for index, row in enumerate(rows):
            inputs = [tensor(form.audio, row[None], "FP32")]
            if form.has_rate:
                inputs.append(tensor("sr", np.array([rate]), "INT64"))
            place_in_stream = {"sequence_start": index == 0, "sequence_end": index == len(rows) - 1}
            result = client.infer(model, inputs, sequence_id=7, **place_in_stream)
            heard.append(result.as_numpy(form.speech).item())
    return np.array(heard, np.float32)


@pytest.mark.parametrize("model", FORMS)
def test_a_form_of_the_package_as_it_is(forms: ServerProcess, sounds: Sounds, model: str) -> None:
    if not is_installed(FORMS[model]):
        pytest.skip(f"{FORMS[model].engine} is not installed")
    for name in ("conversation", "stream_1"):
        heard = listen(forms, model, sounds.samples[name])
        np.testing.assert_allclose(heard, sounds.heard[name], atol=1e-5)


def test_the_other_rate(forms: ServerProcess, sounds: Sounds) -> None:
    """Not by the form of opset 18, which hears something else at 8 kHz in ONNX Runtime alone, too."""
    heard = listen(forms, "both_rates", sounds.samples["conversation_8k"], 8000)
    np.testing.assert_allclose(heard, sounds.heard["conversation_8k"], atol=1e-5)


@pytest.mark.parametrize("chunks", [1, 16, 1000])
def test_many_chunks_in_a_request(forms: ServerProcess, sounds: Sounds, chunks: int) -> None:
    """The form that takes any number of chunks in a request; its memory is two states."""
    rows = frames(sounds.samples["conversation"])
    heard = []
    with grpc.InferenceServerClient(f"{HOST}:{forms.grpc_port}") as client:
        for first in range(0, len(rows), chunks):
            inputs = [tensor("input", rows[first : first + chunks], "FP32")]
            place_in_stream = {"sequence_start": first == 0, "sequence_end": first + chunks >= len(rows)}
            heard.append(client.infer("in_one_go", inputs, sequence_id=8, **place_in_stream).as_numpy("speech_probs"))
    np.testing.assert_allclose(np.concatenate(heard), sounds.heard["conversation"], atol=1e-5)
