"""Request fields of OpenAI's calls: a table of their treatment, and functions that read values.

If a response ignored a field that constrains the text, it would still look right. So such a field is implemented,
passed to the model, or refused. Fields that express a preference (``verbosity``) or describe the client are ignored,
see `unknown_fields`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from .. import unknown_fields
from ..openai_errors import RequestFieldError
from .errors import field_error

CHAT, COMPLETIONS, RESPONSES = "chat/completions", "completions", "responses"
MOST_CHOICES: Final = 128
_MOST_STOPS = 16
_LONGEST_STOP = 1000
"""Maximum length in characters: each piece of a text is compared with all prefixes of each stop sequence."""
STRUCTURE: Final = "structured_outputs"
"""Sampling parameter with the form of the text, named in refusals."""
KEEP_STOP: Final = "include_stop_str_in_output"


def wrong_type(param: str, expected: str, value: object) -> RequestFieldError:
    return field_error(param, f"'{param}' must be {expected}, not {_kind(value)}")


def boolean(document: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = document.get(name)
    if value is None:
        return default
    if type(value) is not bool:
        raise wrong_type(name, "a boolean", value)
    return value


def whole_number(document: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise wrong_type(name, "a whole number", value)
    if not least <= value <= most:
        raise field_error(name, f"'{name}' must be between {least} and {most}, not {value}")
    return value


def mapping(document: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = document.get(name)
    if value is None:
        return None
    if type(value) is not dict:
        raise wrong_type(name, "an object", value)
    return value


def text(document: Mapping[str, Any], name: str) -> str:
    """Return a required text."""
    value = document.get(name)
    if value is None:
        raise field_error(name, f"'{name}' is missing")
    if type(value) is not str:
        raise wrong_type(name, "a string", value)
    if not value:
        raise field_error(name, f"'{name}' is empty")
    return value


def stops(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the stop sequences."""
    value = document.get("stop")
    if value is None:
        return ()
    texts = value if type(value) is list else [value]
    if not all(type(each) is str for each in texts):
        raise wrong_type("stop", "a string or a list of strings", next(x for x in texts if type(x) is not str))
    if len(texts) > _MOST_STOPS:
        raise field_error("stop", f"'stop' has {len(texts)} sequences, at most {_MOST_STOPS} are possible")
    if "" in texts:
        raise field_error("stop", "'stop' has an empty sequence, which would end every text before it begins")
    longest = max(map(len, texts), default=0)
    if longest > _LONGEST_STOP:
        raise field_error(
            "stop", f"'stop' has a sequence of {longest} characters, at most {_LONGEST_STOP} are possible"
        )
    return tuple(texts)


def stream_usage(document: Mapping[str, Any], stream: bool) -> bool:
    """Read ``stream_options.include_usage``."""
    options = mapping(document, "stream_options")
    if options is None:
        return False
    if not stream:
        raise field_error("stream_options", "'stream_options' is for requests with 'stream': true")
    return boolean(options, "include_usage")


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), f"the number {value}" if isinstance(value, int | float) else "that")


def _number(
    document: Mapping[str, Any], name: str, least: int | float, most: int | float, *, is_above: bool = False
) -> object:
    """Read a number from `least` to `most`; `is_above`: excluding `least`, where sampling is impossible or divides by
    zero.

    The bounds are not just `float`: the compiled form would convert them to floats, also in its messages.
    """
    value = document.get(name)
    if type(value) is not int and type(value) is not float:
        raise wrong_type(name, "a number", value)
    assert isinstance(value, int | float), "one of these types: this is a bug"
    if is_above and value <= least:
        raise field_error(name, f"'{name}' must be above {least} and at most {most}, not {value}")
    if not least <= value <= most:
        raise field_error(name, f"'{name}' must be between {least} and {most}, not {value}")
    return value


def _list_of(document: Mapping[str, Any], name: str, kind: type, expected: str) -> object:
    value = document[name]
    if type(value) is not list:
        raise wrong_type(name, f"a list of {expected}s", value)
    for index, each in enumerate(value):
        if type(each) is not kind:
            raise wrong_type(f"{name}[{index}]", f"a {expected}", each)
    return value


