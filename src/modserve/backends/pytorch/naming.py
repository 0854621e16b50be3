"""Assignment of configured tensors to the arguments and results of a PyTorch model.

There are three conventions, as in Triton's PyTorch backend (README of pytorch_backend; `GetNamingConvention` in
src/pt/model_instance_state.cc, and `CallSpec` in src/pt2): the names of arguments and keys, ``NAME__index``, and the
order in the configuration. All inputs follow one convention, and all outputs one. Does not import PyTorch.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from modserve.core.errors import invalid

Path: TypeAlias = tuple[int | str, ...]
"""Path to a tensor: indices of tuples and lists and keys of dictionaries, outermost first."""
Template: TypeAlias = Any
"""Call arguments with input names in place of tensors: a name, or a tuple, list or dict of templates."""


@dataclass(frozen=True, slots=True)
class ProgramTensor:
    """An input or output tensor of a model. `names` are its possible names, the preferred one first."""

    path: Path
    names: tuple[str, ...]
    required: bool = True


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a model's ``forward``.

    `kind` is ``tensor``, ``strings`` (a list of strings), ``number``, ``string``, ``list`` or ``dict`` (of any number
    of tensors), ``tuple`` (of `size` tensors), or empty if no tensor can be passed.
    """

    name: str
    kind: str
    type: str = ""
    required: bool = True
    size: int = 0


@dataclass(frozen=True, slots=True)
class Structure:
    """A nested structure of tensors. `kind` is ``leaf``, ``tuple``, ``list`` or ``dict`` (with `keys`)."""

    kind: str
    keys: tuple[int | str, ...] = ()
    children: tuple["Structure", ...] = field(default=())

    def paths(self, before: Path = ()) -> list[Path]:
        """Return the paths of the leaves, in order."""
        if self.kind == "leaf":
            return [before]
        return [path for key, node in self.items for path in node.paths((*before, key))]

    @property
    def items(self) -> Iterator[tuple[int | str, "Structure"]]:
        return zip(self.keys, self.children, strict=True)

    def template(self, leaves: Iterator[str]) -> Template:
        """Return this structure with each leaf replaced by the next of `leaves`."""
        if self.kind == "leaf":
            return next(leaves)
        parts = [node.template(leaves) for node in self.children]
        if self.kind == "dict":
            return dict(zip(self.keys, parts, strict=True))
        return parts if self.kind == "list" else tuple(parts)


_KINDS = {
    "builtins.tuple": "tuple",
    "builtins.list": "list",
    "builtins.dict": "dict",
    "collections.OrderedDict": "dict",
    "collections.defaultdict": "dict",
}


def parse_structure(text: str) -> Structure:
    """Parse a serialised structure (``torch.utils._pytree.treespec_dumps``). Raises INVALID_ARG for unknown ones."""
    return _node(json.loads(text)[1])


def _node(value: Mapping[str, Any]) -> Structure:
    if value["type"] is None:
        return Structure("leaf")
    kind = _KINDS.get(value["type"])
    if kind is None:
        raise invalid(
            f"the program takes or returns a {value['type']}; only tensors and tuples, lists and dictionaries "
            "of tensors can be served"
        )
    children = tuple(map(_node, value["children_spec"]))
    keys: Sequence[int | str] = range(len(children))
    if kind == "dict":
        context = json.loads(value["context"]) if isinstance(value["context"], str) else value["context"]
        keys = context[-1] if context and isinstance(context[-1], list) else context or ()
    return Structure(kind, tuple(keys), children)


def name_part(root: str, path: Iterable[int | str]) -> str:
    """Return Triton's name for a part of a structure, ``root[2][key]``."""
    return root + "".join([f"[{key}]" for key in path])


def index_of(name: str) -> int | None:
    """Return the number after the first ``__``; None if anything else follows it."""
    digits = name.partition("__")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else None


