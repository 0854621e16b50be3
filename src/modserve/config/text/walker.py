"""Walks over a whole configuration text and finds everything that `google.protobuf.text_format` would stop at.

text_format raises at the first mistake. The walker has the same grammar, but notes a mistake and continues where the
text makes sense again. It also notes the position of each field, for the problems that the validation finds later. It
builds no message: text_format does that, and has the last word (see `pbtxt.parse`).

Cuts text format into tokens, exactly as `google.protobuf.text_format` does, and keeps the position of each.

Only placeholders of templates, which text_format refuses at their first character, are one token here.

Single values, read as `google.protobuf.text_format` reads them. A value that does not fit raises ValueError.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from google.protobuf import text_encoding, text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from . import suggest
from .problems import FieldPath, Position, Problem

_SPACE_OR_COMMENT = re.compile(r"(?:\s|#.*)+")
_PLACEHOLDER = "${"
_TOKEN = re.compile(
    r"\$\{[^{}\"'\n]*\}"  # a template's, such as ${max_batch_size}: no value, but one mistake and not five
    r"|[a-zA-Z_][0-9a-zA-Z_+-]*"  # an identifier
    r"|(?:[0-9+-]|\.[0-9])[0-9a-zA-Z_.+-]*"  # a number
    r'|"[^"\n\\]*(?:(?:\\.)+[^"\n\\]*)*(?:"|\\?$)'  # a string up to its quote, or else the end of the line
    r"|'[^'\n\\]*(?:(?:\\.)+[^'\n\\]*)*(?:'|\\?$)"
)
_QUOTES = ("'", '"')
_AFTER_STRING = re.compile(r"[\s,;\]}>]+(?:#.*)?$")
"""The end of a line with an unclosed string that is unlikely to belong to the string."""
_ESCAPE = re.compile(
    r"\\(?:[abfnrtv\\'\"]|[0-3][0-7]{0,2}|[4-7][0-7]?(?![0-7])|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U00[0-9a-fA-F]{6}"
    r"|(?P<bad>.?))"
)


class Token(NamedTuple):
    """A piece of the text; the last one of a text is empty."""

    text: str
    line: int
    column: int

    @property
    def position(self) -> Position:
        return Position(self.line, self.column)

    @property
    def is_identifier(self) -> bool:
        return self.text[:1].isalpha() or self.text[:1] == "_"

    @property
    def is_placeholder(self) -> bool:
        return self.text.startswith(_PLACEHOLDER)

    @property
    def is_string(self) -> bool:
        return self.text.startswith(_QUOTES)

    @property
    def is_closed_string(self) -> bool:
        return self.is_string and len(self.text) >= 2 and self.text[-1] == self.text[0]

    def describe(self) -> str:
        if self.is_string:
            return f"the string {self.text}"
        if self.is_placeholder:
            return f"the placeholder {self.text} of a template; fill it in"
        return f"the number {self.text}" if re.match(r"[0-9+-]|\.[0-9]", self.text) else f"'{self.text}'"


def tokenize(text: str) -> list[Token]:
    tokens = [token for number, line in enumerate(text.split("\n"), 1) for token in _line_tokens(line, number)]
    last = tokens[-1] if tokens else Token("", 1, 1)
    tokens.append(Token("", last.line, last.column + len(last.text)))
    return tokens


def _line_tokens(line: str, number: int) -> Iterator[Token]:
    column = 0
    while True:
        space = _SPACE_OR_COMMENT.match(line, column)
        if space:
            column = space.end()
        if column >= len(line):
            return
        match = _TOKEN.match(line, column)
        token = Token(match[0] if match else line[column], number, column + 1)
        if token.is_string and not token.is_closed_string:
            token = _cut(token)
        yield token
        column += len(token.text)


def _cut(token: Token) -> Token:
    """Gives back the brackets at the end of a line that an unclosed string has swallowed: each would be missed too."""
    tail = _AFTER_STRING.search(token.text, 1)
    return token._replace(text=token.text[: tail.start()]) if tail else token


class StringFault(NamedTuple):
    """A mistake in a string, `offset` characters behind its start."""

    token: Token
    offset: int
    text: str
    unreadable: bool = False
    """text_format must not read the string: it would misunderstand an escape."""


def string_faults(tokens: Iterable[Token]) -> Iterator[StringFault]:
    """Yield the mistakes that a string can have wherever it stands."""
    for token in tokens:
        if not token.is_string:
            continue
        if not token.is_closed_string:
            yield StringFault(token, 0, f"a string that starts with {token.text[0]} must end with it on the same line")
        else:
            for escape in _ESCAPE.finditer(token.text[:-1]):
                if escape["bad"] is not None:
                    text = f"unknown escape {escape[0]} in a string; a backslash itself is written \\\\"
                    yield StringFault(token, escape.start(), text, unreadable=True)


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
    """Return the value of a token other than a string. Raises ValueError with a text that names the field."""
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


_CLOSERS = {"{": "}", "<": ">", "[": "]"}
_SEPARATORS = (",", ";")


@dataclass
class Walk:
    """The mistakes in a text, and the position of each field."""

    problems: list[Problem] = field(default_factory=list)
    positions: dict[FieldPath, Position] = field(default_factory=dict)
    unreadable: bool = False
    """text_format must not read the text: it would misunderstand an escape in a string."""


@dataclass
class _Scope:
    """An open block or list. A list has no fields; the outermost block has an empty opener and closer."""

    opener: Token
    fields: Mapping[str, FieldDescriptor]
    path: FieldPath
    seen: dict[str, Token] = field(default_factory=dict)
    """The fields that text_format would refuse a second time."""
    oneofs: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    key: str | int = ""
    """The key, if the block is an entry of a map."""

    @property
    def closer(self) -> str:
        return _CLOSERS.get(self.opener.text, "")


def walk(text: str, message: Descriptor) -> Walk:
    """Return all mistakes in the text of a message, and the position of each field."""
    walker = _Walker(tokenize(text), message)
    walker.check_strings()
    walker.block(_Scope(Token("", 1, 1), message.fields_by_name, ()))
    return walker.result


class _Walker:
    def __init__(self, tokens: Sequence[Token], root: Descriptor) -> None:
        self.result = Walk()
        self._root = root
        self._tokens = tokens
        self._at = 0
        self._scopes: list[_Scope] = []
        self._bad_strings: set[Position] = set()
        self._indentations = {token.line: token.column for token in reversed(tokens)}

    # Tokens

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _ahead(self, count: int) -> Token:
        return self._tokens[min(self._at + count, len(self._tokens) - 1)]

    def _advance(self) -> Token:
        token = self._token
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _take(self, *texts: str) -> bool:
        """Take the token if it is one of these texts; True if so."""
        matches = self._token.text in texts
        if matches:
            self._advance()
        return matches

    def _problem(self, token: Token, text: str) -> None:
        self.result.problems.append(Problem(text, token.position))

    def check_strings(self) -> None:
        for fault in string_faults(self._tokens):
            self._bad_strings.add(fault.token.position)
            self.result.unreadable |= fault.unreadable
            self._problem(fault.token._replace(column=fault.token.column + fault.offset), fault.text)

    # Blocks and lists

    def block(self, scope: _Scope) -> None:
        """Reads all fields of a block and its end."""
        self._scopes.append(scope)
        while not self._closes(scope):
            self._field(scope)
        self._scopes.pop()

    def _closes(self, scope: _Scope) -> bool:
        """Take the closing bracket if the block or list is complete; True if so."""
        while True:
            if self._take(scope.closer):
                return True
            token = self._token
            if self._belongs_outside(scope) or any(token.text == outer.closer for outer in self._scopes):
                self._never_closed(scope)
                return True
            if token.text not in _CLOSERS.values():
                return False
            self._problem(self._advance(), f"unexpected '{token.text}': there is no open block or list")

    def _never_closed(self, scope: _Scope) -> None:
        self._problem(scope.opener, f"'{scope.opener.text}' is never closed with '{scope.closer}'")

    def _belongs_outside(self, scope: _Scope) -> bool:
        """True if a field of an outer block starts here, indented no deeper than the line that opened this block."""
        token = self._token
        if not scope.closer or token.text in scope.fields or not self._looks_like_field():
            return False
        indentation = self._indentations
        outside = any(token.text in outer.fields for outer in self._scopes[:-1])
        return outside and indentation[token.line] == token.column <= indentation[scope.opener.line]

    def _looks_like_field(self) -> bool:
        """True if a field's name is here and not a value: the next token only follows names."""
        token, after = self._token, self._ahead(1).text
        is_known = after == "[" and any(token.text in scope.fields for scope in self._scopes)
        return token.is_identifier and (is_known or after in (":", "{", "<", "="))

    def _list(self, field: FieldDescriptor, scope: _Scope) -> None:
        """Reads the values between brackets; `scope` is that of the message around them."""
        opened = _Scope(self._advance(), {}, scope.path)
        if self._take("]"):
            return
        if field.message_type is not None and self._token.text in field.message_type.fields_by_name:
            self._problem(self._token, f"expected '{{' in the list of '{field.name}', each element is a block {{ … }}")
            self._at -= 1
            self._skip_value()
            return
        self._scopes.append(opened)
        while not self._closes(opened):
            if self._looks_like_field():
                self._never_closed(opened)
                break
            separator = self._token
            if self._take(*_SEPARATORS, ":", "="):
                self._problem(separator, f"expected a value in the list of '{field.name}', found '{separator.text}'")
                continue
            self._value(field, scope)
            self._comma(field)
        self._scopes.pop()

    def _comma(self, field: FieldDescriptor) -> None:
        """Reads what separates a value in a list from the next one."""
        token = self._token
        if self._take(","):
            if self._token.text == "]":
                self._problem(token, "a list must not end with ','")
        elif token.text and token.text not in _CLOSERS.values() and not self._looks_like_field():
            self._problem(token, f"expected ',' or ']' in the list of '{field.name}', found {token.describe()}")
            self._take(";", ":", "=")

    # Fields

    def _field(self, scope: _Scope) -> None:
        name = self._name(scope)
        if name is None:
            return
        field = scope.fields.get(name.text)
        if field is not None:
            self._read_known_field(field, name, scope, self._note_repetition(field, name, scope))
        else:
            self._unknown_field(name, scope)
        if not self._take(","):
            self._take(";")

    def _name(self, scope: _Scope) -> Token | None:
        """Reads the name of a field. Where there is none, reports and skips what is there, and returns None."""
        token = self._advance()
        if re.match(r"\w", token.text):
            return token
        if token.is_string and self._token.text == ":":
            self._problem(token, f"field names are written without quotes: {token.text.strip(token.text[0])}")
            return token._replace(text=token.text.strip(token.text[0]))
        if token.text == "{" and not scope.closer:
            self._problem(token, "expected a field name, found '{'; the fields of a model are not inside braces")
            self.block(_Scope(token, scope.fields, scope.path))
            return None
        self._problem(token, f"expected a field name, found {token.describe()}")
        if token.text in _CLOSERS:
            self._at -= 1
            self._skip_value()
            if self._take(":"):
                self._skip_value()
        return None

    def _unknown_field(self, name: Token, scope: _Scope) -> None:
        meant = suggest.field(name.text, scope.fields, self._root)
        self._problem(name, f"unknown field '{name.text}'" + (f"; {meant.hint}" if meant.hint else ""))
        if meant.sure:
            field = scope.fields[meant.name]
            opens = self._ahead(self._token.text == ":").text in _CLOSERS
            if opens == (field.message_type is not None or _is_repeated(field)):
                self._read_known_field(field, name, scope, first=True)
                return
        colon = self._take(":", "=")
        if not self._no_value() and (colon or self._token.text in _CLOSERS or not self._token.is_identifier):
            self._skip_value()

    def _note_repetition(self, field: FieldDescriptor, name: Token, scope: _Scope) -> bool:
        """Reports a second value or a second member of a oneof. Whether the field is the first of its name."""
        if _is_repeated(field):
            return True
        first = scope.seen.get(field.name)
        oneof = field.containing_oneof
        other = scope.oneofs.setdefault(oneof.name, field.name) if oneof is not None else field.name
        if other != field.name and oneof is not None:
            members = ", ".join(member.name for member in oneof.fields)
            self._problem(name, f"'{field.name}' and '{other}' are mutually exclusive: use only one of {members}")
        elif first is not None:
            self._problem(name, f"'{field.name}' is given twice, first on line {first.line}")
        return first is None

    def _read_known_field(self, field: FieldDescriptor, name: Token, scope: _Scope, first: bool) -> None:
        path = (*scope.path, field.name)
        self.result.positions.setdefault(path, name.position)
        if not self._colon(field, name):
            return
        if self._no_value():
            self._problem(name, f"'{field.name}' has no value")
            return
        if self._token.text != "[":
            value = self._value(field, scope, name)
            # Like text_format: a second plain value is a mistake unless the first one is the default.
            if first and (value or field.has_presence) and not _is_repeated(field):
                scope.seen[field.name] = name
        elif _is_repeated(field):
            self._list(field, scope)
        else:
            self._problem(self._token, f"'{field.name}' takes one value, not a list")
            self._skip_value()

    def _colon(self, field: FieldDescriptor, name: Token) -> bool:
        """Takes the colon, which is optional before a block. Whether a value may follow."""
        if self._take(":"):
            return True
        token = self._token
        if token.text != "=":
            if field.message_type is not None:
                return True
            if token.text in _CLOSERS and not (token.text == "[" and _is_repeated(field)):
                return True  # the value is of the wrong kind: reporting that is enough
            if self._no_value():
                self._problem(name, f"'{field.name}' has no value")
                return False
        self._problem(token, f"expected ':' after '{field.name}', found {token.describe()}")
        self._take("=")
        return True

    def _no_value(self) -> bool:
        token = self._token
        return not token.text or token.text in (*_CLOSERS.values(), *_SEPARATORS) or self._looks_like_field()

    # Values

    def _value(self, field: FieldDescriptor, scope: _Scope, name: Token | None = None) -> Scalar | None:
        """Reads one value. Its position is that of the field's name; in a list, its own."""
        path: FieldPath = (*scope.path, field.name)
        if _is_repeated(field):
            path = (*path, scope.counts.setdefault(field.name, 0))
            scope.counts[field.name] += 1
            self.result.positions[path] = (name or self._token).position
        if field.message_type is not None:
            self._message(field, field.message_type, path)
            return True
        value = self._scalar(field)
        if field.name == "key" and isinstance(value, str | int):
            scope.key = value
        return value

    def _message(self, field: FieldDescriptor, message: Descriptor, path: FieldPath) -> None:
        opener = self._token
        if opener.text not in ("{", "<"):
            example = _example(message, opener)
            self._problem(opener, f"'{field.name}' takes a block {example}, found {opener.describe()}")
            self._skip_value()
            return
        scope = _Scope(self._advance(), message.fields_by_name, path)
        if message.GetOptions().map_entry:
            self._entry(scope)
        else:
            self.block(scope)

    def _entry(self, scope: _Scope) -> None:
        """Reads an entry of a map. Positions inside are filed under its key: (…, 0, "value", x) is (…, key, x)."""
        depth = len(scope.path)
        outer = self.result.positions
        self.result.positions = inner = {scope.path: outer.pop(scope.path)}
        self.block(scope)
        for path, position in inner.items():
            rest = path[depth + 1 :] if path[depth : depth + 1] == ("value",) else path[depth:]
            outer.setdefault((*scope.path[:-1], scope.key, *rest), position)
        self.result.positions = outer

    def _scalar(self, field: FieldDescriptor) -> Scalar | None:
        """Reads a single value. Reports one that does not fit, and returns None."""
        token = self._token
        if token.text in _CLOSERS:
            self._problem(token, f"'{field.name}' takes a single value, not a block or list")
            self._skip_value()
            return None
        self._advance()
        if token.is_string and field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            parts = [token]
            while self._token.is_string:
                parts.append(self._advance())
            return self._string(parts)
        try:
            return parse(field, token)
        except ValueError as error:
            self._problem(token, str(error))
            while self._token.is_string:
                self._advance()
            return None

    def _string(self, parts: Sequence[Token]) -> str | None:
        """Return the text of adjacent strings, which are one value. Strings with mistakes stay as they are."""
        raw = [part.text[1:-1] for part in parts]
        if any(part.position in self._bad_strings for part in parts):
            return "".join(raw)
        try:
            return b"".join(map(text_encoding.CUnescape, raw)).decode()
        except ValueError:
            self._problem(parts[0], "a string whose escapes are not valid UTF-8")
            return None

    def _skip_value(self) -> None:
        """Skips a value of which nothing is known, with everything inside its brackets."""
        opened: list[Token] = []
        while self._token.text and (opened or self._token.text not in _CLOSERS.values()):
            token = self._advance()
            if token.text in _CLOSERS.values():
                opened.pop()
            elif token.text in _CLOSERS:
                opened.append(token)
            if not opened:
                while token.is_string and self._token.is_string:
                    self._advance()
                return
        for opener in opened:
            self._problem(opener, f"'{opener.text}' is never closed with '{_CLOSERS[opener.text]}'")


def _is_repeated(field: FieldDescriptor) -> bool:
    if hasattr(field, "is_repeated"):  # since protobuf 6.31, which deprecates `label`
        return field.is_repeated
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)  # type: ignore[attr-defined]


def _example(message: Descriptor, value: Token) -> str:
    """Return the block that a bare value should have been, if there is only one thing that the block can hold."""
    names = [field.name for field in message.fields if field.message_type is None]
    return f"{{ {names[0]}: {value.text} }}" if value.text and len(names) == len(message.fields) == 1 else "{ … }"
