"""Headers that become parameters of requests, over HTTP and gRPC."""

import json
import re
from pathlib import Path

import pytest
from puppet_server import JSON_BODY, MAX_JSON, Stage, infer, numbers, request, stage
from rpc_calls import FakeCall

from modserve.core.errors import Code, ModserveError
from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.frontends.grpc.service import InferenceService
from modserve.pb import inference as pb
from modserve.protocol import header_forwarding
from modserve.protocol.grpc.infer_message import from_protobuf
from modserve.settings import GrpcSettings, HttpSettings, header_pattern

RESERVED = ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"]
HEADERS = [("X-User", "a"), ("Accept", "b"), ("x-user", "c"), ("X-User", "d")]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("x-user", (("X-User", "a, d"), ("x-user", "c"))),
        ("(?-i)x-user", (("x-user", "c"),)),
        ("^USER", ()),
        ("c{2}", (("Accept", "b"),)),
        (".", (("X-User", "a, d"), ("Accept", "b"), ("x-user", "c"))),
    ],
    ids=["any case", "case", "anchored", "anywhere", "all"],
)
def test_the_pattern_is_searched_in_names(pattern: str, expected: object) -> None:
    assert header_forwarding.matching(header_pattern(pattern), HEADERS) == expected


def test_binary_metadata_stay_behind() -> None:
    metadata: list[tuple[str, str | bytes]] = [("a-bin", b"\xff"), ("a", "1")]
    assert header_forwarding.from_metadata(re.compile("a"), metadata) == (("a", "1"),)


def test_without_a_pattern_nothing_goes_along() -> None:
    assert header_forwarding.matching(None, HEADERS) == header_forwarding.from_metadata(None, None) == ()


def test_a_header_replaces_a_parameter() -> None:
    asked = InferenceRequest("m", {}, parameters={"a": 1, "b": True})
    assert header_forwarding.with_headers(asked, (("a", "x"),)).parameters == {"a": "x", "b": True}


@pytest.mark.parametrize(
    "name",
    [
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
        "triton_a",
    ],
)
def test_reserved_names(name: str) -> None:
    with pytest.raises(ModserveError) as caught:
        header_forwarding.with_headers(InferenceRequest("m", {}), ((name, ""),))
    assert (caught.value.code, caught.value.message) == (
        Code.INVALID_ARG,
        f"Header '{name}' is reserved for Triton usage and cannot be forwarded.",
    )


def parameters(on: Stage) -> list[dict[str, ParameterValue]]:
    return [dict(inflight.request.parameters) for inflight in on.simple.submitted]


OPTIONS = HttpSettings(max_json=MAX_JSON, header_pattern=header_pattern("^x-|priority"))


@pytest.mark.parametrize(
    "target",
    [
        "/v2/models/simple/infer",
        "/v2/models/simple/%69nfer",  # the short cut does not know it
    ],
    ids=["connection", "application"],
)
async def test_over_http(tmp_path: Path, target: str) -> None:
    async with stage(tmp_path, None, options=OPTIONS) as on:
        client = on.connect()
        for value in ("1", "1", "2"):
            client.send(request(target=target, body=JSON_BODY, X_Request_ID=value, x_tag="t", Other="o"))
            await client.receive(len(client.answers) + 1)
        first = {"X-Request-ID": "1", "x-tag": "t"}
        assert parameters(on) == [first, first, {**first, "X-Request-ID": "2"}]


async def test_over_v1(tmp_path: Path) -> None:
    async with stage(tmp_path, None, options=OPTIONS) as on:
        client = on.connect()
        body = b'{"instances": [{"INPUT0": [1, 2], "INPUT1": [1, 2]}]}'
        for headers in ({"X-Tag": "t", "Other": "o"}, {"priority": "1"}):
            client.send(request(target="/v1/models/simple:predict", body=body, **headers))
        answers = await client.receive(2)
        assert [answer.status for answer in answers] == [200, 400]
        assert parameters(on) == [{"X-Tag": "t"}]


async def test_a_reserved_header_over_http(tmp_path: Path) -> None:
    async with stage(tmp_path, options=OPTIONS) as on:
        client = on.connect()
        client.send(infer(priority="u=1"), infer(Priority="u=1"))
        answers = await client.receive(2)
        assert json.loads(answers[0].body) == {
            "error": "Header 'priority' is reserved for Triton usage and cannot be forwarded."
        }
        assert (answers[0].status, answers[1].status) == (400, 200)
        assert parameters(on) == [{"Priority": "u=1"}]


async def test_over_grpc(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        message = pb.ModelInferRequest(model_name="simple")
        for name in ("INPUT0", "INPUT1"):
            message.inputs.add(name=name, datatype="INT32", shape=[1, 2])
            message.raw_input_contents.append(numbers(1, 2).tobytes())
        message.parameters["own"].int64_param = 1
        call = FakeCall(metadata=(("x-user", "a"), ("x-user", "b"), ("x-bin", b"\0"), ("other", "o")))
        await InferenceService(on.server, GrpcSettings(header_pattern=header_pattern("X-"))).ModelInfer(
            from_protobuf(message), call
        )
        await InferenceService(on.server, GrpcSettings()).ModelInfer(from_protobuf(message), call)
        assert parameters(on) == [{"own": 1, "x-user": "a, b"}, {"own": 1}]
