"""SamplingParameters parameters: what is read, what is refused, and what the engine gets."""

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from modserve.backends.generation.program.contract import RequestError, read_json
from modserve.backends.generation.program.on_genai.sampling import (
    Grammar,
    SamplingParameters,
    generation_config,
    read,
    seed_of,
)


class StructuredOutputConfig(SimpleNamespace):
    pass


GENAI = SimpleNamespace(GenerationConfig=SimpleNamespace, StructuredOutputConfig=StructuredOutputConfig)


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels - 1):
        schema = {"properties": {"a": schema}}
    return schema


WIDE = {"properties": {f"p{index}": {"enum": [{"a": 1}]} for index in range(257)}}


def config(sampling: SamplingParameters, tokens: int = 10) -> Any:
    return generation_config(GENAI, sampling, 2, frozenset({2, 5}), tokens)


def test_defaults_are_those_of_vllm() -> None:
    sampling = read({})
    assert sampling == SamplingParameters()
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens, sampling.n) == (1, 1, 0, 16, 1)
    assert sampling.seed is None
    assert not sampling.greedy


@pytest.mark.parametrize(
    ("values", "field", "value"),
    [
        ({"temperature": 0}, "temperature", 0.0),
        ({"temperature": None}, "temperature", 1.0),
        ({"max_tokens": None}, "max_tokens", None),
        ({"max_tokens": 5.0}, "max_tokens", 5),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 40}, "top_k", 40),
        ({"stop": "a"}, "stop", ("a",)),
        ({"stop": ["a", "", "bc"]}, "stop", ("a", "bc")),
        ({"stop_token_ids": [7, 7, 9]}, "stop_token_ids", frozenset({7, 9})),
        ({"logprobs": 0}, "logprobs", True),
        ({"logprobs": 1}, "logprobs", True),
        ({"logprobs": None}, "logprobs", False),
        ({"logprobs": False}, "logprobs", False),
        ({"seed": -3}, "seed", -3),
        ({"best_of": 2, "n": 2}, "n", 2),
        ({"logit_bias": {}, "use_beam_search": False, "prompt_logprobs": None}, "n", 1),
        ({"skip_special_tokens": True, "detokenize": None, "bad_words": []}, "n", 1),
        ({"structured_outputs": {}}, "grammar", None),
        ({"structured_outputs": None}, "grammar", None),
        ({"structured_outputs": {"json": None, "json_object": False}}, "grammar", None),
    ],
)
def test_values(values: dict[str, Any], field: str, value: object) -> None:
    assert getattr(read(values), field) == value


