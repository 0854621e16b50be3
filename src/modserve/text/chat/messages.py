"""The messages of a conversation, as chat templates have them."""

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from . import fields
from .errors import field_error

INVALID: Final = "invalid_arguments"
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def read_messages(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Those of ``chat/completions``. Raises `RequestFieldError`."""
    messages = document.get("messages")
    if messages is None:
        raise field_error("messages", "'messages' is missing")
    if type(messages) is not list:
        raise fields.wrong_type("messages", "an array", messages)
    if not messages:
        raise field_error("messages", "'messages' is empty")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _message(where: str, message: object) -> Mapping[str, Any]:
    """A message as templates have it: its content is one text, arguments of calls are objects."""
    if not isinstance(message, dict):
        raise fields.wrong_type(where, "an object", message)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        known = ", ".join(sorted(_ROLES))
        raise field_error(f"{where}.role", f"'{where}.role' must be one of {known}")
    read = {**message, "content": _content(f"{where}.content", message.get("content"))}
    thought = message.get("reasoning_content")
    if thought is not None and type(thought) is not str:
        raise fields.wrong_type(f"{where}.reasoning_content", "a string", thought)
    calls = message.get("tool_calls")
    if calls is not None:
        if type(calls) is not list:
            raise fields.wrong_type(f"{where}.tool_calls", "an array", calls)
        read["tool_calls"] = [_past_call(f"{where}.tool_calls[{n}]", call) for n, call in enumerate(calls)]
    elif read["content"] is None:
        raise field_error(f"{where}.content", f"'{where}.content' is missing")
    return read


def _content(where: str, content: object) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if type(content) is not list:
        raise fields.wrong_type(where, "a string or an array of parts", content)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in ("text", "refusal"):
            raise field_error(
                f"{where}[{index}]", f"'{where}[{index}]' is no text: parts of the type text are supported"
            )
        if not isinstance(text, str):
            raise fields.wrong_type(f"{where}[{index}].text", "a string", text)
        texts.append(text)
    return "\n".join(texts)


def _past_call(where: str, call: object) -> Mapping[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise field_error(where, f"'{where}' must have a 'function' with a 'name'")
    return past_call(where, call, function, ".function")


def past_call(where: str, call: Mapping[str, Any], function: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """A call that a model has made before: `call` with the name and the arguments of `function`, which is at `place`.

    Templates take an object for the arguments. Whatever else a model wrote, or did not write to its end, becomes the
    member `INVALID` of one: the conversation goes on, and the model sees it. Raises `RequestFieldError`.
    """
    name, arguments = function.get("name"), function.get("arguments")
    if type(name) is not str:
        raise field_error(f"{where}{place}.name", f"'{where}{place}.name' must be a string")
    if isinstance(arguments, str):
        with contextlib.suppress(orjson.JSONDecodeError):
            arguments = orjson.loads(arguments or "null")
    if arguments is None:
        arguments = {}
    elif not isinstance(arguments, dict):
        arguments = {INVALID: arguments}
    return {**call, "function": {**(function if place else {}), "name": name, "arguments": arguments}}
