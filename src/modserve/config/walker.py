"""Goes over a whole configuration text and finds everything that `google.protobuf.text_format` would stop at.

text_format raises at the first mistake. This walker has the same grammar, but notes a mistake and goes on where the
text makes sense again; and it notes where each field stands, for what the validation will have to say. It builds no
message: text_format does that, and has the last word (see `pbtxt.read`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from google.protobuf import text_encoding
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from . import scalars, suggest
from .problems import FieldPath, Position, Problem
from .tokens import Token, tokenize

_CLOSERS = {"{": "}", "<": ">", "[": "]"}
_SEPARATORS = (",", ";")
_ESCAPE = re.compile(
    r"\\(?:[abfnrtv\\'\"]|[0-3][0-7]{0,2}|[4-7][0-7]?(?![0-7])|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U00[0-9a-fA-F]{6}"
    r"|(?P<bad>.?))"
)


@dataclass
class Walk:
    """What was found. `unreadable` strings have escapes that text_format must not be given: it misreads them."""

    problems: list[Problem] = field(default_factory=list)
    positions: dict[FieldPath, Position] = field(default_factory=dict)
    unreadable: bool = False


@dataclass
class _Scope:
    """A block or list that is open. `message` is None for a list; the outermost has an empty opener and closer."""

    opener: Token
    message: Descriptor | None
    path: FieldPath
    seen: dict[str, Token] = field(default_factory=dict)
    """The fields that may not come again, as far as text_format notices."""
    oneofs: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    key: str | int = ""
    """The key, where the block is a map's entry."""

    @property
    def closer(self) -> str:
        return _CLOSERS.get(self.opener.text, "")


def walk(text: str, message: Descriptor) -> Walk:
    """Everything wrong with a message's text, and the position of each field."""
    walker = _Walker(tokenize(text))
    walker.check_strings()
    walker.fields(_Scope(Token("", 1, 1), message, ()))
    return walker.found


