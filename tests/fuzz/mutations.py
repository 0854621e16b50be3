"""Inputs that are nearly right: valid requests with a few things changed, which get further than random bytes do."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from modserve.core.tensors import dtypes
from modserve.pb import inference as pb

Fallback = Callable[[bytes], bytes]

_HUGE = "\x00huge\x00"
_WORDS = (
    *(each.name for each in dtypes.ALL),
    *("FIXED", "TWO", "RESHAPED", "region", "/region", "abc", "", "\x00", "é", "\ud800", "=", "QUJD", "1", "true"),
    *("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size", "binary_data_size", "binary_data"),
    *("classification", "binary_data_output", "sequence_id", "sequence_start", "priority", "timeout", "triton_x"),
    *("triton_enable_empty_final_response", "config", "file:1/model.onnx", "unload_dependents", "b64", "instances"),
    *("id", "parameters", "inputs", "outputs", "name", "datatype", "shape", "data", "signature_name", _HUGE),
    *("model", "messages", "role", "user", "assistant", "tool", "content", "type", "text", "function", "arguments"),
    *("input_text", "function_call", "function_call_output", "json_schema", "json_object", "schema", "required"),
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "a", "f"),
)
_LIMITS = tuple(2**bits + more for bits in (16, 24, 31, 32, 63, 64) for more in (-1, 0, 1))
"""Where numbers of some size end, and lengths that are kept in them."""
_NUMBERS = (0, 1, 2, 3, 4, -1, 8, 9, 127, 128, 255, 256, 2**53 + 1, *_LIMITS)
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0.5, -0.0, 1e300, 1e-300, float("nan"), float("inf"), float("-inf"), [], {}, [[]], [{}]),
    *(2**64 - 1, 2**64, -(2**31), -(2**63), -(2**63) - 1, 10**40, _HUGE, [0] * 70, [None], {"b64": "QUI="}),
)
_TOKENS = (
    b'"\\ud800"',
    b"NaN",
    b"-Infinity",
    b"1e400",
    b"9" * 5000,
    b"[" * 120,
    b"]" * 120,
    b"\xff",
    b"\x00",
    b",",
    b"{",
)


def mutated(name: str, data: bytes, seed: int, fallback: Fallback | None = None) -> bytes:
    """A variation of an input of the target `name`, the same for the same `seed`; sometimes `fallback`'s."""
    choose = random.Random(seed)
    if fallback is not None and choose.random() < 0.25:
        return fallback(data)
    if choose.random() < 0.15:
        return _bytes(data, choose)
    return _STRUCTURES[name](data, choose)


# JSON


def _json(data: bytes, choose: random.Random) -> bytes:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes(data, choose)
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        document = _changed(document, choose)
    return _dumped(document)


def _alike(data: bytes, choose: random.Random) -> bytes:
    """Two requests, of which the second is the first cut somewhere, or with something of its own."""
    first, _, second = data.partition(b"\0")
    if choose.random() < 0.2:
        first = _json(first, choose)
    kind = choose.randrange(5)
    if kind == 4:
        second = _told(first, choose)
    elif kind == 0:
        second = first[: choose.randrange(len(first) + 1)]
    elif kind == 1:  # cut behind one of the marks of JSON, where readers stop
        ends = [end for end, byte in enumerate(first, 1) if byte in b'[]{}":, ']
        second = first[: choose.choice(ends)] if ends else first
    elif kind == 2:
        second = _bytes(first, choose)
    else:
        second = _json(second or first, choose)
    return first + b"\0" + second


def _told(request: bytes, choose: random.Random) -> bytes:
    """A request with an id and parameters where clients write them, or nearly there."""
    parameters = (
        b'"parameters":{"priority":1}',
        b'"parameters":{"x":"}"}',
        b'"parameters":{"x":{}}',
        b'"parameters":null',
    )
    before = b'"id":"7",', b'"id":"",', b'"id":7,', b'"id": "a\\"", ', choose.choice(parameters) + b",", b""
    behind = b",%b}" % choose.choice(parameters), b", %b}" % choose.choice(parameters), b"}", b"}}", b",}"
    changed = b"{" + choose.choice(before) + choose.choice((b"", choose.choice(before))) + request[1:-1]
    return changed + choose.choice(behind)


def _dumped(document: Any) -> bytes:
    text = json.dumps(document).replace(json.dumps(_HUGE), "9" * 5000)
    return text.encode()


