"""Requests over gRPC that are described alike have one form, by which a model knows them again."""

from collections.abc import Sequence

from modserve.core.requests.request import RequestForm
from modserve.pb import inference as pb
from modserve.protocol.grpc.grpc_messages import decode_request
from modserve.protocol.grpc.request_reader import RequestReader


def _form(reader: RequestReader, name: str, shape: Sequence[int], *raws: bytes, model: str = "m") -> RequestForm | None:
    message = pb.ModelInferRequest(model_name=model, raw_input_contents=raws)
    message.inputs.add(name=name, datatype="INT32", shape=shape)
    read = reader.read(message.SerializeToString())
    assert read is not None
    return decode_request(read).form


def test_requests_alike_have_one_form() -> None:
    reader = RequestReader()
    first = _form(reader, "x", (1, 2), b"\1" * 8)
    assert first is not None
    assert _form(reader, "x", (1, 2), b"\2" * 8) is first
    assert _form(reader, "x", (1, 2), b"\2" * 8, model="other") is first  # each model has its own list of forms


def test_other_names_shapes_and_sizes_have_other_forms() -> None:
    reader = RequestReader()
    forms = {
        _form(reader, "x", (1, 2), b"\1" * 8),
        _form(reader, "y", (1, 2), b"\1" * 8),
        _form(reader, "x", (2, 1), b"\1" * 8),
        _form(reader, "x", (1, 2), b"\1" * 4),
    }
    assert None not in forms
    assert len(forms) == 4


def test_what_is_too_long_to_be_remembered_has_no_form() -> None:
    assert _form(RequestReader(), "x" * 5000, (1, 2), b"\1" * 8) is None


def test_typed_contents_have_no_form() -> None:
    reader = RequestReader()
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="INT32", shape=(1,)).contents.int_contents.append(1)
    read = reader.read(message.SerializeToString())
    assert read is not None
    assert decode_request(read).form is None
