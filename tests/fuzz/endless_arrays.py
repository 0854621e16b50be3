"""Requests with JSON arrays of 2^24 elements and more: ``python tests/fuzz/endless_arrays.py COUNT [PLACE …]``.

A process of its own, since parsers in other languages have been known to end it, and with limited memory. Prints what
became of each request as JSON; without places, of those with an array in every place.
"""

import json
import resource
import sys
import zlib
from collections.abc import Sequence

from modserve.core.errors import ModserveError
from modserve.protocol import compression
from modserve.protocol.http import infer_request

_MEMORY = 2 * 2**30
_LIMIT = 256 * 1024 * 1024

_TENSOR = '{"inputs":[{"name":"IN","datatype":"%s","shape":[COUNT],"data":ARRAY}]}'
_PLACES = {
    "the document": "ARRAY",
    "id": '{"id":ARRAY,"inputs":[]}',
    "inputs": '{"inputs":ARRAY}',
    "outputs": '{"outputs":ARRAY,"inputs":[]}',
    "parameters": '{"parameters":ARRAY,"inputs":[]}',
    "a parameter": '{"parameters":{"x":ARRAY},"inputs":[]}',
    "shape": '{"inputs":[{"name":"IN","datatype":"UINT8","shape":ARRAY,"data":[1]}]}',
    "datatype": '{"inputs":[{"name":"IN","datatype":ARRAY,"shape":[1],"data":[1]}]}',
    "a tensor's parameter": '{"inputs":[{"name":"IN","datatype":"UINT8","shape":[1],"parameters":{"x":ARRAY}}]}',
    "an unknown key": '{"inputs":[],"x":ARRAY}',
    "data elsewhere": '{"inputs":[],"data":ARRAY}',
}
_DATA = {"UINT8": "7", "INT64": "7", "FP32": "7", "BOOL": "true", "BYTES": '"7"'}


def array(element: str, count: int) -> str:
    return f"[{','.join([element]) + (',' + element) * (count - 1)}]"


def nested(element: str, count: int) -> str:
    row = array(element, 2**12)
    rest = count % 2**12
    return f"[{array(row, count // 2**12)}{',' + array(element, rest) if rest else ''}]"


def outcome(text: bytes) -> str:
    """What became of a request: its tensor, or the beginning of the message."""
    try:
        request, _ = infer_request.decode_request("model", None, text, None, 0, None, _LIMIT)
    except ModserveError as error:
        return error.message[:50]
    tensor = request.inputs["IN"]
    return f"{len(tensor.raw)} bytes, {bytes(tensor.raw[-5:])!r}"


def document(place: str, count: int) -> bytes:
    """A request with an array of `count` elements there."""
    if place in _PLACES:
        return _PLACES[place].replace("ARRAY", array("0", count)).encode()
    datatype, write = ("UINT8", nested) if place == "nested" else (place, array)
    text = (_TENSOR % datatype).replace("COUNT", str(count))
    return text.replace("ARRAY", write(_DATA[datatype], count)).encode()


def main(count: int, places: Sequence[str]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    outcomes: dict[str, str] = {}
    for place in places or (*_PLACES, *_DATA, "nested"):
        text = document(place, count)
        outcomes[place] = outcome(text)
        if place in ("outputs", "UINT8"):
            packed = zlib.compress(text, 1)
            del text
            outcomes[f"{place}, compressed"] = outcome(compression.decode(packed, "deflate", _LIMIT))
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
