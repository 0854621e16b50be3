"""Protobuf messages as JSON the way Triton writes them, which is not the way protobuf does."""

from typing import Any, TypeAlias

from google.protobuf.message import Message

JsonObject: TypeAlias = dict[str, object]


def to_json(message: Message) -> JsonObject:
    """Return the message as JSON values.

    Unlike protobuf's own mapping: names as in the .proto file, scalars and repeated fields present even when empty,
    enums by name, 64-bit integers as numbers. Messages and members of a oneof that are not set are left out.
    """
    out: JsonObject = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value: Any = getattr(message, field.name)
        if not field.is_repeated:
            out[field.name] = _value(field, value)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name["value"]
            out[field.name] = {str(key): _value(entry, value[key]) for key in sorted(value)}
        else:
            out[field.name] = [_value(field, element) for element in value]
    return out


def _value(field: Any, value: Any) -> object:
    if field.message_type is not None:
        return to_json(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name
    return value
