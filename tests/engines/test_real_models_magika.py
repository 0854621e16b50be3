"""Magika, which tells what kind of file some bytes are: an ensemble, asked for the best class, against the package."""

import gzip
import io
import json
import pickle
import sqlite3
import subprocess
import sys
import tarfile
import wave
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http
from model_packages import place, unpacked
from PIL import Image
from server_process import ServerProcess, serving
from wire import HOST

PACKAGE = "magika==1.0.3"
MODEL = "magika/models/standard_v3_3"

_FEATURES = '''
import numpy as np
import triton_python_backend_utils as pb_utils

BLOCK, SIDE, PADDING = 4096, 1024, 256


class TritonPythonModel:
    """The first and the last bytes of each file but for blanks, as numbers."""

    def execute(self, requests):
        responses = []
        for request in requests:
            files = pb_utils.get_input_tensor_by_name(request, "file").as_numpy()[:, 0]
            bytes = np.full((len(files), 2 * SIDE), PADDING, np.int32)
            for row, file in zip(bytes, files):
                start, end = file[:BLOCK].lstrip()[:SIDE], file[-BLOCK:].rstrip()[-SIDE:]
                row[: len(start)] = list(start)
                row[len(row) - len(end) :] = list(end)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("bytes", bytes)]))
        return responses
'''
_FEATURES_CONFIG = """
backend: "python"
max_batch_size: 64
input { name: "file" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "bytes" data_type: TYPE_INT32 dims: [ 2048 ] }
"""
_NETWORK_CONFIG = """
backend: "onnxruntime"
max_batch_size: 64
input { name: "bytes" data_type: TYPE_INT32 dims: [ 2048 ] }
output { name: "target_label" data_type: TYPE_FP32 dims: [ 214 ] label_filename: "labels.txt" }
dynamic_batching { }
"""
_ENSEMBLE = """
platform: "ensemble"
max_batch_size: 64
input { name: "file" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "kind" data_type: TYPE_FP32 dims: [ 214 ] }
ensemble_scheduling {
  step {
    model_name: "features"
    model_version: -1
    input_map { key: "file" value: "file" }
    output_map { key: "bytes" value: "bytes" }
  }
  step {
    model_name: "network"
    model_version: -1
    input_map { key: "bytes" value: "bytes" }
    output_map { key: "target_label" value: "kind" }
  }
}
"""
_PACKAGE_ITSELF = """
import pickle
import sys

sys.path.insert(0, sys.argv[1])
from magika import Magika

magika = Magika()
results = {name: magika.identify_bytes(file).prediction for name, file in pickle.load(sys.stdin.buffer).items()}
answers = {name: (str(each.dl.label), each.score) for name, each in results.items()}
sys.stdout.buffer.write(pickle.dumps(answers))
"""


def _picture(format: str) -> bytes:
    file = io.BytesIO()
    colours = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)
    Image.fromarray(colours).save(file, format)
    return file.getvalue()


def _archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("letter.txt"), "Dear all, " * 200)
        archive.writestr(zipfile.ZipInfo("list.txt"), "one\ntwo\n" * 100)
    return file.getvalue()


def _tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(__file__, "test.py")
    return file.getvalue()


def _sound() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes((np.sin(np.arange(4000) / 5) * 9000).astype("<i2").tobytes())
    return file.getvalue()


def _database() -> bytes:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE city (name TEXT, population INTEGER)")
        connection.executemany("INSERT INTO city VALUES (?, ?)", [(f"city {n}", n * 1000) for n in range(200)])
    return connection.serialize()


