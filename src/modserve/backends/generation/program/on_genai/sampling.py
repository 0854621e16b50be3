"""Sampling parameters, under vLLM's names, checked against the engine's abilities.

Pure: `generation_config` takes the engine's module as an argument.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..contract import RequestError, unknown

DEFAULT_MAX_TOKENS = 16
_GREEDY_BELOW = 1e-5
"""A temperature below this is none, as in vLLM: the engine would divide by it."""
_SEEDS = 1 << 32
_MOST_STOPS = 64
_MOST_GRAMMAR = 65_536
_MOST_DEPTH = 64
_MOST_PROPERTIES = 256
_BRACKETS = re.compile(r"[()\[\]{}]")
_ANY_OBJECT = '{"type": "object"}'


class Grammar(NamedTuple):
    """Required form of the output: `kind` is the name in the engine's StructuredOutputConfig."""

    kind: str
    text: str
    where: str
    """The parameter that it comes from, for messages."""


@dataclass(frozen=True)
class SamplingParameters:
    """Sampling parameters. `max_tokens` is None if only the context limits the output; `seed` is None if not set."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    min_tokens: int = 0
    n: int = 1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: bool = False
    grammar: Grammar | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < _GREEDY_BELOW


def read(values: Mapping[str, Any], *, strict: bool = True) -> SamplingParameters:
    """Read sampling parameters. Raises RequestError. Unknown names are ignored unless `strict`; names that vLLM has and
    this engine lacks are always errors, unless they have the value that changes nothing.
    """
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if name in _READERS:
            reader = _READERS[name]
            if value is not None:
                fields[reader.field] = reader.read(name, value)
            elif reader.null is not _ABSENT:
                fields[reader.field] = reader.null
        elif name in _LACKING:
            if value is not None and value != _LACKING[name]:
                raise RequestError(f"sampling parameter '{name}' is not supported: OpenVINO GenAI has nothing like it")
        elif strict:
            raise unknown(name, _READERS)
    best_of = fields.pop("best_of", None)
    sampling = SamplingParameters(**fields)
    if best_of not in (None, sampling.n):
        raise RequestError(f"sampling parameter 'best_of' is {best_of}, but the engine generates 'n' = {sampling.n}")
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise RequestError(
            f"sampling parameter 'min_tokens' is {sampling.min_tokens}, more than 'max_tokens', {sampling.max_tokens}"
        )
    return sampling


def generation_config(
    genai: Any, sampling: SamplingParameters, eos: int, stops: frozenset[int], max_tokens: int
) -> Any:
    """Return the engine's GenerationConfig for an output, without the seed. `eos` and `stops` are the model's tokens.

    Texts to stop at are not the engine's business: it would hold back as many tokens as the longest of them has.
    """
    config = genai.GenerationConfig()
    config.apply_chat_template = False
    config.eos_token_id = eos
    config.stop_token_ids = {*stops, eos, *sampling.stop_token_ids} - {-1}
    config.max_new_tokens = max_tokens
    config.min_new_tokens = min(sampling.min_tokens, max_tokens)
    config.ignore_eos = sampling.ignore_eos
    config.presence_penalty = sampling.presence_penalty
    config.frequency_penalty = sampling.frequency_penalty
    config.repetition_penalty = sampling.repetition_penalty
    config.logprobs = int(sampling.logprobs)
    if not sampling.greedy:
        config.do_sample = True
        config.temperature = sampling.temperature
        config.top_p = sampling.top_p
        config.min_p = sampling.min_p
        if sampling.top_k:
            config.top_k = sampling.top_k
    if sampling.grammar is not None:
        config.structured_output_config = genai.StructuredOutputConfig(**{sampling.grammar.kind: sampling.grammar.text})
    return config


def seed_of(sampling: SamplingParameters, index: int, chance: int) -> int:
    """Return the seed of output number `index`; `chance` replaces a missing seed."""
    return ((chance if sampling.seed is None else sampling.seed) + index) % _SEEDS


# Reading one value. Each function raises RequestError


def _real(lowest: float, highest: float, *, open_low: bool = False) -> Callable[[str, Any], float]:
    words = f"a number {'above' if open_low else 'from'} {lowest:g}"
    if highest < math.inf:
        words += f" {'and at most' if open_low else 'to'} {highest:g}"

    def read_real(name: str, value: Any) -> float:
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not good or not lowest <= value <= highest or (open_low and value == lowest):
            raise _fault(name, value, words)
        return float(value)

    return read_real


def _integer(lowest: int, highest: int = (1 << 31) - 1) -> Callable[[str, Any], int]:
    words = f"an integer of {lowest} or more" if highest == (1 << 31) - 1 else f"an integer from {lowest} to {highest}"

    def read_integer(name: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise _fault(name, value, words)
        return value

    return read_integer


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _fault(name, value, "true or false")
    return value


def _top_k(name: str, value: Any) -> int:
    return max(0, _integer(-1)(name, value))


def _logprobs(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if _integer(0)(name, value) > 1:
        raise _fault(name, value, "0 or 1: the engine tells the log probability of the chosen token alone")
    return True


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts) or len(texts) > _MOST_STOPS:
        raise _fault(name, value, f"a string or a list of at most {_MOST_STOPS} strings")
    return tuple(each for each in texts if each)


def _token_ids(name: str, value: Any) -> frozenset[int]:
    if not isinstance(value, list):
        raise _fault(name, value, "a list of token ids")
    read_id = _integer(0)
    return frozenset(read_id(f"{name}[{index}]", each) for index, each in enumerate(value))


def _read_structured(name: str, value: Any) -> Grammar | None:
    """Read both of vLLM's parameters: an object with one of `json`, `json_object`, `regex`, `choice`, `grammar`."""
    if isinstance(value, str):  # a client that can only send flat parameters
        value = _json(name, value)
    if not isinstance(value, dict):
        raise _fault(name, value, "an object")
    rules = {key: rule for key, rule in value.items() if rule not in (None, False)}
    if not rules:
        return None
    if len(rules) > 1:
        raise RequestError(f"sampling parameter '{name}' has {' and '.join(sorted(rules))}, expected one of them")
    ((key, rule),) = rules.items()
    where = f"{name}.{key}"
    if key == "json":
        schema = _json(where, rule) if isinstance(rule, str) else rule
        if not isinstance(schema, dict | bool):
            raise _fault(where, rule, "a JSON schema: an object, or its text")
        grammar = _limit_grammar("json_schema", rule if isinstance(rule, str) else json.dumps(rule), where)
        widest = _widest(schema)
        if widest > _MOST_PROPERTIES:
            raise RequestError(
                f"sampling parameter '{where}' has an object with {widest} members, expected at most {_MOST_PROPERTIES}"
            )
        return grammar
    if key == "json_object":
        _flag(where, rule)
        return _limit_grammar("json_schema", _ANY_OBJECT, where)
    if key == "choice":
        if not isinstance(rule, list) or not rule or not all(isinstance(each, str) for each in rule):
            raise _fault(where, rule, "a list of strings")
        return _limit_grammar("regex", "|".join(f"({re.escape(each)})" for each in rule), where)
    if key in ("regex", "grammar"):
        if not isinstance(rule, str):
            raise _fault(where, rule, "a string")
        return _limit_grammar(key, rule, where)
    raise RequestError(f"sampling parameter '{where}' is unknown: json, json_object, regex, choice and grammar are not")


