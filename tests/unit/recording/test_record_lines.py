"""A record as a line, and back."""

import json

import numpy as np
import pytest

from modserve.core.errors import Code
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.recording.record import (
    FileHead,
    FormatError,
    RecordedOutcome,
    RecordedTensor,
    RequestRecord,
    decode,
    encode,
    head_line,
    read_head,
)
from modserve.testing import tensor

FLOATS = {"datatype": "FP32", "base64": "AAAA"}


def recorded(value: Tensor) -> RecordedTensor:
    return RecordedTensor(value.datatype, value.shape, value)


def record(**fields: RecordedTensor) -> RequestRecord:
    return RequestRecord("m", 7, 1_700_000_000_123_456, None, fields)


def line(one: RequestRecord) -> bytes:
    return b"".join(encode(one))


@pytest.mark.parametrize("datatype", [each for each in dtypes.BY_NAME.values() if each.size], ids=str)
def test_numbers_are_exact(datatype: dtypes.Datatype) -> None:
    raw = np.random.default_rng(1).integers(0, 2, 24 * datatype.size, np.uint8).tobytes()
    written = record(x=recorded(Tensor.from_raw(datatype, (2, 3, 4), raw)))
    (read,) = decode(line(written), "m").inputs.values()
    assert (read.datatype, read.shape) == (datatype, (2, 3, 4))
    assert read.content is not None
    assert bytes(read.content.raw) == raw


def test_a_long_tensor_is_written_in_pieces() -> None:
    long = Tensor.from_array(np.random.default_rng(2).random(300_000))
    pieces = list(encode(record(x=recorded(long))))
    assert max(map(len, pieces)) <= 256 * 1024
    (read,) = decode(b"".join(pieces), "m").inputs.values()
    assert read.content is not None
    assert np.array_equal(read.content.array, long.array)


@pytest.mark.parametrize(
    ("elements", "as_texts"),
    [
        ([b"caf\xc3\xa9", b"", b'a\n"b"\x00'], True),
        ([b"\xff\xfe", b"text"], False),
        ([b"x" * 1_100_000], False),
        (["\u2028".encode()], True),
    ],
)
def test_texts_are_readable_where_they_can_be(elements: list[bytes], as_texts: bool) -> None:
    written = line(record(x=recorded(Tensor.from_array(np.array(elements, object)))))
    assert written.count(b"\n") == 1
    assert ("texts" in json.loads(written)["inputs"][0]) is as_texts
    (read,) = decode(written, "m").inputs.values()
    assert read.content is not None
    assert read.content.array.tolist() == elements


def test_everything_comes_back() -> None:
    written = RequestRecord(
        "m",
        3,
        1_700_000_000_000_001,
        2,
        {"secret": RecordedTensor(dtypes.FP32, (1, 2), None)},
        ("OUT",),
        "id \ud800",
        "acme",
        {"sequence_id": 2**64 - 1, "t": float("inf"), "b": True},
        ("authorization",),
        True,
        [
            RecordedOutcome(12.3, 4, {"OUT": recorded(tensor(dtypes.INT8, (3,)))}, {"p": 1}),
            RecordedOutcome(13.0, 4, {}),
            RecordedOutcome(14.0, code=Code.INTERNAL, message="no"),
            RecordedOutcome(15.0),
        ],
        True,
    )
    read = decode(line(written), "m")
    for name in ("number", "at_us", "version", "inputs", "requested", "id", "tenant", "parameters", "left_out", "cut"):
        assert getattr(read, name) == getattr(written, name), name
    assert read.decoupled
    outcomes = [(each.after_us, each.version, each.code, each.message, each.parameters) for each in read.outcomes]
    assert outcomes == [
        (12.3, 4, None, "", {"p": 1}),
        (13.0, 4, None, "", {}),
        (14.0, None, Code.INTERNAL, "no", {}),
        (15.0, None, None, "", {}),
    ]
    assert [None if each.outputs is None else list(each.outputs) for each in read.outcomes] == [["OUT"], [], None, None]


def test_heads() -> None:
    head = FileHead("a/b", "run", "server")
    assert read_head(head_line(head)) == head


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{}", "no file of '--record'"),
        (b'{"modserve_record": 2}', "its format is 2, and this version of modserve reads format 1"),
        (b"[1]", "it is no JSON object"),
        (b"\x00\xff", "it is no JSON"),
    ],
)
def test_heads_of_others(text: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_head(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": None}, "it is no record"),
        ({"at": "yesterday"}, "it is no record"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "base64": "?"}]}, "it is no record: Error"),
        ({"inputs": [{"name": "x", "datatype": "FP32"}]}, "it is no record: KeyError"),
        (
            {"outcomes": [{"after_us": 1, "version": 1, "outputs": [{"name": "x", "shape": [2], **FLOATS}]}]},
            "the content of output 'x' is not what its datatype and shape say",
        ),
        ({"outcomes": [{"after_us": 1, "error": {"code": "ODD", "message": ""}}]}, "it is no record: KeyError"),
    ],
)
def test_lines_of_others(change: dict[str, object], message: str) -> None:
    document = json.loads(line(record()))
    with pytest.raises(FormatError, match=message):
        decode(json.dumps({**document, **change}).encode(), "m")
