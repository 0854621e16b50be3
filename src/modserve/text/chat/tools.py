"""Tools that a model may call, and the choice among them.

In ``chat/completions`` a function's name and parameters are in the member ``function`` of a tool, and in ``responses``
in the tool itself. Chat templates expect the former.

Tool calls in a model's text, in the formats that chat templates teach models:

================================================  ==============================================================
``<tool_call>{…}</tool_call>``                    Hermes, Qwen, SmolLM; with a list, several calls
``<tool_call><function=f><parameter=p>…``         Qwen3-Coder, which at times omits ``<tool_call>``
``[TOOL_CALLS][{…}, …]``                          Mistral
``[TOOL_CALLS]f[ARGS]{…}[TOOL_CALLS]g[ARGS]{…}``  Mistral since v11: also with ``[CALL_ID]``, or without ``[ARGS]``
``<|python_tag|>{…}; {…}``, or ``{…}`` alone      Llama 3: several calls have ``;``, a comma or nothing between them
================================================  ==============================================================

An object has ``name`` and ``arguments`` (or ``parameters``). Anything else stays text. Engines may omit special tokens
such as ``[TOOL_CALLS]``: a call at the beginning of the text is recognised without them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from . import fields
from .errors import field_error
from .stops import overlap

_MOST_TOOLS = 1024
_NONE: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""Schema for functions without parameters."""
_DATA = frozenset({"const", "default", "enum", "examples"})
"""JSON schema keywords with data as their values: a ``$ref`` in them is no reference."""
_BY_NAME = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
"""JSON schema keywords that map names, which are not keywords, to schemas."""


class ToolChoice:
    """Tools that the model may or must call. `only`: the one function to call. Immutable."""

    __slots__ = ("only", "parallel", "required", "tools")

    def __init__(
        self, tools: Sequence[Mapping[str, Any]] = (), required: bool = False, only: str = "", parallel: bool = True
    ) -> None:
        self.tools = tools
        self.required = required
        self.only = only
        self.parallel = parallel

    @property
    def parameters(self) -> Mapping[str, Mapping[str, Any]]:
        """Parameter schema of each function."""
        return {tool["function"]["name"]: tool["function"].get("parameters") or _NONE for tool in self.tools}

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """Schema of a text that is a call; None if the text may be anything."""
        functions = self.parameters
        if self.only:
            return {"type": "object", **functions[self.only]}
        if not self.required:
            return None
        calls, definitions = [], {}
        for number, (name, parameters) in enumerate(functions.items()):
            schema, place = parameters, f"tool{number}"
            relocated = _relocate(parameters, f"#/$defs/{place}")
            if relocated != parameters:  # it refers to itself
                definitions[place] = relocated
                schema = {"$ref": f"#/$defs/{place}"}
            calls.append(
                {
                    "type": "object",
                    "properties": {"name": {"enum": [name]}, "parameters": schema},
                    "required": ["name", "parameters"],
                }
            )
        more: dict[str, Any] = {} if self.parallel else {"maxItems": 1}
        if definitions:
            more["$defs"] = definitions
        return {"type": "array", "minItems": 1, "items": {"anyOf": calls}, **more}


