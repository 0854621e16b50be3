"""Values at the beginning of a GGUF file: facts about the model, and its chat template.

The format is that of ggml's docs/gguf.md. Unused strings and arrays are skipped.
"""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeAlias

from modserve.core.errors import invalid
from modserve.core.files import regular_file

Value: TypeAlias = int | float | str

_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY, _UINT32, _UINT64 = 8, 9, 4, 10
"""The types of values."""
_ALIGNMENT = 32
"""Alignment of tensors, in bytes, if the file has none."""
_MOST_VALUES = 100_000
_MOST_DEPTH = 4
_TOKENS = "tokenizer.ggml.tokens"


@dataclass(slots=True)
class GgufHeader:
    """Header with numbers and texts by their names; for the tokens, only the place of each in the file."""

    values: dict[str, Value] = field(default_factory=dict)
    places: list[tuple[int, int]] = field(default_factory=list)
    """Position and length in bytes of the text of each token."""

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture", ""))

    @property
    def context_length(self) -> int:
        """Length in tokens; 0 if the file has none."""
        value = self.values.get(f"{self.architecture}.context_length", 0)
        return value if isinstance(value, int) else 0

    @property
    def chat_template(self) -> str:
        return str(self.values.get("tokenizer.chat_template", ""))


def special_tokens(path: Path, header: GgufHeader) -> Mapping[str, str]:
    """Return ``bos_token`` and ``eos_token``, as far as the file has them."""
    texts = {}
    with regular_file.open_regular(path) as file:
        for name in ("bos_token", "eos_token"):
            number = header.values.get(f"tokenizer.ggml.{name.replace('_token', '')}_token_id")
            if isinstance(number, int) and 0 <= number < len(header.places):
                position, length = header.places[number]
                file.seek(position)
                texts[name] = file.read(length).decode("utf-8", "replace")
    return texts


def read_header(path: Path) -> GgufHeader:
    """Read the header. Raises INVALID_ARG if it is no GGUF file, or has a broken beginning; OSError if unreadable."""
    size = path.stat().st_size
    with regular_file.open_regular(path) as file:
        try:
            return _Reader(file, size).header()
        except (struct.error, _BrokenError, UnicodeDecodeError) as error:
            what = "it ends too early" if isinstance(error, struct.error) else str(error)
            raise invalid(f"'{path}' is not a GGUF file that can be read: {what} (at byte {file.tell()})") from None


class _BrokenError(ValueError):
    pass


class _Reader:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size

    def header(self) -> GgufHeader:
        header = GgufHeader()
        magic, version, tensors, count = struct.unpack("<4sIQQ", self._file.read(24))
        if magic != b"GGUF":
            raise _BrokenError(f"it begins with {magic!r} and not with b'GGUF'")
        if version not in (2, 3):
            raise _BrokenError(f"its version is {version}, expected 2 or 3")
        if count > _MOST_VALUES:
            raise _BrokenError(f"it says that it has {count} values")
        for _ in range(count):
            name = self._text()
            kind = self._number(_UINT32)
            if name == _TOKENS and kind == _ARRAY:
                header.places = self._places()
            elif (value := self._value(int(kind), 0)) is not None:
                header.values[name] = value
        self._check_tensors(tensors, header.values.get("general.alignment", _ALIGNMENT))
        return header

    def _check_tensors(self, count: int, alignment: Value) -> None:
        """Check that every tensor begins inside the file: the engine itself reads beyond the end of a truncated one."""
        last, name = -1, ""
        for _ in range(count):
            own = self._text()
            self._skip(8 * int(self._number(_UINT32)) + 4)
            offset = int(self._number(_UINT64))
            last, name = max((last, name), (offset, own))
        if not isinstance(alignment, int) or alignment < 1:
            raise _BrokenError(f"its alignment is {alignment}")
        begin = -(-self._file.tell() // alignment) * alignment + last
        if count and begin >= self._size:
            raise _BrokenError(f"it ends at byte {self._size}, before its tensor '{name}', which begins at {begin}")

    def _value(self, kind: int, depth: int) -> Value | None:
        """Read a number or a text; None for an array, which is skipped."""
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._number(kind)
        element, length = int(self._number(_UINT32)), self._length()
        if element in _NUMBERS:
            self._skip(struct.calcsize(_NUMBERS[element]) * length)
            return None
        if depth == _MOST_DEPTH:
            raise _BrokenError("it has arrays in arrays in arrays")
        for _ in range(length):
            if element == _STRING:
                self._skip(self._length())
            else:
                self._value(element, depth + 1)
        return None

    def _places(self) -> list[tuple[int, int]]:
        element, length = self._number(_UINT32), self._length()
        if element != _STRING:
            raise _BrokenError("its tokens are no texts")
        places = []
        for _ in range(length):
            size = self._length()
            places.append((self._file.tell(), size))
            self._skip(size)
        return places

    def _number(self, kind: int) -> int | float:
        code = _NUMBERS.get(kind)
        if code is None:
            raise _BrokenError(f"it has a value of the unknown type {kind}")
        (number,) = struct.unpack(code, self._file.read(struct.calcsize(code)))
        return number  # type: ignore[no-any-return]

    def _text(self) -> str:
        length = self._length()
        data = self._file.read(length)
        if len(data) < length:
            raise _BrokenError("it ends too early")
        return data.decode("utf-8")

    def _length(self) -> int:
        (length,) = struct.unpack("<Q", self._file.read(8))
        if length > self._size:
            raise _BrokenError(f"something in it is {length} long, and the file {self._size}")
        return int(length)

    def _skip(self, size: int) -> None:
        if self._file.seek(size, os.SEEK_CUR) > self._size:
            raise _BrokenError("it ends too early")
