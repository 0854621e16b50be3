"""The datatype table, row by row."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.pb import inference as pb

# name, config name, bytes, numpy type, field of InferTensorContents, JSON kind
ROWS = [
    ("BOOL", "TYPE_BOOL", 1, np.bool_, "bool_contents", "bool"),
    ("UINT8", "TYPE_UINT8", 1, np.uint8, "uint_contents", "int"),
    ("UINT16", "TYPE_UINT16", 2, np.uint16, "uint_contents", "int"),
    ("UINT32", "TYPE_UINT32", 4, np.uint32, "uint_contents", "int"),
    ("UINT64", "TYPE_UINT64", 8, np.uint64, "uint64_contents", "int"),
    ("INT8", "TYPE_INT8", 1, np.int8, "int_contents", "int"),
    ("INT16", "TYPE_INT16", 2, np.int16, "int_contents", "int"),
    ("INT32", "TYPE_INT32", 4, np.int32, "int_contents", "int"),
    ("INT64", "TYPE_INT64", 8, np.int64, "int64_contents", "int"),
    ("FP16", "TYPE_FP16", 2, np.float16, None, "float"),
    ("BF16", "TYPE_BF16", 2, ml_dtypes.bfloat16, None, "float"),
    ("FP32", "TYPE_FP32", 4, np.float32, "fp32_contents", "float"),
    ("FP64", "TYPE_FP64", 8, np.float64, "fp64_contents", "float"),
    ("BYTES", "TYPE_STRING", 0, np.object_, "bytes_contents", "string"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_row(row: tuple[str, str, int, Any, str | None, str]) -> None:
    name, config_name, size, numpy, contents_field, json_kind = row
    found = dtypes.BY_NAME[name]
    assert found is dtypes.BY_CONFIG_NAME[config_name]
    assert found is getattr(dtypes, name)
    assert (found.size, found.numpy, found.contents_field) == (size, np.dtype(numpy), contents_field)
    assert found.json_kind == json_kind
    assert repr(found) == name


def test_there_are_no_other_rows() -> None:
    assert [row.name for row in dtypes.ALL] == [row[0] for row in ROWS]
    assert list(dtypes.BY_NAME) == [row[0] for row in ROWS]


def test_config_names_and_fields_are_those_of_the_messages() -> None:
    assert {*dtypes.BY_CONFIG_NAME, "TYPE_INVALID"} == set(pb.DataType.keys())
    fields = {row.contents_field for row in dtypes.ALL} - {None}
    assert fields == {field.name for field in pb.InferTensorContents.DESCRIPTOR.fields}


def test_invalid_is_in_no_index() -> None:
    assert dtypes.INVALID.name == "<invalid>"
    assert dtypes.INVALID not in (*dtypes.BY_NAME.values(), *dtypes.BY_CONFIG_NAME.values())


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=repr)
def test_from_numpy_finds_every_row(datatype: Datatype) -> None:
    assert dtypes.from_numpy(datatype.numpy) is datatype


@pytest.mark.parametrize(
    ("numpy", "expected"),
    [
        (">i4", dtypes.INT32),
        (">f8", dtypes.FP64),
        ("S5", dtypes.BYTES),
        ("U3", dtypes.BYTES),
        (">U3", dtypes.BYTES),
        ("c8", None),
        ("M8[s]", None),
        ("V4", None),
        ([("a", "i4")], None),
    ],
    ids=str,
)
def test_from_numpy_of_other_types(numpy: Any, expected: Datatype | None) -> None:
    assert dtypes.from_numpy(np.dtype(numpy)) is expected