class Parameter(NamedTuple):
    """A sampling parameter with the function that reads it, passed to models that take it.

    Other models ignore it, unless it is a `demand`, as a text that ignores it looks right. Then only the value
    `neutral` is accepted. Engines refuse what they do not support.
    """

    read: Callable[[Mapping[str, Any], str], object]
    demand: bool = False
    neutral: Any = None


class FormMember(NamedTuple):
    """A form of the text, as a member of `STRUCTURE`; empty for `STRUCTURE` itself."""

    member: str


class Refused(NamedTuple):
    """An unsupported field, with an alternative.

    The values in `neutral` are accepted, and so are null, false and empty values.
    """

    advice: str
    neutral: tuple[object, ...] = ()


_TOKENS: Final = partial(_list_of, kind=int, expected="token id")
_STATELESS: Final = "nothing is stored, so send the whole conversation"
_STRUCTURE: Final = "send 'structured_outputs', an object with one of json, regex, choice and grammar"
_SYSTEM: Final = "write it into a message of the role system"
_NO_BEAMS: Final = "there is no beam search: send 'n' and choose"
_CHATS: Final = "send the conversation to chat/completions"

FIELDS: Final[Mapping[str, Parameter | FormMember | Refused]] = {
    "temperature": Parameter(partial(_number, least=0, most=2)),
    "top_p": Parameter(partial(_number, least=0, most=1, is_above=True)),
    "min_p": Parameter(partial(_number, least=0, most=1)),
    "top_k": Parameter(partial(whole_number, least=-1, most=2**31 - 1)),
    "max_tokens": Parameter(partial(whole_number, least=1, most=2**31 - 1)),
    "seed": Parameter(partial(whole_number, least=-(2**63), most=2**63 - 1)),
    "presence_penalty": Parameter(partial(_number, least=-2, most=2)),
    "frequency_penalty": Parameter(partial(_number, least=-2, most=2)),
    "repetition_penalty": Parameter(partial(_number, least=0, most=100, is_above=True)),
    KEEP_STOP: Parameter(boolean),
    "allowed_token_ids": Parameter(_TOKENS, True, []),
    "bad_words": Parameter(partial(_list_of, kind=str, expected="string"), True, []),
    "ignore_eos": Parameter(boolean, True, False),
    "logit_bias": Parameter(mapping, True, {}),
    "min_tokens": Parameter(partial(whole_number, least=0, most=2**31 - 1), True, 0),
    "skip_special_tokens": Parameter(boolean, True, True),
    "spaces_between_special_tokens": Parameter(boolean, True, True),
    "stop_token_ids": Parameter(_TOKENS, True, []),
    STRUCTURE: FormMember(""),
    "guided_json": FormMember("json"),
    "guided_json_object": FormMember("json_object"),
    "guided_regex": FormMember("regex"),
    "guided_choice": FormMember("choice"),
    "guided_grammar": FormMember("grammar"),
    "audio": Refused("models give text alone"),
    "best_of": Refused("ask for 'n' choices and take the best of them", (1,)),
    "chat_template": Refused("set the parameter 'chat_template' of the model"),
    "documents": Refused("send 'chat_template_kwargs' with a member 'documents'"),
    "ebnf": Refused(_STRUCTURE),
    "echo": Refused("send the request to completions"),
    "function_call": Refused("send 'tool_choice'", ("auto", "none")),
    "functions": Refused("send 'tools'"),
    "grammar": Refused(_STRUCTURE),
    "guideline": Refused(_SYSTEM),
    "guided_whitespace_pattern": Refused("send 'structured_outputs' with a member 'whitespace_pattern'"),
    "instructions": Refused(_SYSTEM),
    "json_schema": Refused(_STRUCTURE),
    "length_penalty": Refused(_NO_BEAMS, (1,)),
    "logits_processors": Refused("send 'logit_bias', 'bad_words' or 'allowed_token_ids'"),
    "max_new_tokens": Refused("send 'max_tokens'"),
    "max_output_tokens": Refused("send 'max_completion_tokens'"),
    "min_new_tokens": Refused("send 'min_tokens'"),
    "modalities": Refused("models give text alone", (["text"],)),
    "prompt_logprobs": Refused("nothing is known of the prompt's tokens"),
    "regex": Refused(_STRUCTURE),
    "repetition_detection": Refused("limit the text by 'max_tokens', or send 'repetition_penalty'"),
    "suffix": Refused("write it into the prompt, in the form that the model was trained on"),
    "text": Refused("send 'response_format'"),
    "thinking_token_budget": Refused("limit the text by 'max_completion_tokens'"),
    "tool_prompt": Refused(_SYSTEM),
    "truncate_prompt_tokens": Refused("shorten the prompt"),
    "use_beam_search": Refused(_NO_BEAMS),
    "web_search_options": Refused("models search nothing"),
}
"""Fields of all calls, except messages and fields that select the returned data."""
_OF_CALLS: Final[Mapping[str, Mapping[str, Refused]]] = {
    CHAT: {},
    COMPLETIONS: {
        "continue_final_message": Refused("a prompt is always continued"),
        "instructions": Refused("write it into the prompt"),
        "max_output_tokens": Refused("send 'max_tokens'"),
        "tool_choice": Refused(_CHATS, ("auto", "none")),
        "tools": Refused(_CHATS),
        "top_logprobs": Refused("send 'logprobs' with the number"),
    },
    RESPONSES: {
        "background": Refused("responses are not stored"),
        "continue_final_message": Refused(_CHATS),
        "conversation": Refused(_STATELESS),
        "logprobs": Refused("send 'top_logprobs'"),
        "max_completion_tokens": Refused("send 'max_output_tokens'"),
        "max_new_tokens": Refused("send 'max_output_tokens'"),
        "max_tokens": Refused("send 'max_output_tokens'"),
        "n": Refused("a response has one text: send the request several times", (1,)),
        "previous_response_id": Refused(_STATELESS),
        "prompt": Refused(_STATELESS),
        "response_format": Refused("send 'text' with a member 'format'"),
    },
}
"""Fields refused by one call only, or with another reason."""
_PARAMETERS: Final = {name: field for name, field in FIELDS.items() if isinstance(field, Parameter)}
FORMS: Final[Mapping[str, str]] = {
    name: field.member for name, field in FIELDS.items() if isinstance(field, FormMember)
}
"""Fields that constrain the text → the corresponding member of `STRUCTURE`."""
PARAMETERS: frozenset[str] = frozenset({*_PARAMETERS, STRUCTURE, "stop"})
"""Sampling parameters, by their names in models."""
SAMPLING: frozenset[str] = PARAMETERS | {*FORMS, "n", "logprobs", "max_completion_tokens"}
COMMON: frozenset[str] = SAMPLING | {"model", "stream", "stream_options"}


