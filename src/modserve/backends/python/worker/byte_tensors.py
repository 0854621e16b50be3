"""BYTES tensors: each element is its length, four bytes little-endian, and its bytes."""

import struct
from typing import Any, List, Optional, Union

import numpy as np

Buffer = Union[bytes, bytearray, memoryview]


def serialize_byte_tensor(input_tensor: "np.ndarray[Any, Any]") -> Optional[Union[bytes, "tuple[()]"]]:
    """Encode an array of objects or bytes in raw form, in C order: bytes unchanged, all else as UTF-8 of its str().

    As in Triton, an empty array gives an empty tuple, and an array of another type None.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return raw_of_elements(input_tensor)


def raw_of_elements(array: "np.ndarray[Any, Any]") -> bytes:
    parts: List[bytes] = []
    for element in array.ravel().tolist():
        data = element if isinstance(element, bytes) else str(element).encode("utf-8")
        parts.append(struct.pack("<I", len(data)))
        parts.append(data)
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor: Buffer) -> "np.ndarray[Any, Any]":
    """Decode the elements of a raw form to an array of bytes objects with one dimension.

    Raises ValueError where a length goes beyond the end.
    """
    view = memoryview(encoded_tensor).cast("B")
    end, offset = len(view), 0
    elements: List[bytes] = []
    while offset < end:
        if offset + 4 > end:
            raise ValueError(f"the BYTES tensor ends inside the length of element {len(elements)}")
        start = offset + 4
        offset = start + int.from_bytes(view[offset:start], "little")
        if offset > end:
            raise ValueError(f"the BYTES tensor ends inside element {len(elements)}")
        elements.append(bytes(view[start:offset]))
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array
