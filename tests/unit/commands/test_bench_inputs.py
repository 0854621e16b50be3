"""What requests carry: made from a model's metadata, from files, from perf_analyzer's JSON; and their bytes."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from modserve.commands.bench.inputs import (
    DataOptions,
    Inputs,
    TargetInput,
    grpc_message,
    grpc_tag,
    http_path,
    http_request,
    http_tag,
    make,
)
from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.pb import inference as pb

NUMBERS = TargetInput("X", dtypes.INT32, (2,))
TEXTS = TargetInput("T", dtypes.BYTES, (-1,))
IMAGE = TargetInput("image", dtypes.FP32, (3, -1, -1))


def made(spec: TargetInput, data: DataOptions, batches: bool = False) -> Tensor:
    ([inputs], _, _) = make("m", [spec], batches, data)
    return inputs[spec.name]


def test_random_data_is_the_same_each_time() -> None:
    first, second = made(IMAGE, DataOptions()), made(IMAGE, DataOptions())
    assert first.shape == (3, 224, 224)
    assert bytes(first.raw) == bytes(second.raw)
    assert np.isfinite(first.array).all()


def test_what_was_assumed_is_said() -> None:
    remarks = make("m", [IMAGE, NUMBERS], False, DataOptions()).remarks
    assert remarks == ["input 'image' of shape [3, -1, -1] is sent as --shape image:3,224,224"]


def test_a_batch_is_the_first_dimension() -> None:
    assert made(NUMBERS, DataOptions(batch_size=5), batches=True).shape == (5, 2)
    assert made(NUMBERS, DataOptions(), batches=True).shape == (1, 2)


def test_zero() -> None:
    assert made(NUMBERS, DataOptions(zero=True)).array.tolist() == [0, 0]
    assert made(TEXTS, DataOptions(zero=True, shapes=(("T", (2,)),))).array.tolist() == [b"", b""]


def test_texts() -> None:
    texts = made(TEXTS, DataOptions(string_length=7, shapes=(("T", (3,)),))).array.tolist()
    assert [len(text) for text in texts] == [7, 7, 7]
    assert made(TEXTS, DataOptions(string_data="hü", shapes=(("T", (2,)),))).array.tolist() == ["hü".encode()] * 2


def test_an_array_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.array([4, 5], np.int16))
    assert made(NUMBERS, DataOptions(files=(("X", file),))).array.tolist() == [4, 5]
    assert made(NUMBERS, DataOptions(batch_size=2, files=(("X", file),)), batches=True).array.tolist() == [[4, 5]] * 2
    np.save(file, np.array([[4, 5], [6, 7], [8, 9]], np.int32))
    assert made(NUMBERS, DataOptions(files=(("X", file),)), batches=True).shape == (3, 2)


def test_the_bytes_of_a_file_are_a_string(tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(b"\x89PNG")
    assert made(TEXTS, DataOptions(files=(("T", file),))).array.tolist() == [b"\x89PNG"]


def document(tmp_path: Path, *entries: object) -> DataOptions:
    file = tmp_path / "data.json"
    file.write_text(json.dumps({"data": entries}))
    return DataOptions(file=file)


def test_the_json_of_perf_analyzer(tmp_path: Path) -> None:
    raw = base64.b64encode(np.array([7, 8], np.int32).tobytes()).decode()
    entries = (
        {"X": [1, 2], "T": ["a", "bc"]},
        {"X": {"content": [[3], [4]], "shape": [2]}, "T": {"content": ["d"], "shape": [1]}},
        [{"X": {"b64": raw}, "T": {"b64": base64.b64encode(b"e\xff").decode()}}],
    )
    requests, _, streams = make("m", [NUMBERS, TEXTS], False, document(tmp_path, *entries))
    assert streams == [2, 1]
    assert [each["X"].array.tolist() for each in requests] == [[1, 2], [3, 4], [7, 8]]
    assert [each["T"].array.tolist() for each in requests] == [[b"a", b"bc"], [b"d"], [b"e\xff"]]


def test_rows_of_a_batch_are_entries_in_turns(tmp_path: Path) -> None:
    data = document(tmp_path, {"X": [1, 2]}, {"X": [3, 4]}, {"X": [5, 6]})
    requests = make("m", [NUMBERS], True, DataOptions(batch_size=2, file=data.file)).requests
    assert [each["X"].array[:, 0].tolist() for each in requests] == [[1, 3], [3, 5], [5, 1]]


OPTIONAL = TargetInput("X", dtypes.INT32, (2,), optional=True)


def test_an_optional_input_is_sent_if_there_is_data_for_it(tmp_path: Path) -> None:
    specs = [OPTIONAL, TEXTS]
    shaped = DataOptions(shapes=(("X", (2,)),))
    assert [list(make("m", specs, False, each).requests[0]) for each in (DataOptions(), shaped)] == [["T"], ["X", "T"]]
    data = document(tmp_path, {"T": ["a"]}, {"T": ["b"], "X": [1, 2]})
    assert [list(each) for each in make("m", specs, False, data).requests] == [["T"], ["X", "T"]]
    with pytest.raises(ModserveError, match="optional ones are in some only"):
        make("m", specs, True, DataOptions(batch_size=2, file=data.file))


MISTAKES: dict[str, tuple[DataOptions, str]] = {
    "no batches": (DataOptions(batch_size=2), "model 'm' does not support batching, but '--batch-size' is 2"),
    "another input": (DataOptions(shapes=(("Y", (2,)),)), "'--shape': model 'm' has no input 'Y', only T, X"),
    "another shape": (DataOptions(shapes=(("X", (3,)),)), "'--shape': input 'X' has shape [2], got [3]"),
    "no file": (DataOptions(files=(("X", Path("nosuch.npy")),)), "cannot read 'nosuch.npy': No such file or directory"),
    "no array": (DataOptions(files=(("X", Path("a.png")),)), "'a.png' is for input 'X' of INT32: expected a .npy file"),
    "no data": (DataOptions(file=Path("nosuch.json")), "cannot read 'nosuch.json': No such file or directory"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake(case: str) -> None:
    data, text = MISTAKES[case]
    with pytest.raises(ModserveError) as caught:
        make("m", [NUMBERS, TEXTS], False, data)
    assert text in caught.value.message


WRONG_DOCUMENTS = {
    '{"data": []}': 'expected {"data": [{"INPUT": …}, …]}',
    "[1]": 'expected {"data": [{"INPUT": …}, …]}',
    "no": "is not JSON",
    '{"data": [[]]}': "or a list of such steps",
    '{"data": [1]}': "each entry of 'data' has to be an object",
    '{"data": [{}]}': "has an entry without input 'X'",
    '{"data": [{"X": [1, 2, 3]}]}': "the content of input 'X' does not fit INT32 [2]: 3 elements",
    '{"data": [{"X": ["a", 1]}]}': "the content of input 'X' does not fit INT32 [2]",
    '{"data": [{"X": {"b64": "AAAA"}}]}': "has 3 bytes, expected 8",
    '{"data": [{"X": {"b64": "!"}}]}': "is not base64",
    '{"data": [{"X": {"text": 1}}]}': "has neither 'content' nor 'b64'",
}


@pytest.mark.parametrize("text", WRONG_DOCUMENTS)
def test_a_document_with_a_mistake(text: str, tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text(text)
    with pytest.raises(ModserveError) as caught:
        make("m", [NUMBERS], False, DataOptions(file=file))
    assert WRONG_DOCUMENTS[text] in caught.value.message


def test_rows_of_several_shapes_make_no_batch(tmp_path: Path) -> None:
    data = document(tmp_path, {"T": ["a"]}, {"T": ["b", "c"]})
    with pytest.raises(ModserveError, match="input 'T' has several"):
        make("m", [TEXTS], True, DataOptions(batch_size=2, file=data.file))


INPUTS: Inputs = {
    "X": Tensor.from_array(np.array([1, 2], np.int32)),
    "T": Tensor.from_array(np.array([b"a"], object)),
}


def test_a_binary_request() -> None:
    request = http_request("h:1", http_path("/p", "a b", 3), INPUTS, [("X-Key", "k")], binary=True)
    assert request.after == b""
    head, _, body = request.before.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[:2] == ["POST /p/v2/models/a%20b/versions/3/infer HTTP/1.1", "Host: h:1"]
    assert lines[-1] == "X-Key: k"
    fields = dict(line.split(": ") for line in lines[1:])
    assert int(fields["Content-Length"]) == len(body)
    length = int(fields["Inference-Header-Content-Length"])
    document = json.loads(body[:length])
    assert document["parameters"] == {"binary_data_output": True}
    assert [row["parameters"] for row in document["inputs"]] == [{"binary_data_size": 8}, {"binary_data_size": 5}]
    assert body[length:] == b"\1\0\0\0\2\0\0\0" + b"\1\0\0\0a"


def test_a_request_of_json_alone() -> None:
    request = http_request("h:1", http_path("", "m", None), INPUTS, [], binary=False)
    head, _, body = request.before.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/models/m/infer HTTP/1.1\r\n")
    assert b"Inference-Header" not in head
    assert [row["data"] for row in json.loads(body)["inputs"]] == [[1, 2], ["a"]]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("sequence", [1, 2**31 - 1, "bench-2147483647"])
def test_a_request_of_a_sequence(binary: bool, sequence: int | str) -> None:
    before, after = http_request("h:1", "/", INPUTS, [], binary=binary, tagged=True)
    tag = http_tag(sequence, False, True)
    head, _, body = (before + tag + after).partition(b"\r\n\r\n")
    fields = dict(line.split(": ") for line in head.decode().split("\r\n")[1:])
    assert int(fields["Content-Length"]) == len(body)
    document = json.loads(body[: int(fields.get("Inference-Header-Content-Length", len(body)))])
    expected = {"sequence_id": sequence, "sequence_start": False, "sequence_end": True}
    assert document["parameters"] == expected | ({"binary_data_output": True} if binary else {})
    assert [row["name"] for row in document["inputs"]] == ["X", "T"]


@pytest.mark.parametrize("sequence", [1, 2**31 - 1, "bench-1"])
def test_a_message_of_a_sequence(sequence: int | str) -> None:
    whole = grpc_message("m", 2, INPUTS, {"flag": True}) + grpc_tag(sequence, True, False)
    message = pb.ModelInferRequest.FromString(whole)
    assert (message.model_name, len(message.raw_input_contents)) == ("m", 2)
    parameters = message.parameters
    assert sequence in (parameters["sequence_id"].int64_param, parameters["sequence_id"].string_param)
    flags = {key: parameters[key].bool_param for key in ("flag", "sequence_start", "sequence_end")}
    assert flags == {"flag": True, "sequence_start": True, "sequence_end": False}
    assert len(parameters) == 4


def test_strings_that_json_does_not_have() -> None:
    inputs = {"T": Tensor.from_array(np.array([b"\xff"], object))}
    with pytest.raises(ModserveError, match="not UTF-8"):
        http_request("h:1", "/", inputs, [], binary=False)


def test_a_message() -> None:
    message = pb.ModelInferRequest.FromString(grpc_message("m", 2, INPUTS))
    assert (message.model_name, message.model_version, len(message.raw_input_contents)) == ("m", "2", 2)
    assert [(row.name, row.datatype, list(row.shape)) for row in message.inputs] == [
        ("X", "INT32", [2]),
        ("T", "BYTES", [1]),
    ]
