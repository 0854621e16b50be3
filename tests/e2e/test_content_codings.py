"""Compressed requests and answers, and raw binary requests, with the real clients and with literal ones."""

import asyncio
import gzip
from typing import Any

import numpy as np
import pytest
import tritonclient.http
import tritonclient.http.aio
from numpy.typing import NDArray
from server_process import ServerProcess
from sklearn.datasets import load_digits
from wire import HOST, http

A = np.arange(16, dtype=np.int32).reshape(1, 16)
ALGORITHMS = [None, "gzip", "deflate"]


def simple_inputs(binary: bool) -> list[Any]:
    inputs = [tritonclient.http.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for each in inputs:
        each.set_data_from_numpy(A, binary_data=binary)
    return inputs


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("answer", ALGORITHMS)
@pytest.mark.parametrize("request_", ALGORITHMS)
def test_every_combination_of_codings(
    server: ServerProcess, request_: str | None, answer: str | None, binary: bool
) -> None:
    outputs = [tritonclient.http.InferRequestedOutput(name, binary_data=binary) for name in ("OUTPUT0", "OUTPUT1")]
    with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        result = client.infer(
            "simple",
            simple_inputs(binary),
            outputs=outputs,
            request_compression_algorithm=request_,
            response_compression_algorithm=answer,
        )
    assert np.array_equal(result.as_numpy("OUTPUT0"), A + A)
    assert np.array_equal(result.as_numpy("OUTPUT1"), A - A)


async def test_an_aio_client_that_accepts_compression_by_itself(server: ServerProcess) -> None:
    client = tritonclient.http.aio.InferenceServerClient(f"{HOST}:{server.http_port}")
    try:
        results = await asyncio.gather(*(client.infer("simple", simple_inputs(True)) for _ in range(8)))
    finally:
        await client.close()
    assert all(np.array_equal(result.as_numpy("OUTPUT0"), A + A) for result in results)


def test_a_long_answer_is_compressed(server: ServerProcess) -> None:
    text = b'{"inputs":[{"name":"INPUT0","shape":[1,20000],"datatype":"INT32","data":[%b]}]}' % b",".join(
        [b"7"] * 20000
    )
    path = "/v2/models/identity_INT32/infer"
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    answer = http(server.http_port, "POST", path, gzip.compress(text), headers)
    plain = http(server.http_port, "POST", path, text)
    assert (answer.status, plain.status) == (200, 200)
    assert answer.headers["Content-Encoding"] == "gzip"
    assert len(answer.body) < len(plain.body) / 10
    assert gzip.decompress(answer.body) == plain.body


def test_a_coding_that_is_not_known(server: ServerProcess) -> None:
    answer = http(server.http_port, "POST", "/v2/models/simple/infer", b"{}", {"Content-Encoding": "br"})
    assert (answer.status, answer.body) == (501, b'{"error":"Unsupported compression type"}')
    assert answer.headers["Accept-Encoding"] == "gzip, deflate"


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_raw_request_is_the_picture_itself(server: ServerProcess, index: int) -> None:
    picture: NDArray[np.float32] = load_digits().data[index].astype(np.float32)
    headers = {"Inference-Header-Content-Length": "0"}
    answer = http(server.http_port, "POST", "/v2/models/digits/infer", picture.tobytes(), headers)
    result = tritonclient.http.InferenceServerClient.parse_response_body(
        answer.body, header_length=int(answer.headers["Inference-Header-Content-Length"])
    )
    assert result.as_numpy("label").tolist() == [[load_digits().target[index]]]


def test_a_raw_request_of_the_wrong_size(server: ServerProcess) -> None:
    headers = {"Inference-Header-Content-Length": "0"}
    answer = http(server.http_port, "POST", "/v2/models/digits/infer", bytes(255), headers)
    assert (answer.status, answer.body) == (
        400,
        b"{\"error\":\"[request id: <id_unknown>] input byte size mismatch for input 'image' for model 'digits'. "
        b'Expected 256, got 255"}',
    )
