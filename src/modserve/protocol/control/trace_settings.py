"""The trace extension: settings as both wires have them, and changes to them."""

import re
from collections.abc import Mapping, Sequence

from modserve.core.errors import ModserveError, invalid, unsupported
from modserve.core.trace_settings import TraceChange, TraceLevel, TraceSettings
from modserve.pb import inference as pb
from modserve.protocol.control import control_body
from modserve.protocol.json.json_text import JsonObject, JsonTypeError

_MODE = "triton"
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,40}\s*")
_NUMBERS = {
    "trace_rate": ("rate", 0, 2**32 - 1),
    "trace_count": ("count", -1, 2**31 - 1),
    "log_frequency": ("log_frequency", 0, 2**32 - 1),
}
"""The field, and the lowest and highest value."""


def json(settings: TraceSettings) -> JsonObject:
    """All values are strings, but for the list of levels."""
    return {
        "trace_level": settings.level.names,
        "trace_rate": str(settings.rate),
        "trace_count": str(settings.count),
        "log_frequency": str(settings.log_frequency),
        "trace_file": settings.file,
        "trace_mode": _MODE,
    }


def message(settings: TraceSettings) -> pb.TraceSettingResponse:
    answer = pb.TraceSettingResponse()
    for name, value in json(settings).items():
        answer.settings[name].value.extend(value if isinstance(value, list) else [str(value)])
    return answer


def change_by_json(body: bytes) -> TraceChange:
    """What a POST's body asks for; unknown names and an empty body ask for nothing, null for what is set elsewhere.

    Raises INVALID_ARG, and UNSUPPORTED for ``trace_file`` and another ``trace_mode``.
    """
    members = control_body.read(body) if body else {}
    change: dict[str, TraceLevel | int | None] = {}
    if "trace_file" in members:
        raise _no_file()
    if members.get("trace_mode") is not None:
        _check_mode(control_body.typed(members["trace_mode"], str))
    if "trace_level" in members:
        levels = members["trace_level"]
        if levels is None:
            change["level"] = None
        elif not isinstance(levels, list):
            raise invalid(str(JsonTypeError("array", "array")))
        elif levels:
            change["level"] = _level([control_body.typed(level, str) for level in levels])
    for name, (field, lowest, highest) in _NUMBERS.items():
        if name in members:
            value = members[name]
            text = None if value is None else control_body.typed(value, str)
            change[field] = None if text is None else _number(name, text, lowest, highest, "got:")
    return change


def change_by_message(settings: Mapping[str, pb.TraceSettingRequest.SettingValue]) -> TraceChange:
    """What a request asks for; unknown names ask for nothing, a setting without values for what is set elsewhere.

    Raises INVALID_ARG, and UNSUPPORTED for ``trace_file`` and another ``trace_mode``.
    """
    change: dict[str, TraceLevel | int | None] = {}
    if "trace_file" in settings:
        raise _no_file()
    for mode in settings["trace_mode"].value if "trace_mode" in settings else ():
        _check_mode(mode)
    if "trace_level" in settings:
        levels = list(settings["trace_level"].value)
        change["level"] = _level(levels) if levels else None
    for name, (field, lowest, highest) in _NUMBERS.items():
        if name in settings:
            values = list(settings[name].value)
            if len(values) > 1:
                raise invalid(f"expect only 1 value for '{name}'")
            change[field] = _number(name, values[0], lowest, highest, "got: ") if values else None
    return change


def _level(names: Sequence[str]) -> TraceLevel:
    """Raises INVALID_ARG. Triton ignores unknown names; here they are refused."""
    level = TraceLevel.OFF
    for name in names:
        if name not in TraceLevel.__members__:
            raise invalid(f"Unable to parse 'trace_level', got: {name}, expected OFF, TIMESTAMPS or TENSORS")
        if name == "OFF" and len(names) > 1:
            raise invalid("Expect only one trace level 'OFF' is specified")
        level |= TraceLevel[name]
    return level


def _number(name: str, text: str, lowest: int, highest: int, got: str) -> int:
    """Raises INVALID_ARG; `got` is how Triton's two front ends end one of these texts."""
    if not _WHOLE.fullmatch(text):
        raise invalid(f"Unable to parse '{name}', got: {text}")
    value = int(text)
    if lowest == -1 and -(2**31) <= value < lowest:
        raise invalid(f"Unable to parse '{name}'. Expecting value >= -1, {got}{text}")
    if not lowest <= value <= highest:
        raise invalid(f"Unable to parse '{name}', value is out of range [ {lowest}, {highest} ], got: {text}")
    return value


def _check_mode(mode: str) -> None:
    """Raises UNSUPPORTED for one that is not in use. Triton takes whatever is said, and changes nothing."""
    if mode != _MODE:
        raise unsupported(
            f"trace mode can not be updated through network protocol, got: {mode}, expected '{_MODE}', which it is"
        )


def _no_file() -> ModserveError:
    return unsupported("trace file location can not be updated through network protocol")
