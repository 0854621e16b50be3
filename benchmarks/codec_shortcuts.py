"""What each short cut on an inference's path saves: microseconds of CPU a request, with it and without it.

    PYTHONPATH=build/compiled python benchmarks/codec_shortcuts.py

No server runs: each row calls what has the short cut, with the requests that its name tells. Both ways
take turns in one run, and the medians are compared. A whole request takes some 15 µs (benchmarks/results/tables.md).
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import NamedTuple

import numpy as np
from google.protobuf.message import Message

from modserve.core.requests.memory import MemoryBudget
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors.tensor import Tensor
from modserve.form import form
from modserve.frontends.http.wire.head_reader import HeadReader
from modserve.frontends.http.wire.reader import END, Reader
from modserve.pb import inference as pb
from modserve.protocol.grpc import infer_message
from modserve.protocol.grpc.request_reader import RequestReader
from modserve.protocol.grpc.response_writer import ResponseWriter
from modserve.protocol.http.infer_request import decode_request
from modserve.protocol.http.json_heads import JsonHeads
from modserve.settings import HttpSettings

_CALLS = 5_000
_ROUNDS = 15
_MOST_JSON = 2**20
_ONES = np.ones((1, 16), np.int32)
_INPUTS = [{"name": name, "datatype": "INT32", "shape": [1, 16]} for name in ("INPUT0", "INPUT1")]
_JSON = b'{"inputs":[%b]}'
_RESPONSE = InferenceResponse("simple", 1, {f"OUTPUT{n}": Tensor.from_array(_ONES) for n in (0, 1)}, "")

Work = Callable[[], object]


class ShortCut(NamedTuple):
    name: str
    with_it: Work
    without: Work


class Leaving(HeadReader):
    """Leaves each head to httptools."""

    def scan(self, data: bytes, start: int, whole: bool = False) -> None:
        return None


def json_body(binary: bool) -> bytes:
    source = '"parameters":{"binary_data_size":64}' if binary else f'"data":{list(range(16))}'
    tensors = [f'{{"name":"{name}","shape":[1,16],"datatype":"INT32",{source}}}' for name in ("INPUT0", "INPUT1")]
    return _JSON % ",".join(tensors).encode()


def http_heads() -> Iterator[ShortCut]:
    options, memory = HttpSettings(), MemoryBudget()
    text = json_body(True)
    body = text + bytes(128)
    lines = "POST /v2/models/simple/infer HTTP/1.1", "Host: localhost:8000", "User-Agent: client", "Accept: */*"
    lengths = f"Inference-Header-Content-Length: {len(text)}", f"Content-Length: {len(body)}"
    request = "\r\n".join((*lines, *lengths)).encode()
    reader, parser = (Reader(heads, options, memory) for heads in (HeadReader(options), Leaving(options)))
    numbers = iter(range(10**9))

    def read(by: Reader, more: bytes = b"") -> None:
        by.feed(request + more + END + body)
        while by.read_piece() is None:
            pass

    yield ShortCut("head_reader: the same head again", lambda: read(reader), lambda: read(parser))
    line = (
        b"\r\nX-Request-Id: 6f1%d\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        b"\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Envoy-Expected-Rq-Timeout-Ms: 15000"
    )
    yield ShortCut(
        "head_reader: through Envoy, with a tracer, another id each time",
        lambda: read(reader, line % next(numbers)),
        lambda: read(parser, line % next(numbers)),
    )


def http_json() -> Iterator[ShortCut]:
    heads = JsonHeads()
    binary, numbers = json_body(True), json_body(False)

    def decode(text: bytes, length: int | None, remembered: JsonHeads | None) -> None:
        decode_request("simple", None, text, length, 0, None, _MOST_JSON, remembered)

    def decode_next(texts: Iterator[bytes], binary: bool, remembered: JsonHeads | None) -> None:
        text = next(texts)
        decode(text + bytes(128) if binary else text, len(text) if binary else None, remembered)

    spread = {"sequence_id": 1, "sequence_start": True, "sequence_end": False, "priority": 1, "timeout": 1000}
    outputs = b',"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":%b}},{"name":"OUTPUT1"}]'
    for kind, members in (
        ("binary", binary[1:-1] + outputs % b"true"),
        ("JSON", numbers[1:-1] + outputs % b"false"),
    ):
        for name, variants in {
            "the same bytes": [b"{%b}" % members] * 1000,
            "another id": [b'{"id":"%d",%b}' % (number, members) for number in range(1000)],
            "another id, other parameters": [
                b'{"id":"%d",%b,"parameters":%b}'
                % (number, members, json.dumps({**spread, "sequence_id": number}, separators=(",", ":")).encode())
                for number in range(1000)
            ],
            "another id, eight models in turns": [
                b'{"id":"%d",%b}' % (number, members.replace(b"INPUT", b"IN%d_" % (number % 8)))
                for number in range(1000)
            ],
        }.items():
            read = partial(decode_next, cycle(variants), kind == "binary")
            yield ShortCut(f"json_heads: {kind}, {name}", partial(read, heads), partial(read, None))


def grpc() -> Iterator[ShortCut]:
    message = pb.ModelInferRequest(model_name="simple", id="1")
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        message.raw_input_contents.append(bytes(64))
    for name in ("OUTPUT0", "OUTPUT1"):
        message.outputs.add(name=name)
    data, reader, writer = message.SerializeToString(), RequestReader(), ResponseWriter()

    def by_protobuf() -> Message:
        response = pb.ModelInferResponse(model_name="simple", model_version="1")
        for name, tensor in _RESPONSE.outputs.items():
            response.outputs.add(name=name, datatype=tensor.datatype.name, shape=tensor.shape)
            response.raw_output_contents.append(bytes(tensor.raw))
        response.SerializeToString()
        return response

    yield ShortCut(
        "request_reader: a request without message objects",
        lambda: reader.read(data),
        lambda: infer_message.from_protobuf(pb.ModelInferRequest.FromString(data)),
    )
    yield ShortCut("response_writer: fields that repeat", lambda: writer.encode(_RESPONSE), by_protobuf)


def cpu_us(work: Work) -> float:
    began = time.process_time()
    for _ in range(_CALLS):
        work()
    return (time.process_time() - began) / _CALLS * 1e6


def main() -> None:
    print(f"{form()}; microseconds of CPU a request\n")
    print(f"{'short cut':60} {'with':>7} {'without':>8} {'saves':>7}")
    for name, with_it, without in (*http_heads(), *http_json(), *grpc()):
        pairs = [(cpu_us(with_it), cpu_us(without)) for _ in range(_ROUNDS)]
        quick, slow = (statistics.median(times) for times in zip(*pairs, strict=True))
        print(f"{name:60} {quick:7.2f} {slow:8.2f} {slow - quick:7.2f}")


if __name__ == "__main__":
    main()