def _files() -> Mapping[str, bytes]:
    rows = [f"{number},{number**2},name {number}" for number in range(80)]
    table = {"cities": [{"name": f"city {n}", "population": n * 1000} for n in range(30)]}
    html = "<!DOCTYPE html>\n<html><head><title>A page</title></head><body>%s</body></html>"
    c = '#include <stdio.h>\n\nint main(int argc, char **argv) {\n  printf("%d\\n", argc);\n  return 0;\n}\n'
    java = "package a.b;\n\nimport java.util.List;\n\npublic class Main {\n  private final List<String> names;\n}\n"
    return {
        "python": Path(__file__).read_bytes(),
        "json": json.dumps(table, indent=2).encode(),
        "html": (html % "<p>Some words.</p>\n" * 20).encode(),
        "xml": b'<?xml version="1.0"?>\n<cities>' + b'<city name="a" size="3"/>\n' * 30 + b"</cities>\n",
        "c": c.encode() * 5,
        "java": java.encode(),
        "shell": b'#!/bin/bash\nset -eu\nfor file in *.txt; do\n  echo "$file" | sed s/a/b/\ndone\n' * 3,
        "csv": "\n".join(["number,square,name", *rows]).encode(),
        "yaml": b"kind: Pod\nmetadata:\n  name: a\n  labels:\n    app: b\nspec:\n  containers:\n  - name: c\n" * 4,
        "png": _picture("PNG"),
        "jpeg": _picture("JPEG"),
        "gif": _picture("GIF"),
        "bmp": _picture("BMP"),
        "zip": _archive(),
        "gzip": gzip.compress(Path(__file__).read_bytes(), mtime=0),
        "tar": _tar(),
        "wav": _sound(),
        "sqlite": _database(),
        "pickle": pickle.dumps({"numbers": list(range(500)), "names": [f"name {n}" for n in range(50)]}),
        "elf": Path(sys.executable).resolve().read_bytes()[:200_000],
        "blanks before and after": b" \n" * 900 + Path(__file__).read_bytes() + b"\n" * 1500,
        "longer than a block": b"int counter = 0;\n" * 5000,
        "noise": np.random.default_rng(0).bytes(5000),
        "nine bytes": b"some text",
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    package, repository = unpacked(PACKAGE) / MODEL, tmp_path_factory.mktemp("magika")
    place(package / "model.onnx", repository / "network", _NETWORK_CONFIG)
    labels = json.loads((package / "config.min.json").read_text())["target_labels_space"]
    (repository / "network" / "labels.txt").write_text("\n".join(labels))
    for model, config in (("features", _FEATURES_CONFIG), ("magika", _ENSEMBLE)):
        (repository / model / "1").mkdir(parents=True)
        (repository / model / "config.pbtxt").write_text(config)
    (repository / "features" / "1" / "model.py").write_text(_FEATURES)
    with serving(repository) as running:
        yield running


@pytest.fixture(scope="module")
def expected() -> Mapping[str, tuple[str, float]]:
    """What the package says of each file, and how sure it is."""
    script = [sys.executable, "-c", _PACKAGE_ITSELF, str(unpacked(PACKAGE))]
    done = subprocess.run(script, input=pickle.dumps(_files()), stdout=subprocess.PIPE, check=True)
    answers: Mapping[str, tuple[str, float]] = pickle.loads(done.stdout)
    return answers


def identify(server: ServerProcess, files: list[bytes]) -> list[tuple[str, float]]:
    file = http.InferInput("file", [len(files), 1], "BYTES")
    file.set_data_from_numpy(np.array([[content] for content in files], np.object_))
    best = http.InferRequestedOutput("kind", class_count=1)
    with http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        classes = client.infer("magika", [file], outputs=[best]).as_numpy("kind").ravel()
    return [(label.decode(), float(score)) for score, _, label in (each.split(b":") for each in classes)]


def assert_same(actual: list[tuple[str, float]], expected: list[tuple[str, float]]) -> None:
    """In ONNX Runtime alone, too, a score differs by up to 0.001 with what else is in the batch."""
    assert [label for label, _ in actual] == [label for label, _ in expected]
    assert [score for _, score in actual] == pytest.approx([score for _, score in expected], abs=2e-3)


def test_files_are_what_the_package_says(server: ServerProcess, expected: Mapping[str, tuple[str, float]]) -> None:
    """One by one, all as one batch, and all at the same time."""
    files = list(_files().values())
    assert_same([identify(server, [file])[0] for file in files], list(expected.values()))
    assert_same(identify(server, files), list(expected.values()))
    with ThreadPoolExecutor(8) as pool:
        at_once = [each[0] for each in pool.map(lambda file: identify(server, [file]), files)]
    assert_same(at_once, list(expected.values()))


def test_most_files_are_what_they_are(expected: Mapping[str, tuple[str, float]]) -> None:
    """So that the comparison is one of many classes."""
    known = [name for name in _files() if " " not in name and name != "noise"]
    right = [name for name in known if expected[name][0] == name]
    assert len(right) > 0.9 * len(known), set(known) - set(right)
