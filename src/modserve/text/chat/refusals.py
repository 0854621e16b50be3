"""Fields of OpenAI, vLLM and TGI that change what a text may be, and that nothing here can honour.

A response that ignores one of them looks right, so a request with one is refused. Fields that express a preference
(``verbosity``) or describe the client are ignored, see `unknown_fields`. Fields that some models
can honour are in `fields.CONSTRAINTS`.
"""

from collections.abc import Mapping
from typing import Any, Final

from .. import unknown_fields
from .errors import field_error

CHAT, COMPLETIONS, RESPONSES = "chat/completions", "completions", "responses"

_STATELESS: Final = "nothing is stored, so send the whole conversation"
_STRUCTURE: Final = "send 'structured_outputs', an object with one of json, regex, choice and grammar"
_SYSTEM: Final = "write it into a message of the role system"
_NO_BEAMS: Final = "there is no beam search: send 'n' and choose"
_ANYWHERE: Final[Mapping[str, str]] = {
    "audio": "models give text alone",
    "best_of": "ask for 'n' choices and take the best of them",
    "chat_template": "set the parameter 'chat_template' of the model",
    "continue_final_message": "send the whole prompt to completions",
    "documents": "send 'chat_template_kwargs' with a member 'documents'",
    "ebnf": _STRUCTURE,
    "echo": "send the request to completions",
    "function_call": "send 'tool_choice'",
    "functions": "send 'tools'",
    "grammar": _STRUCTURE,
    "guideline": _SYSTEM,
    "guided_whitespace_pattern": "send 'structured_outputs' with a member 'whitespace_pattern'",
    "instructions": _SYSTEM,
    "json_schema": _STRUCTURE,
    "length_penalty": _NO_BEAMS,
    "logits_processors": "send 'logit_bias', 'bad_words' or 'allowed_token_ids'",
    "max_new_tokens": "send 'max_tokens'",
    "max_output_tokens": "send 'max_completion_tokens'",
    "min_new_tokens": "send 'min_tokens'",
    "modalities": "models give text alone",
    "prompt_logprobs": "nothing is known of the prompt's tokens",
    "regex": _STRUCTURE,
    "repetition_detection": "limit the text by 'max_tokens', or send 'repetition_penalty'",
    "suffix": "write it into the prompt, in the form that the model was trained on",
    "text": "send 'response_format'",
    "thinking_token_budget": "limit the text by 'max_completion_tokens'",
    "tool_prompt": _SYSTEM,
    "truncate_prompt_tokens": "shorten the prompt",
    "use_beam_search": _NO_BEAMS,
    "web_search_options": "models search nothing",
}
"""Field → what to do instead."""
_REFUSED: Final[Mapping[str, Mapping[str, str]]] = {
    CHAT: _ANYWHERE,
    COMPLETIONS: {
        **_ANYWHERE,
        "instructions": "write it into the prompt",
        "max_output_tokens": "send 'max_tokens'",
        "tool_choice": "send the conversation to chat/completions",
        "tools": "send the conversation to chat/completions",
        "top_logprobs": "send 'logprobs' with the number",
    },
    RESPONSES: {
        **_ANYWHERE,
        "background": "responses are not stored",
        "conversation": _STATELESS,
        "logprobs": "send 'top_logprobs'",
        "max_completion_tokens": "send 'max_output_tokens'",
        "max_new_tokens": "send 'max_output_tokens'",
        "max_tokens": "send 'max_output_tokens'",
        "n": "a response has one text: send the request several times",
        "previous_response_id": _STATELESS,
        "prompt": _STATELESS,
        "response_format": "send 'text' with a member 'format'",
    },
}
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "best_of": (1,),
    "function_call": ("auto", "none"),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "n": (1,),
    "tool_choice": ("auto", "none"),
}
"""Values that ask for nothing, beside null, false and whatever is empty."""


def check_names(call: str, document: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise `RequestFieldError` for a field that the call cannot honour, and log those without a meaning here."""
    if known.issuperset(document):
        return
    unknown = {}
    for name, value in document.items():
        if name in known:
            continue
        advice = _REFUSED[call].get(name)
        if advice is None:
            unknown[name] = value
        elif _asks(name, value):
            raise field_error(name, f"'{name}' is not supported: {advice}")
    unknown_fields.tell(call, unknown, known)


def _asks(name: str, value: object) -> bool:
    return not (value is None or value is False or value in ("", [], {}) or value in _NEUTRAL.get(name, ()))
