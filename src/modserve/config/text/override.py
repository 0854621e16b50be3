"""Parser from a configuration that comes as JSON with a load request to a message.

The format is protobuf's JSON mapping: names in snake_case or camelCase, enum values by name or number, 64-bit integers
as numbers or strings. Like Triton, it takes the names of enum values in any case.
"""

import json
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor

from modserve.core.errors import invalid
from modserve.pb import inference as pb


def parse(text: str) -> pb.ModelConfig:
    """Raises INVALID_ARG for text that is not JSON, for unknown fields and for values of the wrong type."""
    message = pb.ModelConfig()
    try:
        value = json.loads(text, object_pairs_hook=_object)
        if "\\u" in text:  # lone surrogates are not text, and protobuf fails on names that contain them
            json.dumps(value, ensure_ascii=False).encode()
        if not isinstance(value, dict):
            raise ValueError(f"expected an object with the fields of a model configuration, got {text[:40]!r}")
        json_format.ParseDict(_enums_upper(value, pb.ModelConfig.DESCRIPTOR), message)
    except RecursionError:
        raise invalid("Invalid config override: nested too deeply") from None
    except (ValueError, TypeError, OverflowError, json_format.ParseError) as error:
        # Only the first line: protobuf lists all fields below it.
        cause = (str(error) or type(error).__name__).splitlines()[0]
        raise invalid(f"Invalid config override: {cause}") from error
    return message


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"'{twice}' is given twice in one object")
    return values


def _enums_upper(value: Any, message: Descriptor | None, enum: EnumDescriptor | None = None) -> Any:
    """The JSON value of a field of this type, with the names of enum values in capitals, as all of them are spelt."""
    if isinstance(value, list):
        return [_enums_upper(element, message, enum) for element in value]
    if enum is not None and isinstance(value, str):
        return value.upper() if value.upper() in enum.values_by_name else value
    if message is None or not isinstance(value, dict):
        return value
    if message.GetOptions().map_entry:
        fields = dict.fromkeys(value, message.fields_by_name["value"])
    else:
        fields = {**message.fields_by_name, **message.fields_by_camelcase_name}
    return {
        name: _enums_upper(inner, fields[name].message_type, fields[name].enum_type) if name in fields else inner
        for name, inner in value.items()
    }
