"""Responses that other processes keep come back as they were, or not at all."""

import json

import numpy as np
import pytest

from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.resources import response_cache
from modserve.resources.response_cache import MAGIC, UnusableError, from_bytes, to_bytes

KEY = b"k" * 32
RESPONSE = InferenceResponse(
    "m",
    3,
    {
        "numbers": Tensor.from_array(np.arange(6, dtype=np.int16).reshape(2, 3)),
        "texts": Tensor.from_array(np.array([b"", b"\xff\0", "ä".encode()], dtype=object), dtypes.BYTES),
        "nothing": Tensor.from_array(np.zeros((0, 4), np.float32)),
        "half": Tensor.from_raw(dtypes.BF16, (2,), b"\x80\x3f\x00\x40"),
    },
    "its id",
    {"p": 1, "q": "text", "r": True, "s": 0.5, "\ud800": "\udfff"},
    frozenset({"left out"}),
    77,
)


def changed(at: int, kept: bytes) -> bytes:
    return kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :]


def test_it_comes_back_without_its_id() -> None:
    same = from_bytes(KEY, to_bytes(KEY, RESPONSE))
    assert (same.model_name, same.model_version, same.id, same.parameters) == ("m", 3, "", RESPONSE.parameters)
    assert (same.skipped, same.waited_ns) == (RESPONSE.skipped, 0)
    assert list(same.outputs) == list(RESPONSE.outputs)
    for name, tensor in same.outputs.items():
        before = RESPONSE.outputs[name]
        assert (tensor.datatype, tensor.shape, bytes(tensor.raw)) == (before.datatype, before.shape, bytes(before.raw))


def test_anything_else_is_refused() -> None:
    kept = to_bytes(KEY, RESPONSE)
    for at in range(len(kept)):
        with pytest.raises(UnusableError):
            from_bytes(KEY, kept[:at])
        with pytest.raises(UnusableError):
            from_bytes(KEY, changed(at, kept))
    for foreign in (b"", b"0", b"{}", MAGIC, kept + b"x", kept.replace(b" 1\n", b" 2\n")):
        with pytest.raises(UnusableError):
            from_bytes(KEY, foreign)
    with pytest.raises(UnusableError, match="digest"):
        from_bytes(b"l" * 32, kept)


@pytest.mark.parametrize(
    "outputs",
    [
        [["x", "INT32", [2], 4]],
        [["x", "INT32", [-1], -4]],
        [["x", "INT32", [1], 8]],
        [["x", "BYTES", [3], 4]],
        [["x", "ODD", [1], 4]],
        [["x", "INT32", [1]]],
        [],
        7,
    ],
)
def test_a_head_that_lies(outputs: object, monkeypatch: pytest.MonkeyPatch) -> None:
    head = json.dumps({"model": "m", "version": 1, "outputs": outputs, "parameters": {}, "skipped": []}).encode()
    body = len(head).to_bytes(4, "big") + head + b"\0\0\0\0"
    with pytest.raises(UnusableError):
        from_bytes(KEY, MAGIC + response_cache._digest(KEY, body) + body)