class _Walker:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self.found = Walk()
        self._tokens = tokens
        self._at = 0
        self._scopes: list[_Scope] = []
        self._bad_strings: set[Position] = set()
        self._indentations = {token.line: token.column for token in reversed(tokens)}

    # Tokens

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    @property
    def _next(self) -> Token:
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def _advance(self) -> Token:
        token = self._token
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _take(self, *texts: str) -> bool:
        if self._token.text in texts:
            self._advance()
            return True
        return False

    def _problem(self, token: Token, text: str) -> None:
        self.found.problems.append(Problem(text, token.position))

    def check_strings(self) -> None:
        """What can be wrong with a string wherever it stands."""
        for token in self._tokens:
            if token.text.isascii() and not token.is_string:
                continue
            outside = re.search("[\ud800-\udfff]", token.text)
            if outside:
                self._bad_strings.add(token.position)
                self._problem(
                    token._replace(column=token.column + outside.start()), "a byte that is not UTF-8; save as UTF-8"
                )
            if token.is_string and not token.is_closed_string:
                self._bad_strings.add(token.position)
                self._problem(token, f"a string that starts with {token.text[0]} must end with it on the same line")
            elif token.is_string:
                self._check_escapes(token)

    def _check_escapes(self, token: Token) -> None:
        for escape in _ESCAPE.finditer(token.text[:-1]):
            if escape["bad"] is not None:
                self.found.unreadable = True
                self._bad_strings.add(token.position)
                at = token._replace(column=token.column + escape.start())
                self._problem(at, f"unknown escape {escape[0]} in a string; a backslash itself is written \\\\")

    # Blocks and lists

    def fields(self, scope: _Scope) -> None:
        """All fields up to the end of the block, and that end."""
        self._scopes.append(scope)
        while not self._closes(scope):
            self._field(scope)
        self._scopes.pop()

    def _closes(self, scope: _Scope) -> bool:
        """Whether nothing more belongs to the block or list; takes its closing bracket."""
        while True:
            token = self._token
            if token.text == scope.closer:
                self._advance()
                return True
            if not token.text or self._belongs_outside(scope):
                self._never_closed(scope)
                return True
            if token.text not in _CLOSERS.values():
                return False
            if any(outer.closer == token.text for outer in self._scopes):
                self._never_closed(scope)
                return True
            self._problem(self._advance(), f"unexpected '{token.text}': nothing is open that it could close")

    def _never_closed(self, scope: _Scope) -> None:
        self._problem(scope.opener, f"'{scope.opener.text}' is never closed with '{scope.closer}'")

    def _belongs_outside(self, scope: _Scope) -> bool:
        """Whether a field of an outer block starts here, not indented deeper than the line which opened this one."""
        token = self._token
        if not scope.closer or not token.is_identifier or not self._looks_like_field():
            return False
        if scope.message is not None and token.text in scope.message.fields_by_name:
            return False
        indentation = self._indentations
        return indentation[token.line] == token.column <= indentation[scope.opener.line] and any(
            outer.message is not None and token.text in outer.message.fields_by_name for outer in self._scopes[:-1]
        )

    def _looks_like_field(self) -> bool:
        """Whether a name with something that only follows names is here, so that it can be no value."""
        token, after = self._token, self._next.text
        return token.is_identifier and (
            after in (":", "{", "<", "=") or (after == "[" and self._known_name(token.text))
        )

    def _known_name(self, name: str) -> bool:
        return any(scope.message is not None and name in scope.message.fields_by_name for scope in self._scopes)

    def _list(self, known: FieldDescriptor, scope: _Scope) -> None:
        """The values between brackets; the scope is that of the message around."""
        opened = _Scope(self._advance(), None, scope.path)
        if self._take("]"):
            return
        if known.message_type is not None and self._token.text in known.message_type.fields_by_name:
            self._problem(self._token, f"expected '{{' in the list of '{known.name}', each element is a block {{ … }}")
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
                self._problem(separator, f"expected a value in the list of '{known.name}', found '{separator.text}'")
                continue
            self._value(known, scope)
            self._comma(known)
        self._scopes.pop()

    def _comma(self, known: FieldDescriptor) -> None:
        """What follows a value in a list, except its end."""
        token = self._token
        if self._take(","):
            if self._token.text == "]":
                self._problem(token, "a list must not end with ','")
        elif token.text and token.text not in _CLOSERS.values() and not self._looks_like_field():
            self._problem(token, f"expected ',' or ']' in the list of '{known.name}', found {token.describe()}")
            self._take(";", ":", "=")

    # Fields

    def _field(self, scope: _Scope) -> None:
        assert scope.message is not None, "a list has no fields: this is a bug"
        name = self._name(scope)
        if name is None:
            return
        known = scope.message.fields_by_name.get(name.text)
        if known is not None:
            self._known_field(known, name, scope, self._note_repetition(known, name, scope))
        else:
            self._unknown_field(name, scope)
        if not self._take(","):
            self._take(";")

    def _name(self, scope: _Scope) -> Token | None:
        """The name of a field; None where there is none, which is then dealt with."""
        token = self._advance()
        if re.match(r"\w", token.text):
            return token
        if token.is_string and self._token.text == ":":
            self._problem(token, f"field names are written without quotes: {token.text.strip(token.text[0])}")
            return token._replace(text=token.text.strip(token.text[0]))
        if token.text == "{" and not scope.closer:
            self._problem(token, "expected a field name, found '{'; the fields of a model stand outside all braces")
            self.fields(_Scope(token, scope.message, scope.path))
            return None
        self._problem(token, f"expected a field name, found {token.describe()}")
        if token.text in _CLOSERS:
            self._at -= 1
            self._skip_value()
            if self._take(":"):
                self._skip_value()
        return None

    def _unknown_field(self, name: Token, scope: _Scope) -> None:
        assert scope.message is not None, "a list has no fields: this is a bug"
        meant = suggest.field(name.text, scope.message)
        self._problem(name, f"unknown field '{name.text}'" + (f"; {meant.hint}" if meant.hint else ""))
        if meant.sure:
            known = scope.message.fields_by_name[meant.name]
            opens = self._tokens[min(self._at + (self._token.text == ":"), len(self._tokens) - 1)].text in _CLOSERS
            if opens == (known.message_type is not None or _is_repeated(known)):
                self._known_field(known, name, scope, first=True)
                return
        colon = self._take(":", "=")
        if not self._no_value() and (colon or self._token.text in _CLOSERS or not self._token.is_identifier):
            self._skip_value()

    def _note_repetition(self, known: FieldDescriptor, name: Token, scope: _Scope) -> bool:
        """Reports a second value, or a second member of a oneof; whether the field is the first of its name."""
        if _is_repeated(known):
            return True
        first = scope.seen.get(known.name)
        oneof = known.containing_oneof
        other = scope.oneofs.setdefault(oneof.name, known.name) if oneof is not None else known.name
        if other != known.name and oneof is not None:
            members = ", ".join(member.name for member in oneof.fields)
            self._problem(name, f"'{known.name}' and '{other}' exclude each other: give only one of {members}")
        elif first is not None:
            self._problem(name, f"'{known.name}' is given twice, first on line {first.line}")
        return first is None

    def _known_field(self, known: FieldDescriptor, name: Token, scope: _Scope, first: bool) -> None:
        path = (*scope.path, known.name)
        self.found.positions.setdefault(path, name.position)
        if not self._colon(known, name):
            return
        if self._no_value():
            self._problem(name, f"'{known.name}' has no value")
            return
        if self._token.text != "[":
            value = self._value(known, scope, name)
            # As text_format: a repetition of a plain value is noticed unless the earlier one is the default.
            if first and (value or known.has_presence) and not _is_repeated(known):
                scope.seen[known.name] = name
        elif _is_repeated(known):
            self._list(known, scope)
        else:
            self._problem(self._token, f"'{known.name}' takes one value, not a list")
            self._skip_value()

    def _colon(self, known: FieldDescriptor, name: Token) -> bool:
        """Takes the colon, which blocks may go without; whether a value may follow."""
        if self._take(":"):
            return True
        if self._token.text == "=":
            self._problem(self._advance(), f"expected ':' after '{known.name}', found '='")
            return True
        if known.message_type is not None:
            return True
        if self._token.text in _CLOSERS and not (self._token.text == "[" and _is_repeated(known)):
            return True  # the value does not fit either, which says it all
        if self._no_value():
            self._problem(name, f"'{known.name}' has no value")
            return False
        self._problem(self._token, f"expected ':' after '{known.name}', found {self._token.describe()}")
        return True

    def _no_value(self) -> bool:
        token = self._token
        return not token.text or token.text in (*_CLOSERS.values(), *_SEPARATORS) or self._looks_like_field()

    # Values

    def _value(self, known: FieldDescriptor, scope: _Scope, name: Token | None = None) -> scalars.Scalar | None:
        """One value, and its position: that of the field's name where there is one, in a list its own."""
        path: FieldPath = (*scope.path, known.name)
        if _is_repeated(known):
            path = (*path, scope.counts.setdefault(known.name, 0))
            scope.counts[known.name] += 1
            self.found.positions[path] = (name or self._token).position
        if known.message_type is not None:
            self._message(known, known.message_type, path)
            return True
        value = self._scalar(known)
        if known.name == "key" and isinstance(value, str | int):
            scope.key = value
        return value

    def _message(self, known: FieldDescriptor, message: Descriptor, path: FieldPath) -> None:
        opener = self._token
        if opener.text not in ("{", "<"):
            self._problem(
                opener, f"'{known.name}' takes a block {_example(message, opener)}, found {opener.describe()}"
            )
            self._skip_value()
            return
        scope = _Scope(self._advance(), message, path)
        if message.GetOptions().map_entry:
            self._entry(scope)
        else:
            self.fields(scope)

    def _entry(self, scope: _Scope) -> None:
        """A map's entry. What is noted inside is filed under its key: (…, number, "value", x) becomes (…, key, x)."""
        depth = len(scope.path)
        positions = self.found.positions
        self.found.positions = {scope.path: positions.pop(scope.path)}
        self.fields(scope)
        for path, position in self.found.positions.items():
            rest = path[depth + 1 :] if path[depth : depth + 1] == ("value",) else path[depth:]
            positions.setdefault((*scope.path[:-1], scope.key, *rest), position)
        self.found.positions = positions

    def _scalar(self, known: FieldDescriptor) -> scalars.Scalar | None:
        """A single value; None, with a problem, where it does not fit."""
        token = self._token
        if token.text in _CLOSERS:
            self._problem(token, f"'{known.name}' takes a plain value, not a block or list")
            self._skip_value()
            return None
        self._advance()
        if token.is_string and known.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            parts = [token]
            while self._token.is_string:
                parts.append(self._advance())
            return self._string(parts)
        try:
            return scalars.parse(known, token)
        except ValueError as error:
            self._problem(token, str(error))
            while self._token.is_string:
                self._advance()
            return None

    def _string(self, parts: Sequence[Token]) -> str | None:
        """The text of adjacent strings, which make one. Those that `check_strings` has objected to stay as they are."""
        raw = [part.text[1:-1] for part in parts]
        if any(part.position in self._bad_strings for part in parts):
            return "".join(raw)
        try:
            return b"".join(map(text_encoding.CUnescape, raw)).decode()
        except ValueError:
            self._problem(parts[0], "a string whose escapes do not make UTF-8")
            return None

    def _skip_value(self) -> None:
        """Over a value of which nothing is known, with all that is inside its brackets."""
        opened: list[Token] = []
        while True:
            token = self._token
            if not token.text:
                for opener in opened:
                    self._problem(opener, f"'{opener.text}' is never closed with '{_CLOSERS[opener.text]}'")
                return
            if token.text in _CLOSERS.values():
                if not opened:
                    return
                opened.pop()
            elif token.text in _CLOSERS:
                opened.append(token)
            self._advance()
            if not opened:
                while token.is_string and self._token.is_string:
                    self._advance()
                return


def _is_repeated(known: FieldDescriptor) -> bool:
    # `is_repeated` came with protobuf 6.31, and `label` is deprecated since.
    return bool(known.default_value == [])


def _example(message: Descriptor, found: Token) -> str:
    """How the value would be written, where it is plainly the only thing the block can hold."""
    names = [known.name for known in message.fields if known.message_type is None]
    return f"{{ {names[0]}: {found.text} }}" if found.text and len(names) == len(message.fields) == 1 else "{ … }"
