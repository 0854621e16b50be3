"""No field of OpenAI's, vLLM's or TGI's that holds a text to something is dropped: honoured, or refused by its name."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.tensors import dtypes
from modserve.text.chat import fields
from modserve.text.chat.items import read_response_request
from modserve.text.chat.prompts import TextModel
from modserve.text.chat.requests import TextRequest, read_chat, read_completion
from modserve.text.openai_errors import RequestFieldError

TOOL = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "object"}
BOTH: dict[str, Any] = {
    "allowed_token_ids": [1],
    "audio": {"voice": "a"},
    "bad_words": ["a"],
    "best_of": 2,
    "chat_template": "{{ messages }}",
    "documents": [{"text": "a"}],
    "ebnf": "root ::= a",
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "grammar": {"type": "regex", "value": "a"},
    "guideline": "a",
    "guided_choice": ["a"],
    "guided_grammar": "root ::= a",
    "guided_json": SCHEMA,
    "guided_json_object": True,
    "guided_regex": "a",
    "guided_whitespace_pattern": " ",
    "ignore_eos": True,
    "json_schema": SCHEMA,
    "length_penalty": 2,
    "logit_bias": {"1": 1},
    "logits_processors": ["a"],
    "min_tokens": 1,
    "modalities": ["text", "audio"],
    "prompt_logprobs": 0,
    "regex": "a",
    "repetition_detection": {"max_pattern_size": 2},
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "stop_token_ids": [1],
    "structured_outputs": {"regex": "a"},
    "suffix": "a",
    "thinking_token_budget": 4,
    "tool_prompt": "a",
    "truncate_prompt_tokens": 4,
    "use_beam_search": True,
    "web_search_options": {"search_context_size": "low"},
}
OWN: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "echo": True,
        "instructions": "a",
        "max_output_tokens": 4,
        "response_format": {"type": "json_object", "schema": SCHEMA},
        "text": {"format": {"type": "json_object"}},
    },
    "completions": {
        "continue_final_message": True,
        "instructions": "a",
        "max_output_tokens": 4,
        "response_format": {"type": "json_object"},
        "tool_choice": "required",
        "tools": [TOOL],
        "top_logprobs": 2,
    },
    "responses": {
        "background": True,
        "continue_final_message": True,
        "conversation": "a",
        "echo": True,
        "logprobs": True,
        "max_completion_tokens": 4,
        "max_tokens": 4,
        "n": 2,
        "previous_response_id": "a",
        "prompt": {"id": "a"},
        "response_format": {"type": "json_object"},
        "text": {"format": {"type": "json_object", "schema": SCHEMA}},
    },
}
READ: dict[str, Callable[[Mapping[str, Any]], TextRequest]] = {
    "chat/completions": lambda said: (
        read_chat({"model": "m", "messages": [{"role": "user", "content": "a"}], **said}).text
    ),
    "completions": lambda said: read_completion({"model": "m", "prompt": "a", **said}).text,
    "responses": lambda said: read_response_request({"model": "m", "input": "a", **said}).chat.text,
}
DEMANDS = [(call, name, value) for call, own in OWN.items() for name, value in {**BOTH, **own}.items()]


def text(name: str, *, optional: bool = False) -> TensorSpec:
    return TensorSpec(name, dtypes.BYTES, (1,), optional=optional)


def read(call: str, said: Mapping[str, Any]) -> TextRequest | RequestFieldError:
    try:
        return READ[call](said)
    except RequestFieldError as error:
        return error


@pytest.fixture(scope="module")
def function() -> TextModel:
    """A model that takes no sampling parameter."""
    return TextModel(ModelConfig("f", "python", inputs=(text("prompt"),), outputs=(text("output"),)), None)


@pytest.fixture(scope="module")
def engine() -> TextModel:
    inputs = (text("text_input"), text("sampling_parameters", optional=True))
    return TextModel(ModelConfig("e", "vllm", inputs=inputs, outputs=(text("text_output"),)), None)


@pytest.mark.parametrize(("call", "name", "value"), DEMANDS, ids=[f"{call}-{name}" for call, name, _ in DEMANDS])
def test_a_demand_reaches_the_engine_or_is_refused(
    function: TextModel, engine: TextModel, call: str, name: str, value: Any
) -> None:
    request = read(call, {name: value})
    if isinstance(request, RequestFieldError):
        said, _, advice = request.message.partition(": ")
        assert (request.param, said, advice != "") == (name, f"'{name}' is not supported", True)
        return
    assert request.sampling != READ[call]({}).sampling
    engine.check(request)
    with pytest.raises(RequestFieldError, match=f"model 'f' cannot be held to '{request.structure_field or name}'"):
        function.check(request)


@pytest.mark.parametrize("call", READ)
def test_values_that_ask_for_nothing(function: TextModel, call: str) -> None:
    nothing: dict[str, Any] = {
        **dict.fromkeys(BOTH),
        "best_of": 1,
        "continue_final_message": False,
        "function_call": "none",
        "functions": [],
        "length_penalty": 1.0,
        "modalities": ["text"],
        "n": 1,
        "tool_choice": "auto",
        "tools": [],
        "use_beam_search": False,
        **{name: each.neutral for name, each in fields.FIELDS.items() if isinstance(each, fields.Parameter)},
        fields.STRUCTURE: {},
    }
    function.check(READ[call](nothing))


def test_a_function_may_have_an_input_for_a_constraint() -> None:
    inputs = (text("prompt"), TensorSpec("min_tokens", dtypes.INT32, (1,), optional=True))
    counting = TextModel(ModelConfig("f", "python", inputs=inputs, outputs=(text("output"),)), None)
    counting.check(READ["completions"]({"min_tokens": 3}))
    with pytest.raises(RequestFieldError, match="'stop' and 'min_tokens' exclude each other"):
        counting.check(READ["completions"]({"min_tokens": 3, "stop": "a"}))


def test_a_function_may_take_a_list_of_tokens() -> None:
    for batch in (0, 4):
        inputs = (text("prompt"), TensorSpec("stop_token_ids", dtypes.INT64, (-1,), optional=True))
        config = ModelConfig("f", "python", max_batch_size=batch, inputs=inputs, outputs=(text("output"),))
        contract = TextModel(config, None).contract
        tensor = contract.inputs("a", False, {"stop_token_ids": [3, 4]}, False)["stop_token_ids"]
        assert tensor.array.tolist() == ([[3, 4]] if batch else [3, 4])
