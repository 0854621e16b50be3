"""Conditions for the steps of an ensemble: model parameters ``ensemble.when.<step>`` like ``language == "de"``.

`<step>` is the number of the step, from 0, or the name of its model if only one step runs that model.
"""

import difflib
import math
import re

from modserve.core.ensemble_config import COMPARISONS, EQUALITY, Condition, Operand
from modserve.pb import inference as pb

from ..text.problems import FieldPath

PREFIX = "ensemble."
WHEN = "ensemble.when."
_FORM = re.compile(rf"\s*(.+?)\s*({'|'.join(sorted(COMPARISONS, key=len, reverse=True))})\s*(.+?)\s*", re.DOTALL)
_WORDS: dict[str, Operand] = {"true": True, "false": False}


def read(message: pb.ModelConfig) -> tuple[dict[int, Condition], list[tuple[FieldPath, str]]]:
    """The conditions by step, and what is wrong with the others."""
    conditions: dict[int, Condition] = {}
    faults: list[tuple[FieldPath, str]] = []
    for key, parameter in message.parameters.items():
        if not key.startswith(PREFIX):
            continue
        try:
            index = _step(key, message)
            if index in conditions:
                raise ValueError(f"parameter '{key}': step {index} has a condition already")
            conditions[index] = _condition(key, parameter.string_value)
        except ValueError as error:
            faults.append((("parameters", key), str(error)))
    return conditions, faults


def _step(key: str, message: pb.ModelConfig) -> int:
    """The step that a parameter is for."""
    if not key.startswith(WHEN):
        near = difflib.get_close_matches(key[: len(WHEN)], [WHEN], n=1, cutoff=0.7)
        hint = f"did you mean '{WHEN}<step>'?" if near else f"known is: {WHEN}<step>"
        raise ValueError(f"unknown parameter '{key}'; {hint}")
    if not message.HasField("ensemble_scheduling"):
        raise ValueError(f"parameter '{key}' needs ensemble_scheduling")
    name, steps = key.removeprefix(WHEN), message.ensemble_scheduling.step
    if re.fullmatch("[0-9]{1,9}", name) and int(name) < len(steps):
        return int(name)
    indices = [index for index, step in enumerate(steps) if step.model_name == name]
    if len(indices) == 1:
        return indices[0]
    if indices:
        raise ValueError(f"parameter '{key}': steps {indices} ask model '{name}', say which by its number")
    known = ", ".join(f"{index} ({step.model_name})" for index, step in enumerate(steps))
    raise ValueError(f"parameter '{key}': there is no step '{name}'; steps are: {known}")


def _condition(key: str, text: str) -> Condition:
    who = f"parameter '{key}' is '{text}'"
    form = _FORM.fullmatch(text)
    if form is None:
        comparisons = ", ".join(COMPARISONS)
        raise ValueError(f"{who}, expected '<tensor> <comparison> <value>' with a comparison of {comparisons}")
    tensor, comparison, operand = form.groups()
    try:
        value = _operand(operand)
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from None
    if isinstance(value, bool | bytes) and comparison not in EQUALITY:
        raise ValueError(f"{who}: only numbers can be compared by {comparison}")
    return Condition(tensor, comparison, value)


def _operand(text: str) -> Operand:
    """A number, ``true`` or ``false``, or a text, with or without quotes. Raises `ValueError` for ``nan``."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1].encode()
    if text in _WORDS:
        return _WORDS[text]
    if text.isascii() and "_" not in text:
        for number_type in (int, float):
            try:
                number = number_type(text)
            except ValueError:
                continue
            if math.isnan(number):
                raise ValueError(f"nothing compares with {text}; put it in quotes if it is a text")
            return number
    return text.encode()