def _relocate(schema: Any, place: str) -> Any:
    """Rewrite a JSON schema that becomes part of another one at `place`, so that its references lead there."""
    if isinstance(schema, list):
        return [_relocate(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _BY_NAME and isinstance(value, dict):
            moved[name] = {each: _relocate(below, place) for each, below in value.items()}
        else:
            moved[name] = value if name in _DATA else _relocate(value, place)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved


def read_tools(document: Mapping[str, Any]) -> ToolChoice:
    """Read ``tools``, ``tool_choice``, ``parallel_tool_calls`` of ``chat/completions``. Raises `RequestFieldError`."""
    tools = _list(document)
    for index, tool in enumerate(tools):
        _check_tool(f"tools[{index}]", tool)
    return _choice(document, tools, "function", "{'type': 'function', 'function': {'name': …}}")


def read_flat_tools(document: Mapping[str, Any]) -> ToolChoice:
    """Read the same fields of ``responses``."""
    tools = [_nest_function(f"tools[{index}]", tool) for index, tool in enumerate(_list(document))]
    return _choice(document, tools, "", "{'type': 'function', 'name': …}")


def _list(document: Mapping[str, Any]) -> list[Any]:
    tools = document.get("tools")
    if tools is not None and type(tools) is not list:
        raise fields.wrong_type("tools", "an array", tools)
    if tools and len(tools) > _MOST_TOOLS:
        raise field_error("tools", f"'tools' has {len(tools)} elements, at most {_MOST_TOOLS} are possible")
    return tools or []


def _choice(document: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], member: str, form: str) -> ToolChoice:
    """Return the choice among the checked `tools`. `member`: place of the name in ``tool_choice``; empty for itself."""
    choice = document.get("tool_choice")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise field_error("tool_choice", "'tool_choice' is for requests with 'tools'")
        return ToolChoice()
    parallel = fields.boolean(document, "parallel_tool_calls", True)
    if choice in (None, "auto"):
        return ToolChoice(tools, parallel=parallel)
    if choice == "none":
        return ToolChoice()
    if choice == "required":
        return ToolChoice(tools, True, parallel=parallel)
    function = choice.get(member) if member and isinstance(choice, dict) else choice
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise field_error("tool_choice", f"'tool_choice' must be 'none', 'auto', 'required' or {form}")
    if name not in {tool["function"]["name"] for tool in tools}:
        raise field_error("tool_choice", f"'tool_choice' names the function '{name[:100]}', which is not in 'tools'")
    return ToolChoice(tools, True, name, parallel)


def _check_tool(where: str, tool: object) -> None:
    if not isinstance(tool, dict):
        raise fields.wrong_type(where, "an object", tool)
    if tool.get("type", "function") != "function":
        raise field_error(f"{where}.type", f"'{where}.type' must be 'function'")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise fields.wrong_type(f"{where}.function", "an object", function)
    _check_function(f"{where}.function", function)


def _check_function(where: str, function: Mapping[str, Any]) -> None:
    if type(function.get("name")) is not str or not function["name"]:
        raise field_error(f"{where}.name", f"'{where}.name' must be a string")
    if not isinstance(function.get("parameters") or {}, dict):
        raise fields.wrong_type(f"{where}.parameters", "an object", function["parameters"])


def _nest_function(where: str, tool: object) -> Mapping[str, Any]:
    """Return a tool of ``responses`` in the format of templates."""
    if not isinstance(tool, dict):
        raise fields.wrong_type(where, "an object", tool)
    if tool.get("type") != "function":
        raise field_error(f"{where}.type", f"'{where}.type' must be 'function': there are no other tools here")
    _check_function(where, tool)
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_TO_THE_END = ("[TOOL_CALLS]", "<|python_tag|>")
"""Marks after which all of the text is calls."""
_MARKS = (OPEN, _FUNCTION, *_TO_THE_END)
_ANY_MARK = re.compile("|".join(map(re.escape, _MARKS)))
_AFTER_NAME = ("{", "[ARGS]", "[CALL_ID]")
_BETWEEN = re.compile(r"(?:[\s;,]|\[TOOL_CALLS\]|<\|python_tag\|>|<\|eom_id\|>)*")
_NAMED = re.compile(r"([^\s\[\]{}\"]++)(?:\s*+\[CALL_ID\]\s*+\w*+)?+(?:\s*+\[ARGS\])?+\s*+(?=\{)")
_PARAMETER = re.compile(r"\s*<parameter=([^>]*)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|\Z))", re.DOTALL)
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_PYTHON: Mapping[str, object] = {"True": True, "False": False, "None": None}
"""Values that Qwen3-Coder's template writes as in Python."""
_DECODER = json.JSONDecoder()
_UNUSABLE = (ValueError, RecursionError, orjson.JSONEncodeError)
"""Errors for text that is not JSON, or nested too deeply to be written."""


class ToolCall(NamedTuple):
    """A tool call. `arguments` is JSON."""

    name: str
    arguments: str


@dataclass(slots=True)
class Split:
    """Result of new text: text for the client, and complete calls."""

    text: str
    calls: list[ToolCall]


class ToolCalls:
    """Divides a text that arrives in pieces into text and calls.

    `parameters`: schemas of the tools that may be called. A call of another tool is text.
    """

    __slots__ = ("_after_call", "_begun", "_held", "_in_string", "_parameters", "_said", "_searched", "_whole")

    def __init__(self, parameters: Mapping[str, Mapping[str, Any]]) -> None:
        self._parameters = parameters
        self._held = ""
        self._begun = False
        self._after_call = False
        """True if white space is not part of the text."""
        self._said = False
        """True after text: white space before the next call then is text, too."""
        self._searched = 0
        """Length of the searched part of the current call, which contains no end, so that no text is searched twice."""
        self._in_string = False
        """True if that part ends in a string."""
        self._whole = False
        """True if the whole text may be calls, and is held back to its end."""

    def feed(self, text: str, final: bool = False) -> Split:
        """Return the results for the text so far; with `final`, for all of it."""
        held = self._held + text
        split = Split("", [])
        if not self._begun:
            begin = held.lstrip()
            if not final and self._may_begin(begin):
                self._held = held
                return split
            self._begun = True
            self._whole = begin.startswith(("{", "[{")) or any(map(begin.startswith, self._beginnings()))
            held = begin if self._whole else held
        if not self._whole:
            held = self._divide(held, split, final)
        if self._whole and final:
            calls, rest = self._sequence(held)
            split.calls += calls
            split.text += rest
            held = ""
        self._held = held
        return split

    def _may_begin(self, begin: str) -> bool:
        """True if more text is needed to decide whether `begin` is a call without a mark."""
        return begin in ("", "[") or any(each != begin and each.startswith(begin) for each in self._beginnings())

    def _beginnings(self) -> list[str]:
        return [name + after for name in self._parameters for after in _AFTER_NAME]

    def _divide(self, text: str, split: Split, final: bool) -> str:
        """Add results to `split`; return the text that must wait."""
        while True:
            if self._after_call:
                text = text.lstrip()
                if not final and CLOSE.startswith(text):
                    return text
                text = text.removeprefix(CLOSE).lstrip()  # of a call without `OPEN`
                self._after_call = not text
            mark = _ANY_MARK.search(text)
            if mark is None:
                kept = 0 if final else max(overlap(text, each) for each in _MARKS)
                plain = text[: len(text) - kept]
                if not (final or self._said or plain.strip()):
                    return text
                split.text += plain
                self._said = True
                return text[len(plain) :]
            before, text = text[: mark.start()], text[mark.start() :]
            blank = not (self._said or before.strip())  # line breaks before a call belong to it
            self._whole = mark.group() in _TO_THE_END
            end = 0 if self._whole else self._end_of_call(text) or (_end_of_text(text) if final else 0)
            if not end:
                split.text += "" if blank else before
                self._said = not blank
                return before + text if blank else text
            self._searched, self._in_string = 0, False
            calls = self._read_marked(text[:end])
            split.calls += calls
            split.text += ("" if blank else before) if calls else before + text[:end]
            self._after_call = bool(calls)
            self._said = not calls
            text = text[end:]

    def _end_of_call(self, text: str) -> int:
        """Return the end of the call at the beginning of `text`; 0 if it is incomplete.

        An end mark may also occur in a string, or in the value of a parameter.
        """
        if text.startswith(_FUNCTION):
            return text.find(_FUNCTION_END) + len(_FUNCTION_END) if _FUNCTION_END in text else 0
        inner = text.removeprefix(OPEN).lstrip()
        while (close := text.find(CLOSE, self._searched)) >= 0:
            before, self._searched = text[self._searched : close], close + len(CLOSE)
            if inner.startswith(_FUNCTION):
                over = before.rstrip().endswith(_FUNCTION_END)
            else:
                quotes = _ESCAPE.sub("", before).count('"') if inner.startswith(("{", "[")) else 0
                self._in_string ^= quotes % 2 == 1
                over = not self._in_string
            if over:
                return self._searched
        return 0

    def _read_marked(self, text: str) -> list[ToolCall]:
        """Return the calls between `OPEN` and `CLOSE`, or in a function; none for anything else."""
        inner = text.removeprefix(OPEN).removesuffix(CLOSE).strip()
        if inner.startswith(_FUNCTION):
            return self._function(inner)
        calls, rest = self._sequence(inner)
        return [] if rest else calls

    def _sequence(self, text: str) -> tuple[list[ToolCall], str]:
        """Return the consecutive calls, and the text after them; the whole text if there are none."""
        calls: list[ToolCall] = []
        end = 0
        while True:
            between = _BETWEEN.match(text, end)
            start = between.end() if between else end
            read, after = self._read(text, start)
            if not read:
                return calls, "" if calls and start == len(text) else text[end:]
            calls += read
            end = after

    def _read(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        """Return the calls in the JSON at `start`, with a name before or in it, and its end; none for anything else."""
        named = _NAMED.match(text, start)
        start = start if named is None else named.end()
        try:
            if not text.startswith(("{", "["), start):
                return [], start
            _, end = _DECODER.raw_decode(text, start)
            value = orjson.loads(text[start:end])
            if named is None:
                return self._in_json(value), end
            known = named[1] in self._parameters
            return [ToolCall(named[1], orjson.dumps(value).decode())] if known else [], end
        except _UNUSABLE:
            return [], start

    def _in_json(self, value: object) -> list[ToolCall]:
        calls = []
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, dict):
                return []
            inner = each.get("function")
            call = inner if isinstance(inner, dict) else each
            name = call.get("name")
            if not isinstance(name, str) or name not in self._parameters:
                return []
            said = [call[key] for key in ("arguments", "parameters") if call.get(key) is not None]
            arguments = said[0] if said else {}
            calls.append(ToolCall(name, arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()))
        return calls

    def _function(self, text: str) -> list[ToolCall]:
        """Return the call in Qwen3-Coder's format; none for anything else."""
        name, _, body = text.removeprefix(_FUNCTION).partition(">")
        schema = self._parameters.get(name.strip())
        if schema is None or not body.endswith(_FUNCTION_END):
            return []
        body = body.removesuffix(_FUNCTION_END).rstrip()
        arguments: dict[str, object] = {}
        at = 0
        while at < len(body):
            parameter = _PARAMETER.match(body, at)
            if parameter is None:
                return []
            arguments[parameter[1].strip()] = _value(parameter[2], schema, parameter[1].strip())
            at = parameter.end()
        try:
            return [ToolCall(name.strip(), orjson.dumps(arguments).decode())]
        except orjson.JSONEncodeError:
            return []


def _end_of_text(text: str) -> int:
    """Return the end of text that begins like a call, but is none."""
    return text.find(CLOSE) + len(CLOSE) if CLOSE in text else len(text)


def _value(text: str, schema: Mapping[str, Any], name: str) -> object:
    """Return the value of a parameter, written without quotes, by its type in the schema, if it has one."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or name not in properties:
        return text
    types = _types(properties[name], schema)
    if "string" in types and not ("null" in types and text in ("null", "None")):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _PYTHON.get(text, text)


def _types(schema: object, root: Mapping[str, Any]) -> list[object]:
    """Return the types that a schema names, including its alternatives."""
    described = _resolve(schema, root)
    alternatives = described.get("anyOf", described.get("oneOf"))
    types: list[object] = []
    for each in alternatives if isinstance(alternatives, list) else [described]:
        type = _resolve(each, root).get("type")
        types += type if isinstance(type, list) else [type]
    return types


def _resolve(schema: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema, or the one it refers to in `root`; empty for an invalid one."""
    place = schema.get("$ref") if isinstance(schema, dict) else None
    if isinstance(place, str) and place.startswith("#/"):
        schema = root
        for name in place[2:].split("/"):
            schema = schema.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(schema, dict) else None
    return schema if isinstance(schema, dict) else {}
