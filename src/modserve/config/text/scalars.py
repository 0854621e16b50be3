"""Single values, read as `google.protobuf.text_format` reads them. A value that does not fit raises ValueError."""

import contextlib
import re
from collections.abc import Callable
from typing import TypeAlias

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
_OCTAL_START = re.compile(r"-?0[0-9]+")
_INFINITY = re.compile(r"-?inf(?:inity)?f?$", re.IGNORECASE)
_NAN = re.compile(r"nanf?$", re.IGNORECASE)
_BOOLS = dict.fromkeys(("true", "t", "1", "True"), True) | dict.fromkeys(("false", "f", "0", "False"), False)


def parse(field: FieldDescriptor, token: Token) -> Scalar:
    """The value of a token other than a string. Raises ValueError with a text that names the field."""
    return _PARSERS[field.cpp_type](field, token)


def _integer(field: FieldDescriptor, token: Token) -> int:
    name, low, high = _RANGES[field.cpp_type]
    try:
        value = int(_C_OCTAL.sub(r"\g<1>0o\2", token.text), 0)
    except ValueError:
        raise ValueError(f"'{field.name}' takes an integer, found {token.describe()}") from None
    if not low <= value <= high:
        raise ValueError(f"'{field.name}' takes {name}, from {low} to {high}; {value} is out of range")
    return value


def _float(field: FieldDescriptor, token: Token) -> float:
    text = token.text
    if not _OCTAL_START.match(text):
        if _INFINITY.match(text):
            return float("-inf" if text.startswith("-") else "inf")
        if _NAN.match(text):
            return float("nan")
        for number in (text, text.rstrip("fF")):
            with contextlib.suppress(ValueError):
                return float(number)
    raise ValueError(f"'{field.name}' takes a number, found {token.describe()}")


def _bool(field: FieldDescriptor, token: Token) -> bool:
    if token.text not in _BOOLS:
        raise ValueError(f"'{field.name}' takes true or false, found {token.describe()}")
    return _BOOLS[token.text]


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
    if token.text in values:
        return values[token.text].number
    bare = token.text.strip("'\"")
    if token.is_string and bare in values:
        raise ValueError(f"'{field.name}' takes a value without quotes: {bare}")
    hint = suggest.enum_value(bare, list(values))
    advice = f"did you mean '{hint}'?" if hint else f"it takes {', '.join(values)}"
    raise ValueError(f"unknown value '{bare}' for '{field.name}'; {advice}")


def _string(field: FieldDescriptor, token: Token) -> str:
    raise ValueError(f"'{field.name}' takes a string in quotes, found {token.describe()}")


_PARSERS: dict[int, Callable[[FieldDescriptor, Token], Scalar]] = {
    **dict.fromkeys(_RANGES, _integer),
    FieldDescriptor.CPPTYPE_FLOAT: _float,
    FieldDescriptor.CPPTYPE_DOUBLE: _float,
    FieldDescriptor.CPPTYPE_BOOL: _bool,
    FieldDescriptor.CPPTYPE_ENUM: _enum,
    FieldDescriptor.CPPTYPE_STRING: _string,
}
