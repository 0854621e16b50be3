"""Decoder of HPACK's Huffman code (RFC 7541, appendix B), with a table for twelve bits at a time.

Twelve bits hold two common symbols, or one of any except the rarest. Their codes have 13 to 30 bits and are found by
length: the code is canonical, so codes of the same length are consecutive numbers.
"""

from typing import Final

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from mypy_extensions import i64

_WINDOW: Final = 12
_LONGEST: Final = 30
_END_OF_TEXT: Final = 256
_ONES: Final = (1 << 62) - 1  # shifted right: in mypyc's C, a plain 1 shifted left has 32 bits


class HuffmanError(ValueError):
    """Bytes that are not valid in this code."""


def _codes() -> dict[tuple[int, int], int]:
    """Return symbols by the length and number of their codes."""
    pairs = zip(REQUEST_CODES_LENGTH, REQUEST_CODES, strict=True)
    return {(length, code): symbol for symbol, (length, code) in enumerate(pairs)}


def _symbol(codes: dict[tuple[int, int], int], bits: int, count: int) -> tuple[int, int]:
    """Return the first symbol in `count` bits and its length; -1 and 0 without one."""
    for length in range(1, count + 1):
        symbol = codes.get((length, bits >> (count - length)))
        if symbol is not None:
            return symbol, length
    return -1, 0


def _tables() -> tuple[list[bytes], bytes, bytes]:
    """Return for each window its one or two symbols, their bits, and the bits of the first; 0 bits for longer codes."""
    codes = _codes()
    texts: list[bytes] = []
    known: dict[bytes, bytes] = {}
    lengths, first_lengths = bytearray(), bytearray()
    for window in range(1 << _WINDOW):
        symbol, first = _symbol(codes, window, _WINDOW)
        text = bytes((symbol,)) if first else b""
        rest = _WINDOW - first
        symbol, second = _symbol(codes, window & ((1 << rest) - 1), rest) if first else (-1, 0)
        if second:
            text += bytes((symbol,))
        texts.append(known.setdefault(text, text))
        lengths.append(first + second)
        first_lengths.append(first)
    return texts, bytes(lengths), bytes(first_lengths)


def _long_codes() -> tuple[list[int], list[int], list[int]]:
    """Return by length the number after the last code and its symbol's index; and the symbols, in order of code."""
    ordered = sorted(_codes().items())
    behind, last = [0] * (_LONGEST + 1), [0] * (_LONGEST + 1)
    for index, ((length, code), _) in enumerate(ordered):
        behind[length], last[length] = code + 1, index
    return behind, last, [symbol for _, symbol in ordered]


_TEXTS, _LENGTHS, _FIRST_LENGTHS = _tables()
_BEHIND, _LAST, _SYMBOLS = _long_codes()


def decode(data: bytes) -> bytes:
    """Decode a text. Raises `HuffmanError` for the end symbol, and for padding other than up to seven ones."""
    texts, lengths = _TEXTS, _LENGTHS
    parts: list[bytes] = []
    bits: i64 = 0
    count: i64 = 0  # remaining bits
    at: i64 = 0
    end: i64 = len(data)
    while True:
        if count < _LONGEST and at < end:
            bits &= _ONES >> (62 - count)
            while count <= 48 and at < end:
                bits = bits << 8 | i64(data[at])
                count += 8
                at += 1
        if count < _WINDOW:
            break
        window: i64 = bits >> (count - _WINDOW) & 0xFFF
        length: i64 = lengths[window]
        if length:
            parts.append(texts[window])
        else:
            text, length = _long_symbol(bits & (_ONES >> (62 - count)), count)
            parts.append(text)
        count -= length
    while count:
        padding: i64 = _WINDOW - count
        window = (bits << padding | (_ONES >> (62 - padding))) & 0xFFF
        length = _FIRST_LENGTHS[window]
        if not length or length > count:
            if count > 7 or bits & (_ONES >> (62 - count)) != _ONES >> (62 - count):
                raise HuffmanError("the padding is wrong")
            break
        parts.append(texts[window][:1])
        count -= length
    return b"".join(parts)


def _long_symbol(bits: i64, count: i64) -> tuple[bytes, i64]:
    """Return the first symbol of `count` bits with a code longer than the window, and its length."""
    for length in range(_WINDOW + 1, min(_LONGEST, int(count)) + 1):
        before: i64 = _BEHIND[length] - 1 - (bits >> (count - length))
        if before >= 0:
            symbol = _SYMBOLS[_LAST[length] - before]
            if symbol == _END_OF_TEXT:
                break
            return bytes((symbol,)), length
    raise HuffmanError("a symbol is incomplete, or that of the end")
