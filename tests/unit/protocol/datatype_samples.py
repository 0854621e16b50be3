"""One small tensor of every datatype, in each form in which it travels."""

from typing import Any, NamedTuple

import numpy as np

from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Tensor


class Sample(NamedTuple):
    datatype: Datatype
    elements: list[Any]
    """As the elements of an array."""
    json: str
    """As a JSON array, going out."""
    raw: bytes
    """As binary data."""

    @property
    def tensor(self) -> Tensor:
        """Of shape [1, 2]."""
        array = np.empty(2, dtype=self.datatype.numpy)
        array[:] = self.elements
        return Tensor.from_array(array.reshape(1, 2), self.datatype)


SAMPLES = [
    Sample(dtypes.BOOL, [True, False], "[true,false]", b"\x01\x00"),
    Sample(dtypes.UINT8, [0, 255], "[0,255]", b"\x00\xff"),
    Sample(dtypes.UINT16, [1, 65535], "[1,65535]", b"\x01\x00\xff\xff"),
    Sample(dtypes.UINT32, [1, 4294967295], "[1,4294967295]", b"\x01\0\0\0\xff\xff\xff\xff"),
    Sample(dtypes.UINT64, [1, 2**64 - 1], "[1,18446744073709551615]", b"\x01" + bytes(7) + b"\xff" * 8),
    Sample(dtypes.INT8, [-128, 127], "[-128,127]", b"\x80\x7f"),
    Sample(dtypes.INT16, [-32768, 32767], "[-32768,32767]", b"\x00\x80\xff\x7f"),
    Sample(dtypes.INT32, [-(2**31), 2**31 - 1], "[-2147483648,2147483647]", b"\0\0\0\x80\xff\xff\xff\x7f"),
    Sample(
        dtypes.INT64,
        [-(2**63), 2**63 - 1],
        "[-9223372036854775808,9223372036854775807]",
        bytes(7) + b"\x80" + b"\xff" * 7 + b"\x7f",
    ),
    Sample(dtypes.FP16, [0.5, 1], "[0.5,1.0]", b"\x00\x38\x00\x3c"),
    Sample(dtypes.BF16, [0.5, -1], "[0.5,-1.0]", b"\x00\x3f\x80\xbf"),
    Sample(dtypes.FP32, [0.1, -1.5], "[0.10000000149011612,-1.5]", b"\xcd\xcc\xcc\x3d\x00\x00\xc0\xbf"),
    Sample(dtypes.FP64, [0.1, 1], "[0.1,1.0]", b"\x9a\x99\x99\x99\x99\x99\xb9\x3f" + bytes(6) + b"\xf0\x3f"),
    Sample(dtypes.BYTES, ["aé".encode(), b""], '["aé",""]', b"\x03\0\0\0a\xc3\xa9\0\0\0\0"),
]
IDS = [sample.datatype.name for sample in SAMPLES]
