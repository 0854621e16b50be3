"""The logging extension: settings as both wires have them, and changes to them."""

from dataclasses import replace
from typing import Any

from modserve.core.errors import ModserveError, invalid, unsupported
from modserve.core.log_settings import LogFormat, LogSettings
from modserve.pb import inference as pb
from modserve.protocol.control import control_body
from modserve.protocol.json.json_text import JsonObject

_MAX_UINT32 = 2**32 - 1
_SWITCHES = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
_FORMATS = {each.value: each for each in LogFormat}


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
    answer = pb.LogSettingsResponse()
    for name, value in json(settings).items():
        if isinstance(value, bool):
            answer.settings[name].bool_param = value
        elif isinstance(value, int):
            answer.settings[name].uint32_param = value
        else:
            answer.settings[name].string_param = str(value)
    return answer


def changed_by_json(settings: LogSettings, body: bytes) -> LogSettings:
    """`settings` with what a POST's body says; null and unknown names change nothing.

    Raises INVALID_ARG, UNSUPPORTED for ``log_file``, and UNAVAILABLE, which is Triton's, for an unknown format.
    """
    members = {name: value for name, value in control_body.read(body).items() if value is not None}
    changes: dict[str, Any] = {}
    if "log_file" in members:
        raise _no_file()
    for name, field in _SWITCHES.items():
        if name in members:
            changes[field] = control_body.typed(members[name], bool)
    if "log_verbose_level" in members:
        changes["verbose_level"] = control_body.unsigned(members["log_verbose_level"], _MAX_UINT32)
    if "log_format" in members:
        spoken = control_body.typed(members["log_format"], str)
        if spoken not in _FORMATS:
            raise invalid(f"invalid argument for --log_format, got: {spoken}")
        changes["format"] = _FORMATS[spoken]
    return replace(settings, **changes)


def changed_by_message(settings: LogSettings, request: pb.LogSettingsRequest) -> LogSettings:
    """`settings` with what a request says; unknown names change nothing. Raises INVALID_ARG, or UNSUPPORTED."""
    members = request.settings
    changes: dict[str, Any] = {}
    if "log_file" in members:
        raise _no_file()
    for name, field in _SWITCHES.items():
        if name in members:
            _check_choice(members[name], name, "bool_param", "boolean")
            changes[field] = members[name].bool_param
    if "log_verbose_level" in members:
        _check_choice(members["log_verbose_level"], "log_verbose_level", "uint32_param", "int32")
        changes["verbose_level"] = members["log_verbose_level"].uint32_param
    if "log_format" in members:
        _check_choice(members["log_format"], "log_format", "string_param", "string")
        spoken = members["log_format"].string_param
        if spoken not in _FORMATS:
            raise invalid(f"invalid argument for log_format, got: {spoken}")
        changes["format"] = _FORMATS[spoken]
    return replace(settings, **changes)


def _check_choice(value: pb.LogSettingsRequest.SettingValue, name: str, choice: str, spoken: str) -> None:
    if value.WhichOneof("parameter_choice") != choice:
        raise invalid(f"expect {spoken} for '{name}'")


def _no_file() -> ModserveError:
    return unsupported("log file location can not be updated through network protocol")
