"""Requests with JSON arrays of 2^24 elements and more, in every place: ``python tests/fuzz/endless_arrays.py COUNT``.

A process of its own, since parsers in other languages have been known to end it, and with limited memory. Prints what
became of each request as JSON.
"""

import json
import resource
import sys
import zlib

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


def main(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    texts = {name: document.replace("ARRAY", array("0", count)) for name, document in _PLACES.items()}
    for datatype, element in _DATA.items():
        document = (_TENSOR % datatype).replace("COUNT", str(count))
        texts[datatype] = document.replace("ARRAY", array(element, count))
    texts["nested"] = (_TENSOR % "UINT8").replace("COUNT", str(count)).replace("ARRAY", nested("7", count))
    outcomes: dict[str, str] = {}
    for name in list(texts):
        text = texts.pop(name).encode()
        outcomes[name] = outcome(text)
        if name in ("outputs", "UINT8"):
            packed = zlib.compress(text, 1)
            del text
            outcomes[f"{name}, compressed"] = outcome(compression.decode(packed, "deflate", _LIMIT))
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]))
