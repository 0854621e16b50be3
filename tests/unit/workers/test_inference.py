"""Requests and responses on their way between workers."""

import numpy as np
import pytest

from modserve.core.errors import Code, ModserveError, OverloadedError
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.workers import inference
from modserve.workers.link import HEAD, FrameKind, PeerLink


def tensor(*values: int) -> Tensor:
    return Tensor.from_raw(dtypes.BY_NAME["INT32"], (1, len(values)), np.array(values, np.int32).tobytes())


@pytest.mark.parametrize("id", [5, 2**64 - 1, "five"])
def test_a_request_arrives_as_it_was(id: int | str) -> None:
    parameters = {"sequence_id": id, "sequence_start": True, "timeout": 7, "x": 0.5}
    request = InferenceRequest("m", {"A": tensor(1, 2), "B": tensor(3)}, ("C",), 3, "r", parameters, 9, 7000)
    copy = inference.read_request(inference.write_request(request), 12)
    assert (copy.model_name, copy.outputs, copy.version, copy.id) == ("m", ("C",), 3, "r")
    assert (copy.parameters, copy.deadline_ns, copy.timeout_ns) == (parameters, 12, 7000)
    assert {name: bytes(each.raw) for name, each in copy.inputs.items()} == {
        name: bytes(each.raw) for name, each in request.inputs.items()
    }


def test_a_response_arrives_as_it_was() -> None:
    response = InferenceResponse("m", 2, {"C": tensor(4, 5)}, "r", {"a": True, "b": "text"}, frozenset({"D"}), 7)
    copy = inference.read_response(inference.write_response(response))
    assert (copy.model_name, copy.model_version, copy.id, copy.parameters) == ("m", 2, "r", {"a": True, "b": "text"})
    assert (copy.skipped, copy.waited_ns) == (frozenset({"D"}), 7)
    assert copy.outputs["C"].shape == (1, 2)
    assert bytes(copy.outputs["C"].raw) == bytes(tensor(4, 5).raw)


@pytest.mark.parametrize("error", [ModserveError(Code.NOT_FOUND, "no \0 such"), OverloadedError("full \ud800")])
def test_a_failure_arrives_with_its_code(error: ModserveError) -> None:
    copy = inference.read_failure(inference.write_failure(error))
    assert (type(copy), copy.code, copy.message) == (type(error), error.code, error.message)


@pytest.mark.parametrize("cut", range(1, 30, 3))
def test_frames_come_whole_however_they_are_cut(cut: int) -> None:
    frames: list[tuple[int, int, bytes]] = []
    link = PeerLink(lambda _, number, kind, content: frames.append((number, kind, content)), lambda _: None)
    sent = [(1, FrameKind.REQUEST, b"abc"), (2**63, FrameKind.CANCEL, b""), (3, FrameKind.LAST, b"x" * 40)]
    data = b"".join(HEAD.pack(len(content) + HEAD.size - 4, number, kind) + content for number, kind, content in sent)
    for at in range(0, len(data), cut):
        link.data_received(data[at : at + cut])
    assert frames == sent
