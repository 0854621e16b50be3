"""Random model configurations, and the many ways to write one down."""

import random
import re
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from modserve.pb import inference as pb

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_WORDS = [
    "",
    "x",
    "a b",
    "ünï 日本",
    'q"q',
    "it's",
    "back\\slash",
    "tab\t",
    "line\nbreak",
    "# no { comment",
    "}",
    "\x7f\x00",
]
_FLOATS = [0.0, 0.5, -1.25, 3e20, 1e-9, float("inf"), float("-inf")]


def random_config(rng: random.Random) -> pb.ModelConfig:
    message = pb.ModelConfig()
    _fill(message, rng, 0.25)
    return message


# Of a seed rather than `st.randoms`, which records every draw and is ten times slower.
randoms = st.integers(0, 2**32).map(random.Random)
configs = randoms.map(random_config)


def _fill(message: Message, rng: random.Random, density: float) -> None:
    oneofs: set[str] = set()
    for known in message.DESCRIPTOR.fields:
        oneof = known.containing_oneof
        if rng.random() > density or (oneof is not None and oneof.name in oneofs):
            continue
        if oneof is not None:
            oneofs.add(oneof.name)
        _set(message, known, rng, density)


def _set(message: Message, known: Any, rng: random.Random, density: float) -> None:
    value: Any = getattr(message, known.name)
    deeper = min(1.0, density + 0.15)
    if known.message_type is not None and known.message_type.GetOptions().map_entry:
        of_key, of_value = (known.message_type.fields_by_name[name] for name in ("key", "value"))
        for _ in range(rng.randint(1, 2)):
            if of_value.message_type is not None:
                _fill(value[_scalar(of_key, rng)], rng, deeper)
            else:
                value[_scalar(of_key, rng)] = _scalar(of_value, rng)
    elif known.default_value == []:
        for _ in range(rng.randint(1, 3)):
            if known.message_type is not None:
                _fill(value.add(), rng, deeper)
            else:
                value.append(_scalar(known, rng))
    elif known.message_type is not None:
        value.SetInParent()
        _fill(value, rng, deeper)
    else:
        setattr(message, known.name, _scalar(known, rng))


def _scalar(known: FieldDescriptor, rng: random.Random) -> Any:
    if known.cpp_type in _INTEGERS:
        low, high = _INTEGERS[known.cpp_type]
        return rng.choice([low, high, 1, 8, 100])
    if known.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return rng.choice(_WORDS)
    if known.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if known.enum_type is not None:
        return rng.choice(known.enum_type.values).number
    return rng.choice(_FLOATS)


def write(message: Message, rng: random.Random) -> str:
    """The text of a message, each element in one of the ways that text-format allows."""
    if rng.random() < 0.3:
        return text_format.MessageToString(
            message,
            as_utf8=rng.random() < 0.5,
            as_one_line=rng.random() < 0.5,
            use_short_repeated_primitives=rng.random() < 0.5,
            pointy_brackets=rng.random() < 0.5,
            use_index_order=rng.random() < 0.5,
        )
    return _write_fields(message, rng)


def _write_fields(message: Message, rng: random.Random) -> str:
    written = []
    for known, value in message.ListFields():
        if known.message_type is not None and known.message_type.GetOptions().map_entry:
            written += [f"{known.name}{_colon(rng)}{_entry(known.message_type, k, value[k], rng)}" for k in value]
        elif known.default_value == []:
            elements = [_write_value(known, element, rng) for element in value]
            colon = ":" if known.message_type is None else _colon(rng)
            if rng.random() < 0.5:
                gap = _space(rng)
                written.append(f"{known.name}{colon}{gap}[{gap}" + f"{gap},{gap}".join(elements) + f"{gap}]")
            else:
                written += [f"{known.name}{colon}{_space(rng)}{element}" for element in elements]
        else:
            colon = ":" if known.message_type is None else _colon(rng)
            written.append(f"{known.name}{colon}{_space(rng)}{_write_value(known, value, rng)}")
    return "".join(f"{_space(rng)}{field}{rng.choice(['', ',', ';'])}{_space(rng)} " for field in written)


def _entry(entry: Descriptor, key: Any, value: Any, rng: random.Random) -> str:
    of_key, of_value = (entry.fields_by_name[name] for name in ("key", "value"))
    fields = [f"key: {_write_value(of_key, key, rng)}", f"value: {_write_value(of_value, value, rng)}"]
    rng.shuffle(fields)
    return "{ " + " ".join(fields) + " }"


def _write_value(known: FieldDescriptor, value: Any, rng: random.Random) -> str:
    if isinstance(value, Message):
        opener, closer = rng.choice([("{", "}"), ("<", ">")])
        return f"{opener}{_space(rng)}{_write_fields(value, rng)}{closer}"
    if isinstance(value, str):
        return _write_string(value, rng)
    if isinstance(value, bool):
        return rng.choice(["true", "t", "1", "True"] if value else ["false", "f", "0", "False"])
    if known.enum_type is not None:
        return rng.choice([known.enum_type.values_by_number[value].name, str(value)])
    if isinstance(value, int):
        sign, digits = "-" if value < 0 else "", abs(value)
        return sign + rng.choice([str(digits), hex(digits), f"0{digits:o}", hex(digits).upper().replace("X", "x")])
    return rng.choice([repr(value), f"{value!r}f"])


def _write_string(value: str, rng: random.Random) -> str:
    parts = [value]
    if rng.random() < 0.3:
        cut = rng.randint(0, len(value))
        parts = [value[:cut], value[cut:]]
    return _space(rng).join(_quoted(part, rng) for part in parts)


def _quoted(part: str, rng: random.Random) -> str:
    quote = rng.choice("'\"")
    escapes = {
        "\\": "\\\\",
        "\n": "\\n",
        "\t": rng.choice(["\\t", "\t", "\\011"]),
        quote: f"\\{quote}",
        "\x00": "\\000",
    }
    return quote + "".join(escapes.get(character, character) for character in part) + quote


def _colon(rng: random.Random) -> str:
    return rng.choice([":", "", " :", " "])


def _space(rng: random.Random) -> str:
    return rng.choice(["", "", " ", "\n", "\t", '  # a comment with " and { in it\n', "\r\n"])


_PIECES = [
    "{",
    "}",
    "[",
    "]",
    "<",
    ">",
    ":",
    ",",
    ";",
    "=",
    '"',
    "'",
    "8",
    "-1",
    "1.5",
    "name",
    "input",
    "dims",
    "foo",
    "\n",
]


def damage(text: str, rng: random.Random) -> str:
    """The text with one or a few pieces taken out, put in or swapped."""
    pieces = re.findall(r"\w+|\s+|[^\w\s]", text)
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(pieces))
        pieces[at : at + rng.randint(0, 2)] = [rng.choice(_PIECES)] if rng.random() < 0.6 else []
    return "".join(pieces)
