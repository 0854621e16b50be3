"""Guesses what a misspelt name was meant to be."""

import difflib
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor

_LIKELY = 0.6
_SURE = 0.85
_FEW = 2
_MANY = 8

# The words of other servers and of numpy; the keys are folded (see `_fold`).
_FIELD_SYNONYMS = {
    **dict.fromkeys(("datatype", "dtype", "type"), "data_type"),
    "shape": "dims",
    **dict.fromkeys(("batchsize", "maxbatch"), "max_batch_size"),
    "instances": "instance_group",
    "scheduling": "dynamic_batching",
}
_ENUM_SYNONYMS = {
    **dict.fromkeys(("bytes", "str"), "TYPE_STRING"),
    **dict.fromkeys(("half", "float16"), "TYPE_FP16"),
    "bfloat16": "TYPE_BF16",
    **dict.fromkeys(("float", "float32"), "TYPE_FP32"),
    **dict.fromkeys(("double", "float64"), "TYPE_FP64"),
    "int": "TYPE_INT32",
    "long": "TYPE_INT64",
    "byte": "TYPE_UINT8",
}


class Suggestion(NamedTuple):
    """A hint, which ends the sentence about an unknown name, and the field that was probably meant, if there is one."""

    hint: str
    name: str = ""
    sure: bool = False


class Fields:
    """Suggestions for unknown field names in the text of a `root` message."""

    def __init__(self, root: Descriptor) -> None:
        self._root = root

    def suggest(self, name: str, names: Collection[str]) -> Suggestion:
        """The field that `name`, which is none of the `names` of a block's fields, was probably meant to be."""
        fields = {_fold(field): field for field in names}
        synonym = _FIELD_SYNONYMS.get(_fold(name))
        meant = fields.get(_fold(name), synonym)
        if meant is not None and meant in names:
            return Suggestion(f"did you mean '{meant}'?", meant, sure=True)
        near = difflib.get_close_matches(_fold(name), fields, n=1, cutoff=_LIKELY)
        sure = bool(near) and difflib.SequenceMatcher(None, near[0], _fold(name)).ratio() >= _SURE
        elsewhere = self._containers.get(name, [])
        if elsewhere and not sure and len(elsewhere) <= _FEW:
            return Suggestion("it belongs " + " or ".join(elsewhere))
        if near:
            return Suggestion(f"did you mean '{fields[near[0]]}'?", fields[near[0]], sure)
        return Suggestion(f"allowed here: {', '.join(fields.values())}" if len(fields) <= _MANY else "")

    @cached_property
    def _containers(self) -> dict[str, list[str]]:
        """Field name → the places that it may have, only the least deep of them."""
        places: dict[str, list[str]] = {}
        level: list[tuple[str, Descriptor]] = [("", self._root)]
        while level:
            fields = [(path, field) for path, message in level for field in message.fields]
            on_level: dict[str, list[str]] = {}
            for path, field in fields:
                place = f"inside '{path}'" if path else "at the top level, outside all blocks"
                on_level.setdefault(field.name, []).append(place)
            places = on_level | places
            blocks = [(f"{path}.{field.name}".removeprefix("."), field.message_type) for path, field in fields]
            level = [(path, message) for path, message in blocks if message is not None]
        return places


def did_you_mean(name: str, names: Iterable[str], otherwise: str, *, cutoff: float = 0.8) -> str:
    """``did you mean '…'?`` with the nearest of the names, or the text `otherwise`."""
    matches = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"did you mean '{matches[0]}'?" if matches else otherwise


def enum_value(name: str, values: Sequence[str]) -> str:
    """The value that `name` was probably meant to be, or an empty text."""
    synonym = _ENUM_SYNONYMS.get(name.lower().removeprefix("type_"), "")
    if synonym in values:
        return synonym
    folded = {_fold(value): value for value in values}
    for prefixed in (name, f"{values[0].partition('_')[0]}_{name}"):
        near = difflib.get_close_matches(_fold(prefixed), folded, n=1, cutoff=_SURE)
        if near:
            return folded[near[0]]
    return next((folded[near] for near in difflib.get_close_matches(_fold(name), folded, n=1, cutoff=_LIKELY)), "")


def _fold(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
