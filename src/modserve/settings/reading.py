"""Settings from all sources together: the command line wins over the environment, which wins over the option file."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import ValidationError

from . import sources
from .options import OptionError
from .settings import OPTIONS, Settings
from .sources import Entry
from .triton_options import NOT_SUPPORTED, OFF, SWITCHES, WITHOUT_EFFECT
from .values import boolean

FieldPath: TypeAlias = tuple[str, ...]
"""A field of `Settings`, or of one of its subjects."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What a command line says: settings, and warnings about what has no effect."""

    settings: Settings
    warnings: tuple[str, ...] = ()


def from_command_line(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> CommandLine:
    """Read the command line over the environment, and both over the option file that they name.

    Raises OptionError; its text says where the mistake is, and for a misspelled name, which was probably meant.
    """
    warnings: list[str] = []
    variables = list(sources.from_environment(os.environ if environment is None else environment, warnings))
    words = list(sources.from_words(arguments))
    files = [entry.text for entry in (*variables, *words) if entry.name == sources.CONFIG]
    file = list(sources.from_file(files[-1])) if files else []
    values: dict[FieldPath, Any] = {}
    places: dict[FieldPath, str] = {}
    for source in (file, variables, words):
        values |= _values([entry for entry in source if entry.name in OPTIONS], places)
        warnings += _without_effect([entry for entry in source if entry.name in (*WITHOUT_EFFECT, *NOT_SUPPORTED)])
    fields: dict[str, Any] = {}
    for (*subject, field), value in values.items():
        (fields.setdefault(subject[0], {}) if subject else fields)[field] = value
    try:
        settings = Settings(**fields)
    except ValidationError as error:
        raise OptionError(_explained(error, places)) from None
    return CommandLine(settings, tuple(dict.fromkeys(warnings)))


def _values(entries: Sequence[Entry], places: dict[FieldPath, str]) -> dict[FieldPath, Any]:
    """The values of the fields that a source sets; `places` gets where they are written. Raises OptionError."""
    if {"cache-config", "response-cache-byte-size"} <= {entry.name for entry in entries}:
        raise OptionError(
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or the "
            "other."
        )
    values: dict[FieldPath, Any] = {}
    winning: dict[FieldPath, Any] = {}
    for name, text, place in entries:
        option = OPTIONS[name]
        target = values
        try:
            if option.expand is not None:
                expansion = option.expand(text)
                if expansion is None:
                    continue
                option, text = OPTIONS[expansion[0]], expansion[1]
                target = winning
            value = option.parse(text)
        except ValueError as error:
            raise OptionError(f"{place}: {error}") from None
        for path in option.paths:
            if option.several:
                values.setdefault(path, []).append(value)
            else:
                target[path] = value
            places[path] = place
    return values | winning


def _without_effect(entries: Iterable[Entry]) -> Iterator[str]:
    """Warnings about options of tritonserver that do nothing here. Raises OptionError for those that are refused."""
    for name, text, place in entries:
        if name in SWITCHES:
            try:
                if not boolean(text):
                    continue
            except ValueError as error:
                raise OptionError(f"{place}: {error}") from None
        if name in WITHOUT_EFFECT:
            yield f"{place} has no effect in modserve: {WITHOUT_EFFECT[name]}"
        elif text.lower() != OFF.get(name):
            raise OptionError(f"{place}: not supported by this version of modserve: {NOT_SUPPORTED[name]}")


def _explained(error: ValidationError, places: Mapping[FieldPath, str]) -> str:
    lines = []
    for problem in error.errors():
        message = problem["msg"].removeprefix("Value error, ")
        place = next((place for path, place in places.items() if problem["loc"][: len(path)] == path), None)
        if place is not None:
            message = f"{place}: {message}"
            if isinstance(problem["input"], str | int):
                message += f", got: {problem['input']}"
        lines.append(message)
    return "\n".join(dict.fromkeys(lines))
