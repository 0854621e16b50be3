"""What a misspelt name was probably meant to be."""

import difflib
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor

from modserve.pb import inference as pb

_LIKELY = 0.6
_SURE = 0.85
_FEW = 2
_MANY = 8

# Words of other servers and of numpy, in the folded spelling.
_FIELD_SYNONYMS = {
    "datatype": "data_type",
    "dtype": "data_type",
    "type": "data_type",
    "shape": "dims",
    "batchsize": "max_batch_size",
    "maxbatch": "max_batch_size",
    "instances": "instance_group",
    "scheduling": "dynamic_batching",
}
_ENUM_SYNONYMS = {
    "bytes": "TYPE_STRING",
    "str": "TYPE_STRING",
    "half": "TYPE_FP16",
    "float16": "TYPE_FP16",
    "bfloat16": "TYPE_BF16",
    "float": "TYPE_FP32",
    "float32": "TYPE_FP32",
    "double": "TYPE_FP64",
    "float64": "TYPE_FP64",
    "int": "TYPE_INT32",
    "long": "TYPE_INT64",
    "byte": "TYPE_UINT8",
}


class Suggestion(NamedTuple):
    """`name` is a field of the message at hand that was probably meant, `hint` the end of the sentence."""

    hint: str
    name: str = ""
    sure: bool = False


def field(name: str, message: Descriptor) -> Suggestion:
    """What may have been meant by a name that is no field of the message."""
    fields = {_fold(known): known for known in message.fields_by_name}
    synonym = _FIELD_SYNONYMS.get(_fold(name))
    meant = fields.get(_fold(name)) or (synonym if synonym in message.fields_by_name else None)
    if meant:
        return Suggestion(f"did you mean '{meant}'?", meant, sure=True)
    near = difflib.get_close_matches(_fold(name), fields, n=1, cutoff=_LIKELY)
    sure = bool(near) and difflib.SequenceMatcher(None, near[0], _fold(name)).ratio() >= _SURE
    elsewhere = _containers().get(name, [])
    if elsewhere and not sure and len(elsewhere) <= _FEW:
        return Suggestion("it belongs " + " or ".join(elsewhere))
    if near:
        return Suggestion(f"did you mean '{fields[near[0]]}'?", fields[near[0]], sure)
    return Suggestion(f"allowed here: {', '.join(fields.values())}" if len(fields) <= _MANY else "")


def enum_value(name: str, values: Sequence[str]) -> str:
    """The value that was probably meant, or an empty text."""
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


@cache
def _containers() -> dict[str, list[str]]:
    """Field name → where in a configuration it may stand, of several places those that are least deep."""
    found: dict[str, list[str]] = {}
    level: list[tuple[str, Descriptor]] = [("", pb.ModelConfig.DESCRIPTOR)]
    while level:
        places: dict[str, list[str]] = {}
        for path, message in level:
            for known in message.fields:
                where = f"inside '{path}'" if path else "at the top level, outside all blocks"
                places.setdefault(known.name, []).append(where)
        found = places | found
        level = [
            (f"{path}.{known.name}" if path else known.name, known.message_type)
            for path, message in level
            for known in message.fields
            if known.message_type is not None
        ]
    return found
