"""The input of ``responses``: a text, or a list of items, which become the messages of a conversation.

==========================  ===================================================================
``message``, or no `type`   a message, whose content is a text or a list of parts with texts
``function_call``           a call that the model has made: part of the assistant's message
``function_call_output``    a message of the tool
``reasoning``               what the model thought before the item that follows; left out if it has no text
==========================  ===================================================================
"""

from collections.abc import Mapping
from typing import Any

from . import fields
from .errors import field_error
from .messages import past_call

_ROLES = ("assistant", "developer", "system", "user")
_TEXTS = {"input_text": "text", "output_text": "text", "reasoning_text": "text", "text": "text", "refusal": "refusal"}
"""Type of a part → its member with the text."""


def read_messages(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """``instructions`` and ``input`` as messages. Raises `RequestFieldError`."""
    messages: list[Mapping[str, Any]] = []
    instructions, items = document.get("instructions"), document.get("input")
    if instructions is not None:
        messages.append({"role": "system", "content": _text("instructions", instructions)})
    if items is None:
        raise field_error("input", "'input' is missing")
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    if type(items) is not list:
        raise fields.wrong_type("input", "a string or an array of items", items)
    if not items:
        raise field_error("input", "'input' is empty")
    for index, item in enumerate(items):
        _add(messages, f"input[{index}]", item)
    return messages


def _add(messages: list[Mapping[str, Any]], where: str, item: object) -> None:
    if not isinstance(item, dict):
        raise fields.wrong_type(where, "an object", item)
    kind = item.get("type") or "message"
    if kind == "message":
        message, last = _message(where, item), messages[-1] if messages else {}
        if message["role"] == "assistant" and _is_thought(last):
            message = {**messages.pop(), **message}
        messages.append(message)
    elif kind == "function_call":
        _add_call(messages, where, item)
    elif kind == "function_call_output":
        output = _text(f"{where}.output", item.get("output"))
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind == "item_reference":
        raise field_error(where, f"'{where}' refers to an item of before, and nothing is stored: send the item itself")
    elif kind == "reasoning":
        if item.get("content"):
            thought = _text(f"{where}.content", item["content"])
            messages.append({"role": "assistant", "content": "", "reasoning_content": thought})
    else:
        known = "'message', 'function_call', 'function_call_output' or 'reasoning'"
        raise field_error(f"{where}.type", f"'{where}.type' must be {known}")


def _is_thought(message: Mapping[str, Any]) -> bool:
    return "reasoning_content" in message and not message["content"] and "tool_calls" not in message


def _message(where: str, item: Mapping[str, Any]) -> Mapping[str, Any]:
    role = item.get("role")
    if role not in _ROLES:
        raise field_error(f"{where}.role", f"'{where}.role' must be one of {', '.join(_ROLES)}")
    return {"role": role, "content": _text(f"{where}.content", item.get("content"))}


def _add_call(messages: list[Mapping[str, Any]], where: str, item: Mapping[str, Any]) -> None:
    """Calls that follow each other, or what the assistant has said, are of one message."""
    call = past_call(where, {"id": item.get("call_id"), "type": "function"}, item, "")
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant":
        messages[-1] = {**last, "tool_calls": [*last.get("tool_calls", ()), call]}
    else:
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})


def _text(where: str, content: object) -> str:
    """A text, or the texts of parts, one below the other."""
    if isinstance(content, str):
        return content
    if content is None:
        raise field_error(where, f"'{where}' is missing")
    if not isinstance(content, list):
        raise fields.wrong_type(where, "a string or an array of parts", content)
    return "\n".join(_part(f"{where}[{index}]", part) for index, part in enumerate(content))


def _part(where: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    member = _TEXTS.get(kind) if isinstance(kind, str) else None
    if not isinstance(part, dict) or member is None:
        raise field_error(where, f"'{where}' is no text: parts of the types input_text and output_text are supported")
    text = part.get(member)
    if not isinstance(text, str):
        raise fields.wrong_type(f"{where}.{member}", "a string", text)
    return text
