"""Records of a trace: their JSON, their order, and tensors as text."""

import csv
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId
from modserve.observability.trace_file import TraceRecord, data, render

SIMPLE = ModelId("simple", 3)


def test_the_text_of_a_trace() -> None:
    tensor = Tensor.from_array(np.array([[1, 2]], np.int32))
    records = [
        TraceRecord(30, "B"),
        TraceRecord(20, "TENSOR_QUEUE_INPUT", "IN", tensor),
        TraceRecord(10, "A"),
        TraceRecord(30, "C"),
    ]
    assert render(7, SIMPLE, "mine", records, parent_id=5) == (
        b'{"id":7,"model_name":"simple","model_version":3,"request_id":"mine","parent_id":5},'
        b'{"id":7,"timestamps":[{"name":"A","ns":10}]},'
        b'{"id":7,"activity":"TENSOR_QUEUE_INPUT","tensor":{"name":"IN","data":"1,2","shape":"1,2","dtype":"INT32"}},'
        b'{"id":7,"timestamps":[{"name":"B","ns":30}]},'
        b'{"id":7,"timestamps":[{"name":"C","ns":30}]}'
    )


def test_ids_are_escaped() -> None:
    (record,) = json.loads(b"[" + render(1, SIMPLE, 'a"\\\n', []) + b"]")
    assert record == {"id": 1, "model_name": "simple", "model_version": 3, "request_id": 'a"\\\n'}


@pytest.mark.parametrize(
    ("datatype", "values", "text"),
    [
        (dtypes.BOOL, [True, False], "1,0"),
        (dtypes.UINT8, [0, 255], "0,255"),
        (dtypes.INT8, [-128, 65], "-128,65"),
        (dtypes.INT64, [-(2**63)], "-9223372036854775808"),
        (dtypes.UINT64, [2**64 - 1], "18446744073709551615"),
        (dtypes.FP16, [0.5, 65504], "0.5,6.55e+04"),
        (dtypes.BF16, np.array([0.5, -2], ml_dtypes.bfloat16), "0.5,-2.0"),
        (dtypes.FP32, [0.1, 1e-7, 16777216], "0.1,1e-07,1.6777216e+07"),
        (dtypes.FP32, [float("nan"), float("-inf")], "nan,-inf"),
        (dtypes.FP64, [0.1], "0.1"),
        (dtypes.FP32, [], ""),
        (dtypes.BYTES, [b"a", b'say "x", y', b"\xff", "ä".encode()], '"a","say ""x"", y","\\xff","ä"'),
    ],
    ids=lambda value: str(value) if isinstance(value, Datatype) else "",
)
def test_elements(datatype: Datatype, values: Any, text: str) -> None:
    dtype = object if datatype is dtypes.BYTES else datatype.numpy
    tensor = Tensor.from_array(np.array(values, dtype), datatype)
    assert data(Tensor.from_raw(datatype, tensor.shape, bytes(tensor.raw))) == text


def test_many_elements_read_back_exactly() -> None:
    values = np.random.default_rng(1).standard_normal(40_000).astype(np.float32)
    read = np.array([float(text) for text in data(Tensor.from_array(values)).split(",")], np.float32)
    assert np.array_equal(read, values)


def test_bytes_read_back_as_csv() -> None:
    elements = ["plain", 'with "quotes"', "with, comma", ""]
    text = data(Tensor.from_array(np.array(elements, object), dtypes.BYTES))
    assert next(csv.reader([text], skipinitialspace=True)) == elements
