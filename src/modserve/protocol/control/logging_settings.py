"""The logging extension: settings as both wires have them, and changes to them."""

from collections.abc import Callable, Mapping
from typing import Any

from modserve.core.configuration.log_settings import LogFormat, LogSettings
from modserve.core.errors import invalid, unsupported
from modserve.pb import inference as pb
from modserve.protocol.control import control_body
from modserve.protocol.json.json_text import JsonObject

_MAX_UINT32 = 2**32 - 1
_SETTINGS = {
    "log_info": ("info", bool),
    "log_warning": ("warning", bool),
    "log_error": ("error", bool),
    "log_verbose_level": ("verbose_level", int),
    "log_format": ("format", str),
}
"""The field and the type of each setting that can be changed."""
_FORMATS = {each.value: each for each in LogFormat}
_CHOICES = {bool: ("bool_param", "boolean"), int: ("uint32_param", "int32"), str: ("string_param", "string")}
"""The member of the oneof for each type, and how Triton's messages name that type."""


def json(settings: LogSettings) -> JsonObject:
    return {
        "log_file": settings.file,
        "log_info": settings.info,
        "log_warning": settings.warning,
        "log_error": settings.error,
        "log_verbose_level": settings.verbose_level,
        "log_format": settings.format.value,
    }


def message(settings: LogSettings) -> pb.LogSettingsResponse:
    response = pb.LogSettingsResponse()
    for name, value in json(settings).items():
        setattr(response.settings[name], _CHOICES[type(value)][0], value)
    return response


def change_by_json(body: bytes) -> Mapping[str, Any]:
    """Return the fields of `LogSettings` that a POST's body changes; null and unknown names change nothing.

    Raises INVALID_ARG, and UNSUPPORTED for ``log_file``.
    """
    values = {name: value for name, value in control_body.read(body).items() if value is not None}
    return _change(values, _json_value, "--log_format")


def change_by_message(request: pb.LogSettingsRequest) -> Mapping[str, Any]:
    """Return the fields of `LogSettings` that a request changes. Raises as `change_by_json` does."""
    return _change(request.settings, _message_value, "log_format")


def _change(values: Mapping[str, Any], read: Callable[[str, Any, type], Any], format_option: str) -> Mapping[str, Any]:
    """Return the changes. `read` returns a named setting of a type; `format_option` is the name in Triton's text."""
    if "log_file" in values:
        raise unsupported("log file location can not be updated through network protocol")
    changes = {field: read(name, values[name], kind) for name, (field, kind) in _SETTINGS.items() if name in values}
    if "format" in changes:
        name = changes["format"]
        if name not in _FORMATS:
            raise invalid(f"invalid argument for {format_option}, got: {name}")
        changes["format"] = _FORMATS[name]
    return changes


def _json_value(name: str, value: object, kind: type) -> object:
    return control_body.check_unsigned(value, _MAX_UINT32) if kind is int else control_body.check_type(value, kind)


def _message_value(name: str, value: pb.LogSettingsRequest.SettingValue, kind: type) -> object:
    choice, kind_name = _CHOICES[kind]
    if value.WhichOneof("parameter_choice") != choice:
        raise invalid(f"expect {kind_name} for '{name}'")
    return getattr(value, choice)