class OnceLog:
    """Log that writes each note once, although every instance of a model binds the same names."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._written: set[str] = set()

    def __call__(self, note: str) -> None:
        if note not in self._written:
            self._written.add(note)
            self._log.info("%s", note)


def bind(
    label: str,
    direction: str,
    names: Sequence[str],
    slots: Sequence[ProgramTensor],
    on_order: Callable[[str], None] | None = None,
) -> dict[str, int]:
    """Return the index in `slots` for each of `names`. `direction` is ``input`` or ``output``.

    Several outputs may refer to the same result. `on_order` is called if no name matches, so that tensors are assigned
    in order; without it that is an error. Raises INVALID_ARG.
    """
    aliases = {alias: place for place, slot in enumerate(slots) for alias in slot.names}
    indices = [index_of(name) for name in names]
    if all(name in aliases for name in names):
        places = [aliases[name] for name in names]
    elif None not in indices:
        places = [index for index in indices if index is not None]
    elif on_order is not None:
        places = list(range(len(names)))
        known = [slot.names[0] for slot in slots if slot.names]
        if direction == "input" and known:
            on_order(
                f"{label}: {direction}s {_list_names(names)} are matched in this order to {_list_names(known)}, "
                "because their names are neither these nor NAME__index"
            )
    else:
        unknown = [name for name in names if name not in aliases]
        raise invalid(
            f"{label} has no {direction} {_list_names(unknown)}: it has {_list_names(slot.names[0] for slot in slots)}"
        )
    for name, place in zip(names, places, strict=True):
        if place >= len(slots):
            have = _list_names(slot.names[0] for slot in slots if slot.names)
            raise invalid(
                f"{label}: {direction} '{name}' is the model's {direction} number {place}, counted from 0, but it has "
                f"{len(slots)}{f' ({have})' if have else ''}"
            )
    if direction == "input" and len(set(places)) < len(places):
        raise invalid(f"{label}: two of the inputs {_list_names(names)} are the same input of the model")
    return dict(zip(names, places, strict=True))


def argument_slots(label: str, arguments: Sequence[Argument], names: Sequence[str]) -> list[ProgramTensor]:
    """Return the tensors accepted by the arguments of a ``forward``, for configured inputs with these names.

    A path begins with the argument's number. Raises INVALID_ARG if no tensor can be passed as one of the arguments.
    """
    if len(arguments) == 1 and arguments[0].kind == "dict":
        prefix = f"{arguments[0].name}["
        inner = [name[len(prefix) : -1] if name.startswith(prefix) and name[-1] == "]" else name for name in names]
        return [ProgramTensor((0, key), (name, key)) for name, key in zip(names, inner, strict=True)]
    if len(arguments) == 1 and arguments[0].kind == "list":
        return [ProgramTensor((0, index), (name_part(arguments[0].name, [index]),)) for index in range(len(names))]
    slots: list[ProgramTensor] = []
    for place, argument in enumerate(arguments):
        name, required = argument.name, argument.required
        if argument.kind == "tuple":
            slots += [
                ProgramTensor((place, index), (name_part(name, [index]),), required) for index in range(argument.size)
            ]
        elif argument.kind in ("list", "dict"):
            inside = [each[len(name) + 1 : -1] for each in names if each.startswith(f"{name}[") and each[-1] == "]"]
            keys: Sequence[int | str] = inside
            if argument.kind == "list":
                keys = sorted([int(index) for index in inside if index.isdecimal()])
            slots += [ProgramTensor((place, key), (name_part(name, [key]),)) for key in keys]
            if required and not keys:
                example = f"{name}[0]" if argument.kind == "list" else f"{name}[key]"
                raise invalid(
                    f"{label}: argument '{name}' is a {argument.kind} of tensors; inputs for it are called {example}"
                )
        elif argument.kind:
            slots.append(ProgramTensor((place,), (name,), required))
        elif required:
            raise invalid(
                f"{label}: argument '{name}' of the model is a {argument.type}, which cannot be an input; "
                "only tensors, lists, tuples and dictionaries of tensors, strings, lists of strings and numbers can"
            )
    return slots


def bind_arguments(
    label: str, arguments: Sequence[Argument], names: Sequence[str], on_order: Callable[[str], None]
) -> list[tuple[Argument, Template]]:
    """Return the values of the arguments in order, without arguments that have none. Raises INVALID_ARG."""
    slots = argument_slots(label, arguments, names)
    places = bind(label, "input", names, slots, on_order)
    by_place = {place: name for name, place in places.items()}
    missing = [slot.names[0] for place, slot in enumerate(slots) if slot.required and place not in by_place]
    if missing:
        raise invalid(
            f"{label}: the model takes {len(slots)} inputs ({_list_names(slot.names[0] for slot in slots)}), but the "
            f"configuration has none for {_list_names(missing)}"
        )
    parts: dict[int, list[tuple[Path, str]]] = {}
    for place, name in sorted(by_place.items()):
        path = slots[place].path
        parts.setdefault(int(path[0]), []).append((path[1:], name))
    return [(arguments[place], _assemble(arguments[place].kind, part)) for place, part in sorted(parts.items())]


def _assemble(kind: str, parts: Sequence[tuple[Path, str]]) -> Template:
    if kind == "dict":
        return {path[0]: name for path, name in parts}
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(name for _, name in parts)
    return parts[0][1]


def program_inputs(inputs: Structure, argument_names: Sequence[str] = ()) -> list[ProgramTensor]:
    """Return the tensors of an exported or compiled program; `inputs` is a tuple of arguments and keywords.

    `argument_names` are the argument names of its ``forward``, if known.
    """
    arguments, keywords = inputs.children
    slots = []
    for path in arguments.paths():
        names = [name_part("ARGS", path)]
        place = int(path[0])
        if place < len(argument_names):
            names.insert(0, name_part(argument_names[place], path[1:]))
        slots.append(ProgramTensor(path, tuple(names)))
    for path in keywords.paths():
        slots.append(ProgramTensor(path, (name_part(str(path[0]), path[1:]), name_part("KWARGS", path))))
    return slots


def result_slots(paths: Iterable[Path]) -> list[ProgramTensor]:
    """Return the tensors of a result, named ``RESULT``, ``RESULT[0]``, ``RESULT[key]`` or the dictionary's ``key``."""
    return [
        ProgramTensor(path, (name_part(path[0], path[1:]), name_part("RESULT", path)))
        if path and isinstance(path[0], str)
        else ProgramTensor(path, (name_part("RESULT", path),))
        for path in paths
    ]


def bind_results(label: str, names: Sequence[str], paths: Sequence[Path]) -> dict[str, int]:
    """Return the index of each output's leaf. Order is used only for results without keys. Raises INVALID_ARG."""
    keyed = any(isinstance(key, str) for path in paths for key in path)
    return bind(label, "output", names, result_slots(paths), None if keyed else lambda _: None)


def flatten(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield the leaves of a model's result. A list of strings is one leaf, and so is an empty list."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from flatten(part, (*path, str(key)))
    elif isinstance(value, tuple | list) and value and not all(isinstance(part, str) for part in value):
        for index, part in enumerate(value):
            yield from flatten(part, (*path, index))
    else:
        yield path, value


def fill(template: Template, values: Mapping[str, object]) -> Any:
    """Replace the names in a template with values. Raises KeyError for a missing value."""
    if type(template) is str:
        return values[template]
    if type(template) is dict:
        return {key: fill(part, values) for key, part in template.items()}
    return type(template)([fill(part, values) for part in template])


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