def _changed(document: Any, choose: random.Random) -> Any:
    """The document with one place in it changed."""
    holder = [document]
    places: list[tuple[Any, Any]] = [(holder, 0)]
    for container, key in places:
        value = container[key]
        if isinstance(value, dict):
            places.extend((value, inner) for inner in value)
        elif isinstance(value, list):
            places.extend((value, index) for index in range(min(len(value), 6)))
    container, key = choose.choice(places)
    value = container[key]
    kind = choose.randrange(7)
    if kind == 0 and container is not holder:
        del container[key]
    elif kind == 1 and isinstance(container, dict):
        container[choose.choice(_WORDS)] = copy.deepcopy(value)
    elif kind == 1 and container is not holder:
        container.insert(key, copy.deepcopy(value))
    elif kind == 2:
        container[key] = [value] if choose.random() < 0.8 else _deep(value, choose.choice((31, 64, 65, 99, 100, 101)))
    elif kind == 3 and isinstance(value, list) and value:
        container[key] = value * choose.choice((2, 3, 50)) if choose.random() < 0.5 else value[: len(value) // 2]
    elif kind == 4 and isinstance(value, int):
        container[key] = value + choose.choice((-1, 1, 4, 2**32))
    elif kind == 5 and isinstance(value, dict):
        value[choose.choice(_WORDS)] = _odd(choose)
    else:
        container[key] = _odd(choose)
    return holder[0]


def _odd(choose: random.Random) -> Any:
    value = choose.choice(choose.choice((_WORDS, _NUMBERS, _ODD)))
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


def _deep(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def _binary(data: bytes, choose: random.Random) -> bytes:
    """The header's length follows the JSON, unless that is what is changed."""
    line, _, body = data.partition(b"\n")
    length = int(line) if line.isdigit() and len(line) < 9 else 0
    header, blobs = body[:length], body[length:]
    kind = choose.randrange(5)
    if kind == 0:
        return (
            choose.choice(
                (
                    *(b"0", b"-1", b"x", b"9" * 5000, b"%d" % (length + 1), b"%d" % (length - 1), b""),
                    *(b"%d" % limit for limit in _LIMITS),
                )
            )
            + b"\n"
            + body
        )
    if kind == 1:
        blobs = _bytes(blobs, choose)
    else:
        header = _json(header, choose)
    return b"%d\n%b%b" % (len(header), header, blobs)


def _behind_digit(data: bytes, choose: random.Random) -> bytes:
    if choose.random() < 0.05:
        return b"%d" % choose.randrange(10) + data[1:]
    return data[:1] + _json(data[1:], choose)


# protobuf


def _message(data: bytes, choose: random.Random) -> bytes:
    try:
        message = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        return _bytes(data, choose)
    for _ in range(choose.choice((1, 1, 2, 3))):
        _change_message(message, choose)
    return message.SerializeToString()


def _change_message(message: Any, choose: random.Random) -> None:
    """One field of it, or of a message in it, set or cleared or given once more."""
    while True:
        field = choose.choice(message.DESCRIPTOR.fields)
        value = getattr(message, field.name)
        if field.message_type is None or choose.random() < 0.2:
            break
        if field.message_type.GetOptions().map_entry:
            message = value[choose.choice(_WORDS[:-1]).encode(errors="replace").decode()]
        elif not field.is_repeated:
            value.SetInParent()
            message = value
        elif value:
            message = choose.choice(value)
        else:
            message = value.add()
    kind = choose.randrange(3)
    if kind == 0:
        message.ClearField(field.name)
    elif field.message_type is not None:
        if field.is_repeated and not field.message_type.GetOptions().map_entry and value:
            value.append(choose.choice(value))
    elif not field.is_repeated:
        setattr(message, field.name, _scalar(field, choose))
    elif kind == 1 and value:
        del value[choose.randrange(len(value)) :]
    else:
        value.append(_scalar(field, choose))


def _scalar(field: Any, choose: random.Random) -> Any:
    kinds: dict[int, Callable[[], Any]] = {
        field.CPPTYPE_BOOL: lambda: choose.random() < 0.5,
        field.CPPTYPE_INT32: lambda: choose.choice((0, 1, -1, 127, 128, 2**31 - 1, -(2**31))),
        field.CPPTYPE_INT64: lambda: choose.choice((0, 1, 2, -1, 8, 9, -(2**63), *_LIMITS[:13])),
        field.CPPTYPE_UINT32: lambda: choose.choice((0, 1, 255, 256, 2**32 - 1)),
        field.CPPTYPE_UINT64: lambda: choose.choice((0, 1, 2**63, 2**64 - 1)),
        field.CPPTYPE_FLOAT: lambda: choose.choice((0.0, 1.5, float("nan"), float("inf"))),
        field.CPPTYPE_DOUBLE: lambda: choose.choice((0.0, 1.5, float("nan"), 1e300)),
        field.CPPTYPE_STRING: lambda: choose.choice(_WORDS).encode(errors="replace").decode(),
    }
    if field.type == field.TYPE_BYTES:
        return bytes(choose.choice((0, 1, 3, 4, 8, 16, 64)))
    return kinds[field.cpp_type]()


# bytes


def _bytes(data: bytes, choose: random.Random) -> bytes:
    """Some bytes changed, taken out, or put in."""
    found = bytearray(data)
    for _ in range(choose.choice((1, 1, 2, 4))):
        at = choose.randrange(len(found) + 1)
        kind = choose.randrange(6)
        if kind == 5:  # a length before an element of BYTES, or a part of one
            limit = choose.choice(_LIMITS)
            found[at : at + 4] = (limit % 2**32).to_bytes(4, "little")
        elif kind == 0 and at < len(found):
            found[at] ^= 1 << choose.randrange(8)
        elif kind == 1 and at < len(found):
            found[at] = choose.choice((0, 1, 4, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del found[at : at + choose.choice((1, 2, 4, 1000))]
        elif kind == 3:
            found[at:at] = choose.choice(_TOKENS)
        else:
            found[at:at] = found[at : at + choose.choice((1, 4, 16))]
    return bytes(found)


# HTTP/2


def _frames(data: bytes, choose: random.Random) -> bytes:
    """Frames changed, taken out, or sent again; most have the length that their head says."""
    frames: list[list[Any]] = []
    while len(data) >= 9:
        end = 9 + int.from_bytes(data[:3], "big")
        frames.append([data[3], data[4], int.from_bytes(data[5:9], "big"), data[9:end]])
        data = data[end:]
    if not frames:
        return _bytes(data, choose)
    for _ in range(choose.choice((1, 1, 2, 3))):
        at = choose.randrange(len(frames))
        each = frames[at]
        match choose.randrange(8):
            case 0:
                each[0] = choose.randrange(12)
            case 1:
                each[1] ^= 1 << choose.randrange(8)
            case 2:
                each[2] = choose.choice((0, 1, 2, 3, 5, 7, 2**31 - 1, 2**31, (each[2] + 2) % 2**32))
            case 3:
                each[3] = _bytes(each[3], choose)
            case 4:
                each[3] = choose.choice(
                    (b"", bytes(4), bytes(8), b"\xff" * 4, b"\x7f\xff\xff\xff", (each[3] * 30)[:_LONG_FRAME])
                )
            case 5 if len(frames) > 1:
                del frames[at]
            case 6:
                frames[at:at] = [list(choose.choice(frames)) for _ in range(choose.choice((1, 1, 50)))]
            case _:
                frames.append([4, 0, 0, choose.randrange(1, 7).to_bytes(2, "big") + choose.choice(_SETTINGS)])
    joined = b"".join([len(p).to_bytes(3, "big") + bytes((k, f)) + s.to_bytes(4, "big") + p for k, f, s, p in frames])
    return joined if choose.random() < 0.9 else _bytes(joined, choose)


_LONG_FRAME = 2**16
_SETTINGS = tuple(value.to_bytes(4, "big") for value in (0, 1, 16_384, 65_535, 2**24 - 1, 2**31 - 1, 2**31))


def _blocks(data: bytes, choose: random.Random) -> bytes:
    """Header blocks, each with the length that is said."""
    blocks: list[bytes] = []
    while data:
        end = 2 + int.from_bytes(data[:2], "big")
        blocks.append(data[2:end])
        data = data[end:]
    if not blocks:
        return data
    for _ in range(choose.choice((1, 1, 2))):
        at = choose.randrange(len(blocks))
        match choose.randrange(4):
            case 0:
                blocks[at] = _bytes(blocks[at], choose)
            case 1:
                blocks.insert(at, choose.choice(blocks))
            case 2:
                blocks[at] += choose.choice((b"\xbe", b"\xbf", b"\x40\1x\1y", b"\0\1x\1y", b"\xbe" * 300))
            case _:
                blocks[at] = choose.choice((b"\x20", b"\x3f\xe1\x1f", b"\x3f\x45", b"\x20\x3f\xe1\x1f")) + blocks[at]
    return b"".join([len(block).to_bytes(2, "big") + block for block in blocks])


_ODD_TEXTS = (
    b"\xe9",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xf0\x9f",
    b"\0",
    b"\x1b[2J",
    b"\n",
    b"\r",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"\\udcff",
)


def _texts(data: bytes, choose: random.Random) -> bytes:
    """A text with pieces that are no characters, or no printable ones; sometimes read in another way."""
    kind, text = data[:1], data[1:]
    for _ in range(choose.choice((1, 1, 3))):
        at = choose.randrange(len(text) + 1)
        text = text[:at] + choose.choice(_ODD_TEXTS) + text[at:]
    if choose.random() < 0.3:
        text = _bytes(text, choose)
    return choose.choice((kind, b"b", b"u", b"n")) + text


_STRUCTURES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "http_json": _json,
    "http_json_alike": _alike,
    "http_binary": _binary,
    "bytes_tensor": _bytes,
    "grpc_message": _message,
    "request_reader": _message,
    "generate_body": _json,
    "predict_body": _json,
    "chat_body": _json,
    "completion_body": _json,
    "items_body": _json,
    "control_body": _behind_digit,
    "http2_connection": _frames,
    "header_blocks": _blocks,
    "foreign_text": _texts,
}
