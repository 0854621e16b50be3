"""Options: each a name, a help text, a reader of texts, and the field of the settings that it sets."""

import dataclasses
import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

from pydantic import Field
from pydantic.fields import FieldInfo

from .setting_types import boolean, whole_number

T = TypeVar("T")


class OptionError(Exception):
    """Something cannot be a setting. The text names where it was written, its value, and what would be right."""


@dataclass(frozen=True, slots=True)
class Option:
    """A way to set a field of the settings, which stands next to the field: see `option`.

    The command line, its help and completion, the environment, option files and the documentation all come from it.
    `help` and `name` are patterns in which ``{}`` stands for the subject: HTTP or gRPC in a text, http or grpc in a
    name. What is left out follows from the field.
    """

    help: str
    name: str = ""
    value: str = ""
    """Placeholder of the value in the help."""
    default_in_words: str = ""
    section: str = ""
    """The heading that begins with this option."""
    parse: Callable[[str], Any] = str
    """A text's value. Raises ValueError."""
    several: bool = False
    """The option may be repeated; the field's validator gets a list."""
    flag: bool = False
    """The option's name alone means true."""
    expand: Callable[[str], tuple[str, str] | None] | None = None
    """Turns a text into another option's name and text, which win over that option; None: nothing follows."""
    deprecated: str = ""
    """Text to write instead. The option works, with a warning."""
    paths: tuple[tuple[str, ...], ...] = ()
    """The fields it sets: ``("http", "port")`` is `Settings.http.port`."""

    @property
    def keyword(self) -> str:
        """The keyword of `Settings` that sets it."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return f"MODSERVE_{self.keyword.upper()}"


def option(default: T, help: str, name: str = "", *others: Option, **more: Any) -> T:
    """Return a field with this default, the option that sets it, and `others` that set it as well."""
    options = [Option(help, name, **more), *others]
    return Field(default=default, json_schema_extra={"options": cast(Any, options)})


def options_of(fields: Mapping[str, FieldInfo], subject: str = "", label: str = "") -> Iterable[Option]:
    """Return the options written next to `fields`, with what follows from the fields filled in."""
    section = label
    for field_name, field in fields.items():
        for each in cast(Any, field.json_schema_extra or {}).get("options", ()):
            parse, value, several = _kind(field.annotation, each.name or field_name)
            yield dataclasses.replace(
                each,
                help=each.help.format(label),
                name=(each.name or ("{}-" if subject else "") + field_name).format(subject).replace("_", "-"),
                value=each.value or value,
                default_in_words=each.default_in_words or _in_words(field.default),
                section=each.section or section,
                parse=parse if each.parse is str else each.parse,
                several=each.several or several,
                paths=((subject, field_name) if subject else (field_name,),),
            )
            section = ""


_VALUES = {"address": "ADDRESS", "cert": "FILE", "file": "FILE", "key": "FILE"}
"""Placeholders of a text in the help, by the last word of the option's name."""


def _kind(annotation: Any, name: str) -> tuple[Callable[[str], Any], str, bool]:
    """Return the reader of a field's texts, their placeholder in the help, and True if there may be several."""
    if annotation is bool:
        return boolean, "true|false", False
    if annotation is int or int in get_args(annotation):
        return whole_number, "N", False
    if get_origin(annotation) is Literal:
        return str, "|".join(get_args(annotation)), False
    return str, _VALUES.get(name.rpartition("_")[2], "VALUE"), get_origin(annotation) is tuple


def _in_words(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if isinstance(default, int | str) else ""


def did_you_mean(name: str, names: Collection[str], dashes: str = "") -> str:
    """Return the end of an error that says which of `names` was probably meant; empty if none is close."""
    cutoff = 0.8 if name.startswith("MODSERVE_") else 0.6
    return "".join(f"; did you mean '{dashes}{match}'?" for match in difflib.get_close_matches(name, names, 1, cutoff))
