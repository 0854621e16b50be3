"""The tools that a model may call, and which of them it has to.

``chat/completions`` has a function's name and parameters in the member ``function`` of a tool, and ``responses`` in the
tool itself. Chat templates expect the former.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from . import fields
from .errors import field_error

_MOST_TOOLS = 1024
_NONE: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""Schema of the parameters of a function without any."""
_DATA = frozenset({"const", "default", "enum", "examples"})
"""JSON schema keywords whose values are data: a ``$ref`` in them is no reference."""
_BY_NAME = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
"""JSON schema keywords that map names, which are not keywords, to schemas."""


class ToolChoice:
    """Which of the tools the model may, or has to, call. `only` is the one function to call. Immutable."""

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
        """For each function, the schema of its parameters."""
        return {tool["function"]["name"]: tool["function"].get("parameters") or _NONE for tool in self.tools}

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """What the text has to be so that it is a call; None if it may be anything."""
        functions = self.parameters
        if self.only:
            return {"type": "object", **functions[self.only]}
        if not self.required:
            return None
        calls, definitions = [], {}
        for number, (name, parameters) in enumerate(functions.items()):
            schema, place = parameters, f"tool{number}"
            relocated = _relocated(parameters, f"#/$defs/{place}")
            if relocated != parameters:  # it has references to itself
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


def _relocated(schema: Any, place: str) -> Any:
    """Rewrite a JSON schema that becomes part of another one at `place`, so that its references lead there."""
    if isinstance(schema, list):
        return [_relocated(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _BY_NAME and isinstance(value, dict):
            moved[name] = {each: _relocated(below, place) for each, below in value.items()}
        else:
            moved[name] = value if name in _DATA else _relocated(value, place)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved


def read_tools(document: Mapping[str, Any]) -> ToolChoice:
    """``tools``, ``tool_choice`` and ``parallel_tool_calls`` of ``chat/completions``. Raises `RequestFieldError`."""
    tools = _list(document)
    for index, tool in enumerate(tools):
        _check_tool(f"tools[{index}]", tool)
    return _choice(document, tools, "function", "{'type': 'function', 'function': {'name': …}}")


def read_flat_tools(document: Mapping[str, Any]) -> ToolChoice:
    """The same of ``responses``."""
    tools = [_nested(f"tools[{index}]", tool) for index, tool in enumerate(_list(document))]
    return _choice(document, tools, "", "{'type': 'function', 'name': …}")


def _list(document: Mapping[str, Any]) -> list[Any]:
    tools = document.get("tools")
    if tools is not None and type(tools) is not list:
        raise fields.wrong_type("tools", "an array", tools)
    if tools and len(tools) > _MOST_TOOLS:
        raise field_error("tools", f"'tools' has {len(tools)} elements, at most {_MOST_TOOLS} are possible")
    return tools or []


def _choice(document: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], member: str, form: str) -> ToolChoice:
    """Which of the checked `tools` to call. `member` of ``tool_choice`` has the name, or itself without one."""
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


def _nested(where: str, tool: object) -> Mapping[str, Any]:
    """A tool of ``responses`` as templates have it."""
    if not isinstance(tool, dict):
        raise fields.wrong_type(where, "an object", tool)
    if tool.get("type") != "function":
        raise field_error(f"{where}.type", f"'{where}.type' must be 'function': there are no other tools here")
    _check_function(where, tool)
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
