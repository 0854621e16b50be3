"""Single values, read as `google.protobuf.text_format` reads them. A value that does not fit raises ValueError."""

import re
from collections.abc import Callable
from typing import TypeAlias

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from . import suggest
from .tokens import Token

Scalar: TypeAlias = int | float | bool | str

_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: ("int32", -(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: ("int64", -(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: ("uint32", 0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: ("uint64", 0, 2**64 - 1),
}
_C_OCTAL = re.compile(r"^(-?)0(\d+)$")


def _integer(text: str) -> int:
    return int(_C_OCTAL.sub(r"\g<1>0o\2", text), 0)


def _string(text: str) -> str:
    raise ValueError("no quotes")


_READERS: dict[int, tuple[str, Callable[[str], Scalar]]] = {
    **dict.fromkeys(_RANGES, ("an integer", _integer)),
    FieldDescriptor.CPPTYPE_FLOAT: ("a number", text_format.ParseFloat),
    FieldDescriptor.CPPTYPE_DOUBLE: ("a number", text_format.ParseFloat),
    FieldDescriptor.CPPTYPE_BOOL: ("true or false", text_format.ParseBool),
    FieldDescriptor.CPPTYPE_STRING: ("a string in quotes", _string),
}


def parse(field: FieldDescriptor, token: Token) -> Scalar:
    """The value of a token other than a string. Raises ValueError with a text that names the field."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return _enum(field, token)
    expected, read = _READERS[field.cpp_type]
    try:
        value = read(token.text)
    except ValueError:
        raise ValueError(f"'{field.name}' takes {expected}, found {token.describe()}") from None
    if isinstance(value, int) and field.cpp_type in _RANGES:
        name, low, high = _RANGES[field.cpp_type]
        if not low <= value <= high:
            raise ValueError(f"'{field.name}' takes {name}, from {low} to {high}; {value} is out of range")
    return value


def _enum(field: FieldDescriptor, token: Token) -> int:
    assert field.enum_type is not None, "only called for enum fields: this is a bug"
    values = field.enum_type.values_by_name
    try:
        number = int(token.text, 0)
    except ValueError:
        pass
    else:
        if not -(2**31) <= number < 2**31:
            raise ValueError(f"'{field.name}' has no value with number {number}")
        return number  # text_format accepts numbers without a name; the validation refuses them
    if token.is_placeholder:
        raise ValueError(f"'{field.name}' takes {', '.join(values)}, found {token.describe()}")
    if token.text in values:
        return values[token.text].number
    bare = token.text.strip("'\"")
    if token.is_string and bare in values:
        raise ValueError(f"'{field.name}' takes a value without quotes: {bare}")
    hint = suggest.enum_value(bare, list(values))
    advice = f"did you mean '{hint}'?" if hint else f"it takes {', '.join(values)}"
    raise ValueError(f"unknown value '{bare}' for '{field.name}'; {advice}")
