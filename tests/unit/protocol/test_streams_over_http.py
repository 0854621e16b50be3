"""How answers follow each other in an HTTP body, and what says that all have come."""

import json

import numpy as np
import pytest

from modserve.core.errors import ModserveError, internal
from modserve.core.requests.response import InferenceResponse, bare_end
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId
from modserve.protocol.http import infer_response
from modserve.protocol.http.framing import EVENTS, LINES, Framing, choose
from modserve.protocol.response_form import ResponseForm


@pytest.mark.parametrize(
    ("accept", "framing"),
    [
        ("", EVENTS),
        ("*/*", EVENTS),
        ("application/json", EVENTS),
        ("text/event-stream", EVENTS),
        ("application/x-ndjson", LINES),
        ("Application/X-NDJSON", LINES),
        ("application/x-ndjson, text/event-stream", EVENTS),
        ("application/x-ndjson, text/event-stream;q=0.9", LINES),
        ("application/x-ndjson;q=0.5, text/event-stream;q=0.9", EVENTS),
        ("application/x-ndjson, */*;q=0.1", LINES),
        ("application/*, text/event-stream;q=0.5", LINES),
        ("text/event-stream;q=0, */*", LINES),
        ("application/x-ndjson; charset=utf-8 ; q=0.4, text/*; q=0.3", LINES),
        ("application/x-ndjson;q=much, text/event-stream;q=0.1", EVENTS),
    ],
)
def test_the_framing_by_accept(accept: str, framing: Framing) -> None:
    assert choose(accept) is framing


def test_frames() -> None:
    assert EVENTS.frame(b"{}") == b"data: {}\n\n"
    assert LINES.frame(b"{}") == b"{}\n"


def response(*values: object) -> InferenceResponse:
    return InferenceResponse("m", 3, {"OUT": Tensor.from_array(np.array(values))}, "q", {"cost": 2})


@pytest.mark.parametrize(
    "response_form", [ResponseForm(), ResponseForm(all_binary=True), ResponseForm(binary=frozenset({"OUT"}))]
)
def test_a_response_is_that_of_infer_with_a_mark(response_form: ResponseForm) -> None:
    assert json.loads(infer_response.encode_stream_response(response(1, 2), response_form, False)) == {
        "id": "q",
        "model_name": "m",
        "model_version": "3",
        "parameters": {"cost": 2, "triton_final_response": False},
        "outputs": [{"name": "OUT", "datatype": "INT64", "shape": [2], "data": [1, 2]}],
    }


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(ModserveError, match=r"output 'OUT' holds bytes that are not UTF-8.*in a call of infer"):
        infer_response.encode_stream_response(response(b"\xff"), ResponseForm(), True)


def test_an_end_that_comes_alone() -> None:
    assert json.loads(infer_response.encode_stream_response(bare_end(ModelId("m", 3), "q"), ResponseForm(), True)) == {
        "id": "q",
        "model_name": "m",
        "model_version": "3",
        "parameters": {"triton_final_response": True},
        "outputs": [],
    }


@pytest.mark.parametrize(
    ("request_id", "final", "expected"),
    [
        ("", True, b'{"error":"no\\nluck","parameters":{"triton_final_response":true}}'),
        ("q", False, b'{"error":"no\\nluck","id":"q","parameters":{"triton_final_response":false}}'),
    ],
)
def test_a_failure(request_id: str, final: bool, expected: bytes) -> None:
    assert infer_response.encode_stream_error(internal("no\nluck"), request_id, final) == expected
