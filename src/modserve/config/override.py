"""Reads a configuration that comes as JSON with a load request.

As protobuf's JSON mapping, which takes names in snake_case and camelCase, enum values by name or number, and 64-bit
integers as numbers or strings; and as Triton, which takes names of enum values in any case.
"""

import json
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor

from modserve.core.errors import invalid
from modserve.pb import inference as pb

from .pbtxt import Draft
from .problems import Source


def read_override(text: str, path: Path, name: str) -> Draft:
    """The draft of a model called `name`; its configuration would be at `path`, and the directory of that is looked at.

    Raises INVALID_ARG for what is no JSON, and for unknown fields and values of the wrong type.
    """
    message = pb.ModelConfig()
    try:
        given = json.loads(text, object_pairs_hook=_object)
        if "\\u" in text:  # lone surrogates are no text, and protobuf chokes on names that have them
            json.dumps(given, ensure_ascii=False).encode()
        if not isinstance(given, dict):
            raise ValueError(f"expected an object with the fields of a model configuration, got {text[:40]!r}")
        json_format.ParseDict(_enums_upper(given, pb.ModelConfig.DESCRIPTOR), message)
    except RecursionError:
        raise invalid("Invalid config override: nested too deeply") from None
    except (ValueError, TypeError, OverflowError, json_format.ParseError) as error:
        raise invalid(f"Invalid config override: {_first_line(error)}") from error
    return Draft(name, Source(path, label="config override"), message)


def _first_line(error: Exception) -> str:
    """Without the list of all fields there are."""
    return (str(error) or type(error).__name__).splitlines()[0]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"'{twice}' is given twice in one object")
    return found


def _enums_upper(given: Any, message: Descriptor) -> Any:
    """The JSON value of a message with the names of enum values in capitals, which they all are."""
    if not isinstance(given, dict):
        return given
    fields = {**message.fields_by_name, **message.fields_by_camelcase_name}
    changed = {}
    for name, value in given.items():
        known = fields.get(name)
        if known is None:
            changed[name] = value
        elif known.enum_type is not None:
            changed[name] = _each(value, lambda text, enum=known.enum_type: _upper(text, enum))
        elif known.message_type is None:
            changed[name] = value
        elif known.message_type.GetOptions().map_entry:
            entry = known.message_type.fields_by_name["value"].message_type
            if entry is not None and isinstance(value, dict):
                changed[name] = {key: _enums_upper(each, entry) for key, each in value.items()}
            else:
                changed[name] = value
        else:
            changed[name] = _each(value, lambda each, inner=known.message_type: _enums_upper(each, inner))
    return changed


def _each(value: Any, change: Any) -> Any:
    return [change(each) for each in value] if isinstance(value, list) else change(value)


def _upper(text: Any, enum: EnumDescriptor) -> Any:
    if isinstance(text, str) and text not in enum.values_by_name and text.upper() in enum.values_by_name:
        return text.upper()
    return text
