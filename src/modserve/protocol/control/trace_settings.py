"""The trace extension: settings as both wires have them, and changes to them."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from modserve.core.configuration.trace_settings import TRITON, SpanSettings, TraceChange, TraceLevel, TraceSettings
from modserve.core.errors import invalid, unsupported
from modserve.pb import inference as pb
from modserve.protocol.control import control_body
from modserve.protocol.json.json_text import JsonObject, JsonTypeError

_SECRET = re.compile(r"//[^/@]*@")
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,40}\s*")
_NUMBERS = {
    "trace_rate": ("rate", 0, 2**32 - 1),
    "trace_count": ("count", -1, 2**31 - 1),
    "log_frequency": ("log_frequency", 0, 2**32 - 1),
}
"""The field, and the lowest and highest value."""
_NAMES = ("trace_mode", "trace_level", *_NUMBERS)
"""Setting names, in the order in which they are checked."""


def json(settings: TraceSettings) -> JsonObject:
    """Return the settings. All values are strings, except the list of levels."""
    values: dict[str, object] = {
        "trace_level": settings.level.names,
        "trace_rate": str(settings.rate),
        "trace_count": str(settings.count),
    }
    if settings.spans is None:
        values |= {"log_frequency": str(settings.log_frequency), "trace_file": settings.file}
    return values | {"trace_mode": settings.mode, **_of_spans(settings.spans)}


def _of_spans(settings: SpanSettings | None) -> dict[str, object]:
    """Return Triton's span settings by command-line name; resource attributes are in OpenTelemetry's notation.

    Settings left to the environment or to their defaults are omitted, and so is what may be secret in a URL.
    """
    if settings is None:
        return {}
    texts = {
        "url": _SECRET.sub("//…@", settings.url),
        "protocol": settings.protocol,
        "resource": ",".join(f"{key}={value}" for key, value in settings.resource),
    }
    numbers = ("bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size")
    return {
        **{name: text for name, text in texts.items() if text},
        **{name: str(getattr(settings, name)) for name in numbers},
    }


def message(settings: TraceSettings) -> pb.TraceSettingResponse:
    response = pb.TraceSettingResponse()
    for name, value in json(settings).items():
        response.settings[name].value.extend(value if isinstance(value, list) else [str(value)])
    return response


def change_by_json(body: bytes, mode: str = TRITON) -> TraceChange:
    """Return the change that a POST's body requests. Unknown names change nothing, null takes what is set elsewhere.

    An empty body changes nothing either. Raises INVALID_ARG, and UNSUPPORTED for ``trace_file`` and a ``trace_mode``
    other than `mode`, the one in use.
    """
    document = control_body.read(body) if body else {}
    values = ((name, _json_texts(name, document[name])) for name in _NAMES if name in document)
    return _change(document, values, "got:", mode)


def change_by_message(settings: Mapping[str, pb.TraceSettingRequest.SettingValue], mode: str = TRITON) -> TraceChange:
    """Return the change that a request asks for. Unknown names change nothing.

    A setting without values takes what is set elsewhere. Raises as `change_by_json` does.
    """
    return _change(settings, ((name, settings[name].value) for name in _NAMES if name in settings), "got: ", mode)


def _json_texts(name: str, value: object) -> Sequence[str] | None:
    """Return one setting's values as in a message; None for an empty list of levels, which changes nothing."""
    if value is None:
        return []
    if name != "trace_level":
        return [control_body.check_type(value, str)]
    if not isinstance(value, list):
        raise invalid(str(JsonTypeError("array")))
    return [control_body.check_type(level, str) for level in value] or None


def _change(
    names: Collection[str], values: Iterable[tuple[str, Sequence[str] | None]], got: str, mode: str
) -> TraceChange:
    if "trace_file" in names:
        raise unsupported("trace file location can not be updated through network protocol")
    change: dict[str, TraceLevel | int | None] = {}
    for name, texts in values:
        if texts is None:
            continue
        if name == "trace_mode":
            for text in texts:
                _check_mode(text, mode)
        elif name == "trace_level":
            change["level"] = _level(texts) if texts else None
        elif len(texts) > 1:
            raise invalid(f"expect only 1 value for '{name}'")
        else:
            field, lowest, highest = _NUMBERS[name]
            change[field] = _number(name, texts[0], lowest, highest, got) if texts else None
    return change


def _level(names: Sequence[str]) -> TraceLevel:
    """Return the level. Raises INVALID_ARG for unknown names, which Triton ignores."""
    level = TraceLevel.OFF
    for name in names:
        if name not in TraceLevel.__members__:
            raise invalid(f"Unable to parse 'trace_level', got: {name}, expected OFF, TIMESTAMPS or TENSORS")
        if name == "OFF" and len(names) > 1:
            raise invalid("Expect only one trace level 'OFF' is specified")
        level |= TraceLevel[name]
    return level


def _number(name: str, text: str, lowest: int, highest: int, got: str) -> int:
    """Return the number. Raises INVALID_ARG; `got` ends one of these texts as Triton's two front ends do."""
    if not _WHOLE.fullmatch(text):
        raise invalid(f"Unable to parse '{name}', got: {text}")
    value = int(text)
    if lowest == -1 and -(2**31) <= value < lowest:
        raise invalid(f"Unable to parse '{name}'. Expecting value >= -1, {got}{text}")
    if not lowest <= value <= highest:
        raise invalid(f"Unable to parse '{name}', value is out of range [ {lowest}, {highest} ], got: {text}")
    return value


def _check_mode(text: str, mode: str) -> None:
    """Check the mode. Raises UNSUPPORTED if it is not in use. Triton accepts any mode, and changes nothing."""
    if text != mode:
        raise unsupported(
            f"trace mode can not be updated through network protocol, got: {text}, expected '{mode}', which it is"
        )