def _limit_grammar(kind: str, text: str, where: str) -> Grammar:
    """Limit a grammar's size. Compiling stalls all outputs; its time grows with the squares of depth and of members."""
    if len(text) > _MOST_GRAMMAR:
        raise RequestError(f"sampling parameter '{where}' has {len(text)} characters, expected at most {_MOST_GRAMMAR}")
    depth = deepest = 0
    for bracket in _BRACKETS.findall(text):
        depth += 1 if bracket in "([{" else -1
        deepest = max(deepest, depth)
    if deepest > _MOST_DEPTH:
        raise RequestError(f"sampling parameter '{where}' is nested {deepest} deep, expected at most {_MOST_DEPTH}")
    return Grammar(kind, text, where)


def _widest(schema: Any) -> int:
    """Return the largest number of members of an object in a schema."""
    widest, rest = 0, [schema]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            widest = max(widest, len(value))
            rest += value.values()
        elif isinstance(value, list):
            rest += value
    return widest


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise RequestError(f"sampling parameter '{where}' is not JSON: {place}") from None
    except RecursionError:
        raise RequestError(f"sampling parameter '{where}' is nested too deeply") from None


def _fault(name: str, value: Any, expected: str) -> RequestError:
    shown = json.dumps(value, default=str)
    shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
    return RequestError(f"sampling parameter '{name}' is {shown}, expected {expected}")


class _Reader(NamedTuple):
    field: str
    read: Callable[[str, Any], Any]
    null: Any
    """Meaning of null, if not the default."""


_ABSENT = object()


def _same(name: str, read_value: Callable[[str, Any], Any], null: Any = _ABSENT) -> tuple[str, _Reader]:
    return name, _Reader(name, read_value, null)


_READERS: dict[str, _Reader] = dict(
    [
        _same("temperature", _real(0.0, 100.0)),
        _same("top_p", _real(0.0, 1.0, open_low=True)),
        _same("top_k", _top_k),
        _same("min_p", _real(0.0, 1.0)),
        _same("max_tokens", _integer(1), None),
        _same("min_tokens", _integer(0)),
        _same("n", _integer(1, 128)),
        _same("best_of", _integer(1, 128)),
        _same("seed", _integer(-(1 << 63), (1 << 64) - 1)),
        _same("stop", _texts),
        _same("include_stop_str_in_output", _flag),
        _same("stop_token_ids", _token_ids),
        _same("ignore_eos", _flag),
        _same("presence_penalty", _real(-2.0, 2.0)),
        _same("frequency_penalty", _real(-2.0, 2.0)),
        _same("repetition_penalty", _real(0.0, math.inf, open_low=True)),
        _same("logprobs", _logprobs),
        ("guided_decoding", _Reader("grammar", _read_structured, _ABSENT)),
        ("structured_outputs", _Reader("grammar", _read_structured, _ABSENT)),
    ]
)
_LACKING: Mapping[str, Any] = {
    "allowed_token_ids": [],
    "bad_words": [],
    "detokenize": True,
    "logit_bias": {},
    "lora_name": "",
    "prompt_logprobs": None,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": None,
    "use_beam_search": False,
}
"""Parameters of vLLM that this engine lacks, with the value that changes nothing."""
