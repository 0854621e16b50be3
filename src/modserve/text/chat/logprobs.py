"""Log probabilities as vLLM's backend gives them, in the two forms that OpenAI has."""

from collections.abc import Mapping
from typing import Any

from .choice import Alternatives

_LEAST = -9999.0
"""Stands for minus infinity, as in OpenAI's API: JSON has none."""
_TOP_BITS, _WITHIN = 0xC0, 0x80
"""First two bits of a byte in UTF-8 that is not the first one of a character."""


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


def completion_logprobs(alternatives: Alternatives, top: int, offset: int) -> tuple[dict[str, Any], int]:
    """`logprobs` of a choice of ``completions`` whose text so far has `offset` characters, and how many it has then."""
    tokens, values, best, offsets = [], [], [], []
    for token in alternatives:
        entries = list(token.values())
        if not entries:
            continue
        tokens.append(_marked(entries[0]))
        values.append(_value(entries[0]))
        best.append({_marked(each): _value(each) for each in sorted(entries, key=_rank)[:top]})
        begun = [byte & _TOP_BITS != _WITHIN for byte in _bytes(entries[0])]  # of each byte, whether a character is
        offsets.append(offset if not begun or begun[0] else max(0, offset - 1))
        offset += sum(begun)
    said = {"tokens": tokens, "token_logprobs": values, "top_logprobs": best if top else None, "text_offset": offsets}
    return said, offset


def _entry(token: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": _token(token), "logprob": _value(token), "bytes": list(_bytes(token))}


def _bytes(token: Mapping[str, Any]) -> bytes:
    """Those that the model gives where a token is a part of a character, otherwise those of its text."""
    raw = token.get("bytes")
    if isinstance(raw, list) and all(type(byte) is int and 0 <= byte < 256 for byte in raw):
        return bytes(raw)
    return str(token.get("decoded_token") or "").encode(errors="replace")


def _token(token: Mapping[str, Any]) -> str:
    r"""The text of a token; in that of a part of a character, bytes are escaped, such as ``\xf0\x9f``."""
    return _bytes(token).decode(errors="backslashreplace")


def _marked(token: Mapping[str, Any]) -> str:
    """The same as ``completions`` has it, which gives no bytes beside it."""
    text = _token(token)
    return text if text.encode() == _bytes(token) else f"bytes:{text}"


def _value(token: Mapping[str, Any]) -> float:
    value = token.get("logprob")
    return max(float(value), _LEAST) if isinstance(value, int | float) else _LEAST


def _rank(token: Mapping[str, Any]) -> float:
    rank = token.get("rank")
    return rank if isinstance(rank, int | float) else float("inf")
