"""all-MiniLM-L6-v2 with padding by the server: texts of any length share a batch, on every engine that is installed."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpc
from engine_rows import FORMS
from model_packages import place
from numpy.typing import NDArray
from server_process import LOADED, ServerProcess, started
from wire import HOST, http

from modserve.backends.catalogue import BY_BACKEND

LENGTHS = (5, 31, 12, 64, 9, 9, 40, 23)
LOAD_SECONDS = 120.0
ENGINES = {"onnxruntime": "minilm_onnx", "openvino": "minilm_onnx", "pytorch": "minilm_torchscript"}

_CONFIG = """
backend: "{engine}"
default_model_filename: "{filename}"
max_batch_size: 8
input {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }}
input {{ name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }}
output {{ name: "{output}" data_type: TYPE_FP32 dims: [ -1, 384 ] }}
dynamic_batching {{ preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 600000000 }}
instance_group {{ kind: KIND_CPU count: 1 }}
parameters {{ key: "padding.axis.input_ids" value {{ string_value: "0" }} }}
parameters {{ key: "padding.mask" value {{ string_value: "attention_mask" }} }}
parameters {{ key: "padding.unpad.{output}" value {{ string_value: "0" }} }}
parameters {{ key: "padding.buckets" value {{ string_value: "1" }} }}
"""


def output_of(engine: str) -> str:
    return FORMS[ENGINES[engine]].names.get("token_embeddings", "token_embeddings")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("minilm")
    for engine, name in ENGINES.items():
        if BY_BACKEND[engine].installed:
            form = FORMS[name]
            config = _CONFIG.format(engine=engine, filename=form.filename, output=output_of(engine))
            place(form.path(), repository / engine, config, form.filename)
    # The first full garbage collection visits all that PyTorch has made at its import: 0.14 s on two busy cores.
    with started(repository) as running:
        running.wait_for(LOADED, LOAD_SECONDS)
        yield running
        running.stop()


def texts() -> list[NDArray[np.int64]]:
    """Token ids, INT64 [1, length] of each text."""
    source = np.random.default_rng(2)
    return [np.concatenate([[101], source.integers(1000, 25000, length - 2), [102]])[None] for length in LENGTHS]


@pytest.mark.parametrize("engine", ENGINES)
def test_texts_of_different_lengths_share_a_batch(server: ServerProcess, engine: str) -> None:
    """Clients give no mask, and each gets what ONNX Runtime alone makes of its text without any padding."""
    if not BY_BACKEND[engine].installed:
        pytest.skip(f"{engine} is not installed")
    alone = onnxruntime.InferenceSession(FORMS["minilm_onnx"].path())

    def embed(ids: NDArray[np.int64]) -> Any:
        with grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
            tensor = grpc.InferInput("input_ids", ids.shape, "INT64").set_data_from_numpy(ids)
            return client.infer(engine, [tensor]).as_numpy(output_of(engine))

    with ThreadPoolExecutor(len(LENGTHS)) as pool:
        results = list(pool.map(embed, texts()))
    for ids, result in zip(texts(), results, strict=True):
        (expected,) = alone.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        np.testing.assert_allclose(result, expected, atol=5e-5)
    batch = json.loads(http(server.http_port, "GET", f"/v2/models/{engine}/batches").body)["recent"][0]
    assert (batch["requests"], batch["elements"]) == (8, sum(LENGTHS))
    assert batch["padding"] == 8 * max(LENGTHS) - sum(LENGTHS)
