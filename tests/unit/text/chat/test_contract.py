"""Which models generate text, what they are sent, and what is read in their responses."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import ModserveError
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Tensor
from modserve.text.chat.choice import TextChoice, usage_of
from modserve.text.chat.contract import Contract, Piece, contract_of, piece_of
from modserve.text.chat.requests import read_chat, read_completion
from modserve.text.chat.responses import chat_logprobs, completion_logprobs

VLLM = {
    "text_input": dtypes.BYTES,
    "stream?": dtypes.BOOL,
    "sampling_parameters?": dtypes.BYTES,
    "exclude_input_in_output?": dtypes.BOOL,
    "return_finish_reason?": dtypes.BOOL,
    "return_num_input_tokens?": dtypes.BOOL,
    "return_num_output_tokens?": dtypes.BOOL,
    "return_logprobs?": dtypes.BOOL,
}
OUTPUTS = {
    "text_output": dtypes.BYTES,
    "finish_reason": dtypes.BYTES,
    "num_input_tokens": dtypes.UINT32,
    "num_output_tokens": dtypes.UINT32,
    "logprobs": dtypes.BYTES,
}


def config(inputs: Mapping[str, Datatype], outputs: Mapping[str, Datatype], **more: Any) -> ModelConfig:
    """A ``?`` marks what is optional, ``*`` what has any length."""
    specs = [
        TensorSpec(name.rstrip("?*"), datatype, (-1,) if "*" in name else (1,), optional="?" in name)
        for name, datatype in inputs.items()
    ]
    given = tuple(TensorSpec(name, datatype, (-1,)) for name, datatype in outputs.items())
    return ModelConfig("m", "python", inputs=tuple(specs), outputs=given, **more)


def contract(inputs: Mapping[str, Datatype], outputs: Mapping[str, Datatype], **more: Any) -> Contract:
    made = contract_of(config(inputs, outputs, **more))
    assert made is not None
    return made


def values(inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.array.reshape(-1).tolist() for name, tensor in inputs.items()}


def test_the_whole_contract() -> None:
    inputs = contract(VLLM, OUTPUTS).inputs("hi", True, {"temperature": 0.5, "stop": ["x"]}, True)
    assert values(inputs) == {
        "text_input": [b"hi"],
        "stream": [True],
        "sampling_parameters": [b'{"temperature":0.5,"stop":["x"]}'],
        "exclude_input_in_output": [True],
        "return_finish_reason": [True],
        "return_num_input_tokens": [True],
        "return_num_output_tokens": [True],
        "return_logprobs": [True],
    }
    assert values(contract(VLLM, {"text_output": dtypes.BYTES}).inputs("hi", False, {}, False)) == {
        "text_input": [b"hi"],
        "stream": [False],
        "exclude_input_in_output": [True],
    }


def test_shapes_have_the_dimension_of_the_batch() -> None:
    batched = contract(VLLM, OUTPUTS, max_batch_size=4).inputs("hi", False, {"seed": 1}, False)
    assert {tensor.shape for tensor in batched.values()} == {(1, 1)}


def test_parameters_as_inputs_of_their_own() -> None:
    knobs = {"prompt": dtypes.BYTES, "max_tokens?": dtypes.INT64, "stop?*": dtypes.BYTES, "temperature?": dtypes.FP32}
    inputs = contract(knobs, {"output": dtypes.BYTES}).inputs(
        "hi", False, {"max_tokens": 3, "stop": ["a", "b"], "temperature": 0.5, "top_p": 0.5}, False
    )
    assert values(inputs) == {"prompt": [b"hi"], "max_tokens": [3], "stop": [b"a", b"b"], "temperature": [0.5]}
    narrow = contract({"prompt": dtypes.BYTES, "seed?": dtypes.INT8}, {"output": dtypes.BYTES})
    with pytest.raises(ModserveError, match="input 'seed' of the model takes INT8, not 1000"):
        narrow.inputs("hi", False, {"seed": 1000}, False)


def test_messages_as_they_are() -> None:
    made = contract({"messages": dtypes.BYTES, "style?": dtypes.BYTES}, {"output": dtypes.BYTES})
    assert made.takes_messages
    assert values(made.inputs("[]", False, {}, False)) == {"messages": [b"[]"]}


def test_the_default_of_max_tokens() -> None:
    made = contract(VLLM, OUTPUTS, parameters={"default_max_tokens": "300"})
    assert values(made.inputs("", False, {}, False))["sampling_parameters"] == [b'{"max_tokens":300}']
    assert values(made.inputs("", False, {"max_tokens": 2}, False))["sampling_parameters"] == [b'{"max_tokens":2}']


def test_a_lone_surrogate() -> None:
    with pytest.raises(ModserveError, match=r"a lone surrogate, '\\ud800', which is no character"):
        contract(VLLM, OUTPUTS).inputs("a\ud800", False, {}, False)


@pytest.mark.parametrize(
    "none",
    [
        config({"x": dtypes.FP32}, {"y": dtypes.FP32}),
        config({"x": dtypes.FP32}, {"y": dtypes.BYTES}),
        config({"x": dtypes.BYTES}, {"y": dtypes.FP32}),
        config({"x": dtypes.BYTES}, {"y": dtypes.BYTES, "z": dtypes.BYTES}),
        config({"x": dtypes.BYTES, "z": dtypes.BYTES}, {"y": dtypes.BYTES}),
        config({}, {}),
        replace(config({}, {"y": dtypes.BYTES}), inputs=(TensorSpec("x", dtypes.BYTES, (2,)),)),
    ],
)
def test_what_does_not_generate_text(none: ModelConfig) -> None:
    assert contract_of(none) is None


def response(**outputs: Any) -> InferenceResponse:
    tensors = {name: Tensor.from_array(np.array(value)) for name, value in outputs.items()}
    return InferenceResponse("m", 1, tensors)


def test_pieces() -> None:
    made = contract(VLLM, OUTPUTS)
    logprobs = json.dumps([{"5": {"logprob": float("-inf"), "rank": 1, "decoded_token": "a"}}])
    piece = piece_of(
        made,
        response(
            text_output=np.array([b"a"], object),
            finish_reason=np.array([b"length"], object),
            num_input_tokens=np.array([7], np.uint32),
            num_output_tokens=np.array([2], np.uint32),
            logprobs=np.array([logprobs.encode()], object),
        ),
    )
    assert piece[:4] == (b"a", "length", 7, 2)
    assert piece.logprobs is not None
    assert chat_logprobs(piece.logprobs, 1)["content"][0]["logprob"] == -9999
    assert piece_of(made, response(finish_reason=np.array([b"None"], object))) == Piece(b"")
    assert piece_of(made, response(text_output=np.array([b"a", b"b"], object))).text == b"ab"
    assert piece_of(made, response(logprobs=np.array([b"null"], object))).logprobs is None


def choice(**fields: Any) -> TextChoice:
    request = read_chat({"model": "m", "messages": [{"role": "user", "content": ""}], **fields})
    return TextChoice(0, request.text, request.tools)


TOOL = {"function": {"name": "add"}}


@pytest.mark.parametrize(
    ("said", "pieces", "texts", "reason"),
    [
        ({}, [Piece(b"a"), Piece(b"b")], ["a", "b"], "stop"),
        ({}, [Piece(b"a", "length")], ["a"], "length"),
        ({}, [Piece(b"a", "abort")], ["a"], "stop"),
        ({"max_tokens": 2}, [Piece(b"a", None, 1, 1), Piece(b"b", None, 1, 1)], ["a", "b"], "length"),
        ({"max_tokens": 3}, [Piece(b"a", None, 1, 1), Piece(b"b", None, 1, 1)], ["a", "b"], "stop"),
        ({"stop": "b", "max_tokens": 1}, [Piece(b"ab", "length", 1, 1), Piece(b"c")], ["a", ""], "stop"),
        ({"tools": [TOOL]}, [Piece(b'{"name": "add"'), Piece(b"}")], ["", ""], "tool_calls"),
        ({"tools": [TOOL]}, [Piece(b"no"), Piece(b" call")], ["no", " call"], "stop"),
        ({"tools": [TOOL], "tool_choice": "required"}, [Piece(b"nonsense")], ["nonsense"], "stop"),
        ({"tools": [TOOL], "tool_choice": "required"}, [Piece(b'[{"name": "add"}]')], [""], "tool_calls"),
        ({"tools": [TOOL], "tool_choice": "required"}, [Piece(b'[{"name": "a', "length")], ['[{"name": "a'], "length"),
    ],
)
def test_choices(said: dict[str, Any], pieces: list[Piece], texts: list[str], reason: str) -> None:
    made = choice(**said)
    found = [made.add(piece, piece is pieces[-1]).text for piece in pieces]
    assert (found, made.finish_reason) == (texts, reason)


def test_only_one_call() -> None:
    made = choice(tools=[TOOL], parallel_tool_calls=False)
    delta = made.add(Piece(b'<tool_call>[{"name": "add"}, {"name": "add"}]</tool_call>'), True)
    assert (len(delta.calls), made.calls) == (1, 1)


def test_usage() -> None:
    request = read_completion({"model": "m", "prompt": ["a", "b"], "n": 2}).text
    choices = [TextChoice(index, request) for index in range(4)]
    for index, each in enumerate(choices):
        each.add(Piece(b"", None, 10 * (index // 2 + 1), 1), False)
        each.add(Piece(b"", None, None, 2), True)
    usage = usage_of(choices, 2)
    assert usage.document == {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}
    nobody_counts = usage_of([TextChoice(0, request)], 1)
    assert nobody_counts.document == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def test_log_probabilities() -> None:
    token = {
        "3": {"logprob": -2.0, "rank": 2, "decoded_token": "é"},
        "1": {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
    }
    (entry,) = chat_logprobs([token, {}], 1)["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("é", -2.0, [195, 169])
    assert [each["token"] for each in entry["top_logprobs"]] == ["a"]
    said = {
        "tokens": ["é", "é"],
        "token_logprobs": [-2.0, -2.0],
        "top_logprobs": [{"a": -0.5, "é": -2.0}] * 2,
        "text_offset": [5, 6],
    }
    assert completion_logprobs([token, token], 2, 5) == (said, 7)


def test_log_probabilities_of_parts_of_a_character() -> None:
    """ " ☀!" in tokens of its bytes, as OpenAI's API has them."""
    pieces = [b" \xe2", b"\x98", b"\x80!"]
    tokens = [
        {str(number): {"logprob": -1.0, "rank": None, "decoded_token": "\ufffd", "bytes": list(piece)}}
        for number, piece in enumerate(pieces)
    ]
    content = chat_logprobs(tokens, 0)["content"]
    assert [each["token"] for each in content] == [r" \xe2", r"\x98", r"\x80!"]
    assert b"".join(bytes(each["bytes"]) for each in content).decode() == " ☀!"
    said, end = completion_logprobs(tokens, 1, 3)
    assert (said["tokens"], said["text_offset"], end) == ([r"bytes: \xe2", r"bytes:\x98", r"bytes:\x80!"], [3, 4, 4], 6)
    assert said["top_logprobs"] == [{token: -1.0} for token in said["tokens"]]


@pytest.mark.parametrize("wrong", [None, "a", [256], [-1], [1.5], [True, 1]])
def test_bytes_that_are_none_leave_the_text(wrong: Any) -> None:
    (entry,) = chat_logprobs([{"1": {"logprob": -1.0, "decoded_token": "a", "bytes": wrong}}], 0)["content"]
    assert (entry["token"], entry["bytes"]) == ("a", [97])