@pytest.mark.parametrize(
    ("rules", "kind", "text"),
    [
        ({"json": {"type": "object"}}, "json_schema", '{"type": "object"}'),
        ({"json": '{"type": "object"}'}, "json_schema", '{"type": "object"}'),
        ({"json_object": True}, "json_schema", '{"type": "object"}'),
        ({"regex": r"\d+"}, "regex", r"\d+"),
        ({"grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
        ({"choice": ["yes", "a.b"]}, "regex", r"(yes)|(a\.b)"),
    ],
)
@pytest.mark.parametrize("name", ["guided_decoding", "structured_outputs"])
def test_structured_outputs(name: str, rules: dict[str, Any], kind: str, text: str) -> None:
    (key,) = rules
    assert read({name: rules}).grammar == Grammar(kind, text, f"{name}.{key}")
    assert read({name: json.dumps(rules)}).grammar == Grammar(kind, text, f"{name}.{key}")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -0.1}, "sampling parameter 'temperature' is -0.1, expected a number from 0 to 100"),
        ({"temperature": True}, "sampling parameter 'temperature' is true, expected a number"),
        ({"temperature": math.nan}, "sampling parameter 'temperature' is NaN, expected a number"),
        ({"temperature": "hot"}, "sampling parameter 'temperature' is \"hot\", expected a number"),
        ({"temperature": "h" * 78}, f"sampling parameter 'temperature' is \"{'h' * 78}\", expected a number"),
        ({"temperature": "h" * 79}, f"sampling parameter 'temperature' is \"{'h' * 79}…, expected a number"),
        ({"top_p": 0}, "sampling parameter 'top_p' is 0, expected a number above 0 and at most 1"),
        ({"top_k": -2}, "sampling parameter 'top_k' is -2, expected an integer of -1 or more"),
        ({"max_tokens": 0}, "sampling parameter 'max_tokens' is 0, expected an integer of 1 or more"),
        ({"max_tokens": 1.5}, "sampling parameter 'max_tokens' is 1.5, expected an integer"),
        ({"min_tokens": 20}, "'min_tokens' is 20, more than 'max_tokens', 16"),
        ({"n": 129}, "sampling parameter 'n' is 129, expected an integer from 1 to 128"),
        ({"best_of": 3}, "sampling parameter 'best_of' is 3, but the engine generates 'n' = 1"),
        ({"stop": [1]}, "sampling parameter 'stop' is [1], expected a string or a list of at most 64 strings"),
        ({"stop_token_ids": [1, "x"]}, "sampling parameter 'stop_token_ids[1]' is \"x\", expected an integer"),
        ({"logprobs": 5}, "sampling parameter 'logprobs' is 5, expected 0 or 1"),
        ({"presence_penalty": 3}, "sampling parameter 'presence_penalty' is 3, expected a number from -2 to 2"),
        ({"repetition_penalty": 0}, "'repetition_penalty' is 0, expected a number above 0"),
        ({"ignore_eos": 1}, "sampling parameter 'ignore_eos' is 1, expected true or false"),
        ({"logit_bias": {"1": 2}}, "sampling parameter 'logit_bias' is not supported"),
        ({"use_beam_search": True}, "sampling parameter 'use_beam_search' is not supported"),
        ({"skip_special_tokens": False}, "sampling parameter 'skip_special_tokens' is not supported"),
        ({"detokenize": False}, "sampling parameter 'detokenize' is not supported"),
        ({"spaces_between_special_tokens": False}, "'spaces_between_special_tokens' is not supported"),
        ({"temprature": 1}, "unknown sampling parameter 'temprature'; did you mean 'temperature'?"),
        ({"wheels": 4}, "unknown sampling parameter 'wheels'; known ones are: best_of, "),
        ({"structured_outputs": []}, "sampling parameter 'structured_outputs' is [], expected an object"),
        ({"structured_outputs": {"jsn": 1}}, "sampling parameter 'structured_outputs.jsn' is unknown"),
        ({"structured_outputs": {"json": "{", "x": None}}, "'structured_outputs.json' is not JSON: Expecting property"),
        ({"structured_outputs": {"json": 5}}, "'structured_outputs.json' is 5, expected a JSON schema"),
        ({"guided_decoding": {"regex": "a", "json": {}}}, "'guided_decoding' has json and regex, expected one of them"),
        ({"guided_decoding": {"choice": []}}, "'guided_decoding.choice' is [], expected a list of strings"),
        (
            {"guided_decoding": {"regex": "a" * 65_537}},
            "'guided_decoding.regex' has 65537 characters, expected at most",
        ),
        (
            {"guided_decoding": {"json": WIDE}},
            "'guided_decoding.json' has an object with 257 members, expected at most",
        ),
        ({"guided_decoding": {"regex": "(" * 65}}, "'guided_decoding.regex' is nested 65 deep, expected at most 64"),
        ({"guided_decoding": {"json": _deep(40)}}, "'guided_decoding.json' is nested 79 deep, expected at most 64"),
        ({"guided_decoding": {"regex": 5}}, "'guided_decoding.regex' is 5, expected a string"),
    ],
)
def test_refusals(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as raised:
        read(values)
    assert message in str(raised.value)


def test_unknown_names_may_be_somebody_elses() -> None:
    assert read({"tenant": "a", "seed": 1}, strict=False) == SamplingParameters(seed=1)
    with pytest.raises(RequestError, match="'logit_bias' is not supported"):
        read({"logit_bias": {"1": 2}}, strict=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "sampling_parameters is not JSON: Expecting property name .* at line 1, column 2"),
        (b"[1]", "sampling_parameters must be a JSON object, not an array"),
        (b"null", "must be a JSON object, not null"),
        (b"1.5", "must be a JSON object, not a number"),
        (b"true", "must be a JSON object, not a boolean"),
        (b'{"a": "\xff"}', "sampling_parameters is not UTF-8: byte 7 is invalid"),
        (b"[" * 100_000, "sampling_parameters is nested too deeply"),
    ],
)
def test_json_that_is_none(text: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_json(text)


def test_the_engine_decodes_greedily_at_temperature_zero() -> None:
    for temperature in (0, 1e-6):
        values = vars(config(read({"temperature": temperature, "top_p": 0.5, "top_k": 3})))
        assert not {"do_sample", "temperature", "top_p", "top_k"} & values.keys()


def test_what_the_engine_gets() -> None:
    values = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "min_tokens": 12,
        "logprobs": 1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.3,
        "stop_token_ids": [9],
        "ignore_eos": True,
        "structured_outputs": {"regex": "a"},
        "max_tokens": 50,
        "stop": ["never"],
    }
    assert vars(config(read(values))) == {
        "apply_chat_template": False,
        "do_sample": True,
        "eos_token_id": 2,
        "frequency_penalty": 0.2,
        "ignore_eos": True,
        "logprobs": 1,
        "max_new_tokens": 10,
        "min_new_tokens": 10,
        "min_p": 0.1,
        "presence_penalty": 0.1,
        "repetition_penalty": 1.3,
        "stop_token_ids": {2, 5, 9},
        "structured_output_config": StructuredOutputConfig(regex="a"),
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.9,
    }
    assert "top_k" not in vars(config(SamplingParameters()))


def test_seeds() -> None:
    assert [seed_of(SamplingParameters(seed=7), index, 1000) for index in range(3)] == [7, 8, 9]
    assert [seed_of(SamplingParameters(), index, 1000) for index in range(2)] == [1000, 1001]
    assert 0 <= seed_of(SamplingParameters(seed=-1), 0, 5) < 1 << 32
