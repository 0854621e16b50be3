"""Log probabilities as vLLM's backend gives them, in the two forms that OpenAI has."""

from collections.abc import Mapping
from typing import Any

from .choice import Alternatives

_LEAST = -9999.0
"""Stands for minus infinity, as in OpenAI's API: JSON has none."""


def chat_logprobs(alternatives: Alternatives, top: int) -> dict[str, Any]:
    """`logprobs` of a choice of ``chat/completions``."""
    content = []
    for token in alternatives:
        entries = list(token.values())
        if not entries:
            continue
        likely = sorted(entries, key=_rank)[:top]
        content.append({**_entry(entries[0]), "top_logprobs": [_entry(each) for each in likely]})
    return {"content": content, "refusal": None}


def completion_logprobs(alternatives: Alternatives, top: int, offset: int) -> dict[str, Any]:
    """`logprobs` of a choice of ``completions``, whose text so far has `offset` characters."""
    tokens, values, best, offsets = [], [], [], []
    for token in alternatives:
        entries = list(token.values())
        if not entries:
            continue
        text = _token(entries[0])
        tokens.append(text)
        values.append(_value(entries[0]))
        best.append({_token(each): _value(each) for each in sorted(entries, key=_rank)[:top]})
        offsets.append(offset)
        offset += len(text)
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": best if top else None, "text_offset": offsets}


def _entry(token: Mapping[str, Any]) -> dict[str, Any]:
    text = _token(token)
    return {"token": text, "logprob": _value(token), "bytes": list(text.encode(errors="replace"))}


def _token(token: Mapping[str, Any]) -> str:
    return str(token.get("decoded_token") or "")


def _value(token: Mapping[str, Any]) -> float:
    value = token.get("logprob")
    return max(float(value), _LEAST) if isinstance(value, int | float) else _LEAST


def _rank(token: Mapping[str, Any]) -> float:
    rank = token.get("rank")
    return rank if isinstance(rank, int | float) else float("inf")
