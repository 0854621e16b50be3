"""Loops over as many elements as a client likes let other threads run, compiled too."""

import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType

import numpy as np
import pytest

from modserve.core.runtime.event_loop import yield_now
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.core.wire import byte_strings
from modserve.protocol import classification
from modserve.protocol.grpc import typed_contents
from modserve.protocol.json import json_data

COUNT = 100_000
TEXTS = np.array([b"a", b"bc"] * (COUNT // 2), object)
RAW = byte_strings.encode_array(TEXTS)


def take(size: int) -> None:
    pass


def contents(datatype: dtypes.Datatype, element: bytes) -> None:
    typed_contents.decode(element * COUNT, datatype, COUNT, "IN", take)


LOOPS: dict[str, Callable[[], object]] = {
    "encode texts": lambda: byte_strings.encode_array(TEXTS),
    "count texts": lambda: byte_strings.count_elements(RAW),
    "decode texts": lambda: byte_strings.decode_array(RAW, COUNT),
    "encode strings": lambda: Tensor.from_array(np.array(["a", b"b"] * (COUNT // 2), object), dtypes.BYTES),
    "typed texts": lambda: contents(dtypes.BYTES, b"\x42\x01a"),
    "typed numbers, one by one": lambda: contents(dtypes.INT32, b"\x10\x01"),
    "JSON": lambda: json_data.from_tensor("OUT", Tensor.from_array(TEXTS, dtypes.BYTES)),
    "classes": lambda: classification.top_classes(
        Tensor.from_array(np.zeros(COUNT, np.float32), dtypes.FP32), COUNT, (), False
    ),
}


def times_called(function: Callable[[], None], work: Callable[[], object]) -> int:
    calls: list[CodeType] = []

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is function.__code__:
            calls.append(frame.f_code)

    sys.setprofile(record)
    try:
        work()
    finally:
        sys.setprofile(None)
    return len(calls)


def test_it_is_interpreted() -> None:
    """Or it would be as quick, and of no use."""
    assert inspect.isfunction(yield_now)


@pytest.mark.parametrize("name", LOOPS)
def test_long_loops(name: str) -> None:
    assert times_called(yield_now, LOOPS[name]) >= COUNT // 40_000
