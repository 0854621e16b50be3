"""A model of the Hugging Face Hub as a repository, against a stand-in for the hub: its API, its files, and its second
server for the large ones."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from server_here import serving_here, started_here
from wire import HOST, http

from text_folders import IDS, MODULES, write_folder

NAME = "org/tiny-embedder"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret"


def write_embedder(folder: Path) -> None:
    """A snapshot as the hub has it: one vector for each token; weights of other libraries, and code."""
    write_folder(folder, {"modules.json": MODULES, "config.json": {}, "1_Pooling/config.json": {}})
    table = np.random.default_rng(1).normal(size=(len(IDS), 8)).astype(np.float32)
    tokens = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "tokens", 8])
    node = helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])
    graph = helper.make_graph([node], "embedder", tokens, [output], [numpy_helper.from_array(table, "table")])
    (folder / "onnx").mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.save(model, folder / "onnx" / "model.onnx")
    for name in ("model.safetensors", "onnx/model_quantized.onnx", "pytorch_model.bin", "modeling_own.py", "README.md"):
        (folder / name).write_bytes(b"never fetched")


@dataclass
class Hub:
    """What the hub was asked for, and whether its next answers break off."""

    folder: Path
    port: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Paths, with the Authorization header."""
    broken: int = 0
    private: bool = False

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def fetched(self) -> list[str]:
        return sorted(path.partition(f"/resolve/{COMMIT}/")[2] for path, _ in self.requests if "/resolve/" in path)

    def listing(self) -> dict[str, Any]:
        siblings = []
        for path in sorted(each for each in self.folder.rglob("*") if each.is_file()):
            content = path.read_bytes()
            row: dict[str, Any] = {
                "rfilename": str(path.relative_to(self.folder)),
                "size": len(content),
                "blobId": hashlib.sha1(content).hexdigest(),
            }
            if path.suffix == ".onnx":
                row["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            siblings.append(row)
        return {"id": NAME, "sha": COMMIT, "siblings": siblings}


@contextmanager
def standing_in(folder: Path) -> Iterator[Hub]:
    hub = Hub(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            authorization = self.headers.get("Authorization", "")
            hub.requests.append((self.path, authorization))
            path = self.path.partition("?")[0]
            if path == f"/api/models/{NAME}/revision/main" and (not hub.private or authorization == f"Bearer {TOKEN}"):
                self._answer(json.dumps(hub.listing()).encode())
            elif path.startswith("/api/models/org/private"):
                self.send_error(401)
            elif match := re.fullmatch(f"/{NAME}/resolve/{COMMIT}/(.*)", path):
                if match[1].endswith(".onnx"):
                    self.send_response(302)
                    self.send_header("Location", f"http://localhost:{hub.port}/cdn/{match[1]}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    self._answer((hub.folder / match[1]).read_bytes())
            elif path.startswith("/cdn/"):
                self._answer((hub.folder / path.removeprefix("/cdn/")).read_bytes())
            else:
                self.send_error(404)

        def _answer(self, content: bytes) -> None:
            match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(match[1]) if match else 0
            self.send_response(206 if match else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            stop = len(content)
            if hub.broken and self.path.startswith("/cdn/"):
                hub.broken -= 1
                stop = start + (len(content) - start) // 2
                self.close_connection = True
            self.wfile.write(content[start:stop])

        def log_message(self, format: str, *arguments: Any) -> None: ...

    server = ThreadingHTTPServer((HOST, 0), Handler)
    hub.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    write_embedder(tmp_path / "snapshot")
    with standing_in(tmp_path / "snapshot") as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running


def options(tmp_path: Path, place: str = f"hf://{NAME}") -> list[str]:
    return [f"--model-repository={place}", f"--repository-cache-dir={tmp_path / 'cache'}"]


def embed(port: int) -> list[float]:
    answer = http(port, "POST", "/v1/embeddings", b'{"model": "tiny-embedder", "input": "the cat"}')
    assert answer.status == 200, answer.body
    vector: list[float] = json.loads(answer.body)["data"][0]["embedding"]
    return vector


def test_a_model_of_the_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is needed is fetched, and once: the second server finds it in the cache."""
    hub.private = True
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serving_here(options=options(tmp_path)) as server:
        vector = embed(server.http_port)
        assert TOKEN not in server.log
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)
    expected = ["1_Pooling/config.json", "config.json", "modules.json", "onnx/model.onnx", "tokenizer.json"]
    assert hub.fetched() == expected
    of_other_server = [authorization for path, authorization in hub.requests if path.startswith("/cdn/")]
    assert of_other_server == [""], "the token is for the hub alone"
    hub.requests.clear()
    with serving_here(options=options(tmp_path)) as server:
        assert embed(server.http_port) == vector
    assert hub.fetched() == []


def test_a_transfer_that_breaks_off_goes_on(hub: Hub, tmp_path: Path) -> None:
    hub.broken = 2
    with serving_here(options=options(tmp_path)) as server:
        embed(server.http_port)
    assert hub.broken == 0


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("hf://org/nothing", "there is no model 'org/nothing' with a revision 'main'"),
        ("hf://org/tiny-embedder@v9", "there is no model 'org/tiny-embedder' with a revision 'v9'"),
        ("hf://org/private", "the store does not accept the credentials: check HF_TOKEN, and the name"),
    ],
)
def test_what_is_not_there(hub: Hub, tmp_path: Path, place: str, message: str) -> None:
    with started_here(options=options(tmp_path, place)) as server:
        server.wait(1, errors=[re.escape(message)])


def test_a_model_in_another_form(hub: Hub, tmp_path: Path) -> None:
    (hub.folder / "onnx" / "model.onnx").unlink()
    with serving_here(options=options(tmp_path), errors=["has none of the files model.onnx, onnx/model.onnx"]):
        pass
    assert not [path for path in hub.fetched() if path]
