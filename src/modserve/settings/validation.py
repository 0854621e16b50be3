"""Values of fields by their annotations: what is converted, what is refused, and all mistakes of a class at once.

A few kinds of annotations are understood, which are those of the settings. In ``Annotated``, functions convert a value,
and `Bounds` limit it. Libraries for this are ten times as large as all settings, and a server would import them before
anything else.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")


class Before(NamedTuple):
    """Converts the value before its type is checked. Raises ValueError."""

    convert: Callable[[Any], Any]


class After(NamedTuple):
    """Converts the value after that. Raises ValueError."""

    convert: Callable[[Any], Any]


class Instead(NamedTuple):
    """Converts the value, and its type is not checked. Raises ValueError."""

    convert: Callable[[Any], Any]


class Bounds(NamedTuple):
    """The least number, and the greatest."""

    least: int
    greatest: int | None = None


class Mistake(NamedTuple):
    """One thing that is wrong: the fields that lead to it, what is wrong, and the value, which may be a secret."""

    path: tuple[str, ...]
    text: str
    value: object = None


class SettingsError(ValueError):
    """Some values cannot be settings. Its text names the fields, and no values."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(": ".join(filter(None, [".".join(each.path), each.text])) for each in self.mistakes))


@contextmanager
def one_mistake() -> Iterator[None]:
    """A ValueError in here, which is about no field or several, becomes a SettingsError."""
    try:
        yield
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError([Mistake((), str(error))]) from None


class _WrongError(ValueError):
    def __init__(self, text: str, value: object) -> None:
        super().__init__(text)
        self.value = value


annotations = cache(lambda kind: get_type_hints(kind, include_extras=True))
"""The annotations of a class's fields, by name."""


def checked(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The `values` of the fields of a class, converted. Raises SettingsError with all mistakes."""
    mistakes, results = [], {}
    hints = annotations(kind)
    for name, value in values.items():
        if name not in hints:
            mistakes.append(Mistake((name,), "there is no such setting"))
            continue
        try:
            results[name] = converted(hints[name], value)
        except SettingsError as inner:
            mistakes += [each._replace(path=(name, *each.path)) for each in inner.mistakes]
        except ValueError as error:
            mistakes.append(Mistake((name,), str(error), getattr(error, "value", value)))
    if mistakes:
        raise SettingsError(mistakes)
    return results


def converted(annotation: Any, value: Any) -> Any:
    """The value as the annotation wants it. Raises ValueError."""
    if get_origin(annotation) is not Annotated:
        return _typed(annotation, value)
    base, *marks = get_args(annotation)
    for mark in reversed(marks):
        if isinstance(mark, Before):
            value = _by(mark.convert, value)
    instead = next((mark for mark in marks if isinstance(mark, Instead)), None)
    value = _typed(base, value) if instead is None else _by(instead.convert, value)
    for mark in marks:
        if isinstance(mark, After):
            value = _by(mark.convert, value)
        elif isinstance(mark, Bounds) and value is not None:
            _check_bounds(mark, value)
    return value


def _by(convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except _WrongError:
        raise
    except ValueError as error:
        raise _WrongError(str(error), value) from None


def _check_bounds(bounds: Bounds, value: int) -> None:
    if value < bounds.least:
        raise _WrongError(f"Input should be greater than or equal to {bounds.least}", value)
    if bounds.greatest is not None and value > bounds.greatest:
        raise _WrongError(f"Input should be less than or equal to {bounds.greatest}", value)


def _typed(annotation: Any, value: Any) -> Any:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _one_of(inner, value)
    if origin is Literal:
        return _literal(inner, value)
    if origin is tuple and inner[1:] == (...,):
        return tuple(converted(inner[0], each) for each in _items(value, "tuple"))
    if origin is tuple:
        items = _items(value, "tuple")
        if len(items) != len(inner):
            raise _WrongError(f"Input should have {len(inner)} items", value)
        return tuple(converted(kind, each) for kind, each in zip(inner, items, strict=True))
    if origin is frozenset:
        return frozenset(converted(inner[0], each) for each in _items(value, "set"))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _WrongError("Input should be a valid dictionary", value)
        return {converted(inner[0], key): converted(inner[1], each) for key, each in value.items()}
    return _plain(origin or annotation, value)


def _one_of(kinds: tuple[Any, ...], value: Any) -> Any:
    if value is None and NoneType in kinds:
        return None
    [kind] = [each for each in kinds if each is not NoneType]
    return converted(kind, value)


def _literal(allowed: tuple[str, ...], value: Any) -> Any:
    if value not in allowed:
        *others, last = [repr(each) for each in allowed]
        raise _WrongError(f"Input should be {', '.join(others)}{' or ' if others else ''}{last}", value)
    return value


def _items(value: Any, kind: str) -> list[Any]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise _WrongError(f"Input should be a valid {kind}", value)
    return list(value)


def _plain(kind: Any, value: Any) -> Any:
    if kind is int and not isinstance(value, float) and isinstance(value, int):
        return int(value)
    if kind is int and isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is bool and not isinstance(value, bool) and value in (0, 1):
        return bool(value)
    if kind in (object, Any) or isinstance(value, kind):
        return value
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return kind(**checked(kind, value))
    names = {int: "integer", bool: "boolean", str: "string"}
    raise _WrongError(f"Input should be a valid {names.get(kind, kind.__name__)}", value)
