"""Guesses what a misspelt name was meant to be."""

import difflib
from collections.abc import Collection, Iterable, Sequence
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


def field(name: str, names: Collection[str], root: Descriptor) -> Suggestion:
    """The field of `root`, or in it, that `name`, which is none of the `names` of a block's fields, was meant to be."""
    fields = {_fold(field): field for field in names}
    meant = fields.get(_fold(name), _FIELD_SYNONYMS.get(_fold(name)))
    if meant is not None and meant in names:
        return Suggestion(f"did you mean '{meant}'?", meant, sure=True)
    near = difflib.get_close_matches(_fold(name), fields, n=1, cutoff=_LIKELY)
    sure = bool(near) and difflib.SequenceMatcher(None, near[0], _fold(name)).ratio() >= _SURE
    elsewhere = [] if sure else _places(name, root)
    if 0 < len(elsewhere) <= _FEW:
        return Suggestion("it belongs " + " or ".join(elsewhere))
    if near:
        return Suggestion(f"did you mean '{fields[near[0]]}'?", fields[near[0]], sure)
    return Suggestion(f"allowed here: {', '.join(fields.values())}" if len(fields) <= _MANY else "")


def _places(name: str, root: Descriptor) -> list[str]:
    """Return the places that a field of this name may have, only the least deep of them."""
    level: list[tuple[str, Descriptor]] = [("", root)]
    while level:
        paths = [path for path, message in level if name in message.fields_by_name]
        if paths:
            return [f"inside '{path}'" if path else "at the top level, outside all blocks" for path in paths]
        fields = [(path, field) for path, message in level for field in message.fields]
        blocks = [(f"{path}.{field.name}".removeprefix("."), field.message_type) for path, field in fields]
        level = [(path, message) for path, message in blocks if message is not None]
    return []


def did_you_mean(name: str, names: Iterable[str], otherwise: str, *, cutoff: float = 0.8) -> str:
    """``did you mean '…'?`` with the nearest of the names, or the text `otherwise`."""
    matches = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"did you mean '{matches[0]}'?" if matches else otherwise


def enum_value(name: str, values: Sequence[str]) -> str:
    """Return the value that `name` was probably meant to be, or an empty text."""
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