def check_names(call: str, document: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise `RequestFieldError` for a field that the call cannot honour, and log unknown ones."""
    if known.issuperset(document):
        return
    unknown = {}
    for name, value in document.items():
        if name in known:
            continue
        field = _OF_CALLS[call].get(name) or FIELDS.get(name)
        if not isinstance(field, Refused):
            unknown[name] = value
        elif not (value is None or value is False or value in ("", [], {}) or value in field.neutral):
            raise field_error(name, f"'{name}' is not supported: {field.advice}")
    unknown_fields.tell(call, unknown, known)


def sampling(document: Mapping[str, Any], longest: str) -> dict[str, object]:
    """Return the sampling parameters by the contract's names, without `n` and `logprobs`.

    `longest`: a field equivalent to ``max_tokens``, which takes precedence over it. Raises `RequestFieldError`.
    """
    values: dict[str, object] = {}
    for name, parameter in _PARAMETERS.items():
        value = document.get(name)
        if value is not None and parameter.read(document, name) not in ([], {}):
            values[name] = value
    if document.get(longest) is not None:
        values["max_tokens"] = _PARAMETERS["max_tokens"].read(document, longest)
    sequences = stops(document)
    if sequences:
        values["stop"] = list(sequences)
    return values


def is_demand(name: str, value: object) -> bool:
    """Return whether a model must support a sampling parameter with this value."""
    parameter = _PARAMETERS.get(name)
    return name == STRUCTURE or (parameter is not None and parameter.demand and value != parameter.neutral)
