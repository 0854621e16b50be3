"""Validation of ``ensemble_scheduling`` and of the conditions of its steps.

The rules for ``ensemble_scheduling`` are Triton's (``ValidateEnsembleSchedulingConfig``). A condition is a model
parameter ``ensemble.when.<step>`` with a value like ``language == "de"``. `<step>` is the index of the step, from 0. If
only one step runs a model, `<step>` may be the name of that model.
"""

import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from modserve.core.configuration.ensemble_config import COMPARISONS, EQUALITY, Condition, EnsembleConfig, Operand, Step
from modserve.pb import inference as pb

from ..text import suggest
from ..text.problems import Faults, FieldPath
from .directory import ENSEMBLE

_LATEST = (-1, 0)
"""Values of `model_version` that stand for the latest version. Protobuf's default is 0."""
_STEP_PATH: FieldPath = ("ensemble_scheduling", "step")
PREFIX = "ensemble."
WHEN = "ensemble.when."
_CONDITION = re.compile(rf"\s*(.+?)\s*({'|'.join(sorted(COMPARISONS, key=len, reverse=True))})\s*(.+?)\s*", re.DOTALL)
_LITERALS: dict[str, Operand] = {"true": True, "false": False}


def ensembling(message: pb.ModelConfig) -> EnsembleConfig | None:
    """Return the configuration of an ensemble; None for other models."""
    if not message.HasField("ensemble_scheduling"):
        return None
    return EnsembleConfig(_steps(message), message.ensemble_scheduling.max_inflight_requests)


def _steps(message: pb.ModelConfig) -> tuple[Step, ...]:
    when, _ = _conditions(message)
    return tuple(
        Step(
            step.model_name,
            None if step.model_version in _LATEST else step.model_version,
            dict(sorted(step.input_map.items())),
            dict(sorted(step.output_map.items())),
            when.get(index),
        )
        for index, step in enumerate(message.ensemble_scheduling.step)
    )


def validate(message: pb.ModelConfig) -> Faults:
    """Yield the faults of a model with ``ensemble_scheduling`` or the platform ``ensemble``."""
    name = message.name
    yield from _conditions(message)[1]
    if not message.HasField("ensemble_scheduling"):
        if message.platform == ENSEMBLE:
            text = f"ensemble scheduling must be set for ensemble {name} whose platform is {ENSEMBLE}"
            yield ("platform",), text
        return
    if message.platform != ENSEMBLE:
        text = f"ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE}"
        yield ("ensemble_scheduling",), text
    if message.instance_group:
        yield ("instance_group",), f"instance group should not be specified for ensemble '{name}'"
    if message.HasField("optimization"):
        yield ("optimization",), f"optimization should not be specified for ensemble '{name}'"
    if message.model_warmup:
        yield ("model_warmup",), f"model_warmup can not be specified for ensemble '{name}'"
    if not message.ensemble_scheduling.step:
        yield ("ensemble_scheduling",), f"must specify 'step' for ensemble '{name}'"
        return
    step_faults = list(_step_faults(message))
    yield from step_faults or _flow_faults(message)


def _step_faults(message: pb.ModelConfig) -> Faults:
    """Yield the faults of single steps."""
    for index, step in enumerate(message.ensemble_scheduling.step):
        label = f"step {index} of ensemble '{message.name}'"
        for part in ("model_name", "input_map", "output_map"):
            if not getattr(step, part):
                yield (*_STEP_PATH, index), f"must specify '{part}' in {label}"
        if step.model_version < 0 and step.model_version not in _LATEST:
            expected = "expected -1, or none, for the latest, or a version > 0"
            yield (*_STEP_PATH, index, "model_version"), f"{label} has model_version {step.model_version}, {expected}"


def _flow_faults(message: pb.ModelConfig) -> Faults:
    """Yield the faults in the data flow from the inputs to the outputs of the ensemble."""
    name, steps = message.name, _steps(message)
    writers = _writers(steps)
    inputs, outputs = {tensor.name for tensor in message.input}, {tensor.name for tensor in message.output}
    for tensor, indices in writers.items():
        unconditional = [index for index in indices if steps[index].when is None]
        if len(indices) > 1 and (unconditional or len(set(indices)) < len(indices)):
            index = indices[-1]
            rule = f"can appear in an output map only once for ensemble '{name}' step {index}"
            yield (*_STEP_PATH, index, "output_map"), f"ensemble tensor '{tensor}' {rule}"
        elif indices and tensor in inputs:
            rule = f"is an input of ensemble '{name}' and cannot be produced by step {indices[0]}"
            yield (*_STEP_PATH, indices[0], "output_map"), f"ensemble tensor '{tensor}' {rule}"
    for position, model_input in enumerate(message.input):
        if model_input.name not in writers:
            unproduced_names = [tensor for tensor, indices in writers.items() if not indices and tensor not in inputs]
            hint = _suggest(model_input.name, unproduced_names, "the input maps lack")
            text = f"ensemble input '{model_input.name}' for ensemble '{name}' is not used"
            yield ("input", position), f"{text}: it is the value of no input_map{hint}"
    computable = _computable(steps, writers, inputs)
    for position, output in enumerate(message.output):
        if output.name not in writers:
            hint = _suggest(
                output.name, [tensor for tensor, indices in writers.items() if indices], "the steps produce"
            )
            text = f"ensemble output '{output.name}' for ensemble '{name}' is not used"
            yield ("output", position), f"{text}: it is the value of no output_map{hint}"
        elif output.name not in computable:
            yield ("output", position), _explain_unwritten(output.name, name, steps, writers, computable)
    used = outputs | {tensor for step in steps for tensor in step.needs & computable}
    for tensor in writers:
        if tensor not in used:
            text = f"ensemble tensor '{tensor}' is unused in ensemble '{name}'"
            yield (
                _locate_first_use(tensor, steps),
                f"{text}: {_explain_unconnected(tensor, inputs, outputs, steps, writers)}",
            )


def _writers(steps: Iterable[Step]) -> dict[str, list[int]]:
    """Return the steps that write each tensor: indices by tensor, none for a tensor that steps only read."""
    writers: dict[str, list[int]] = {}
    for index, step in enumerate(steps):
        for tensor in sorted(step.needs):
            writers.setdefault(tensor, [])
        for tensor in step.outputs.values():
            writers.setdefault(tensor, []).append(index)
    return writers


def _computable(steps: Sequence[Step], writers: Mapping[str, Sequence[int]], inputs: Iterable[str]) -> set[str]:
    """Return the inputs and all tensors that can be computed from them."""
    computable, done, count = set(inputs), set[int](), -1
    while len(done) > count:
        count = len(done)
        for index, step in enumerate(steps):
            if index not in done and step.needs <= computable:
                done.add(index)
                computable |= {tensor for tensor in step.outputs.values() if done.issuperset(writers[tensor])}
    return computable


def _explain_unwritten(
    output: str, ensemble: str, steps: Sequence[Step], writers: Mapping[str, Sequence[int]], computable: Set[str]
) -> str:
    """Return the reason why an output cannot be computed. Follows its missing tensors back, once around a cycle."""
    text = f"output '{output}' for ensemble '{ensemble}' is not written"
    last, seen = output, set[str]()
    while missing := {tensor for index in writers[last] for tensor in steps[index].needs - computable - seen}:
        last = min(missing)
        seen.add(last)
    return text if last == output else f"{text}: at least one of its depending tensors, '{last}', is not connected"


def _explain_unconnected(
    tensor: str, inputs: Set[str], outputs: Set[str], steps: Sequence[Step], writers: Mapping[str, Sequence[int]]
) -> str:
    """Return the reason why a tensor is not connected, and the tensor that was probably meant."""
    if writers[tensor]:
        producer = f"step {writers[tensor][0]}"
        if any(tensor in step.needs for step in steps):
            return f"{producer}, which produces it, never gets all of its inputs"
        unproduced = {name for name, indices in writers.items() if not indices} - inputs | outputs - writers.keys()
        return f"{producer} produces it, and nothing uses it{_suggest(tensor, unproduced, '')}"
    consumers = {index for index, step in enumerate(steps) if tensor in step.needs}
    produced = [*inputs, *(name for name, indices in writers.items() if set(indices) - consumers)]
    return f"no step produces it, and it is not an input of the ensemble{_suggest(tensor, produced, 'there are')}"


def _suggest(name: str, names: Collection[str], otherwise: str) -> str:
    """Return the end of a message about an unknown tensor: a similar name, or `otherwise` and all names."""
    others = ", ".join(f"'{each}'" for each in sorted(set(names) - {name}))
    listed = f"{otherwise}: {others}" if otherwise and others else ""
    hint = suggest.did_you_mean(name, names, listed, cutoff=0.6)
    return f"; {hint}" if hint else ""


def _locate_first_use(tensor: str, steps: Sequence[Step]) -> FieldPath:
    """Return the path of the first map entry that reads or writes a tensor."""
    for index, step in enumerate(steps):
        for part, names in (("input_map", step.inputs), ("output_map", step.outputs)):
            for key, value in names.items():
                if value == tensor:
                    return (*_STEP_PATH, index, part, key)
    return _STEP_PATH[:1]


# Conditions


def _conditions(message: pb.ModelConfig) -> tuple[dict[int, Condition], list[tuple[FieldPath, str]]]:
    """Return the valid conditions by step, and the faults of the others."""
    conditions: dict[int, Condition] = {}
    faults: list[tuple[FieldPath, str]] = []
    for key, parameter in message.parameters.items():
        if not key.startswith(PREFIX):
            continue
        try:
            index = _step_index(key, message)
            if index in conditions:
                raise ValueError(f"parameter '{key}': step {index} already has a condition")
            conditions[index] = _parse_condition(key, parameter.string_value)
        except ValueError as error:
            faults.append((("parameters", key), str(error)))
    return conditions, faults


def _step_index(key: str, message: pb.ModelConfig) -> int:
    """Return the index of the step in a parameter's name. Raises `ValueError`."""
    if not key.startswith(WHEN):
        near = difflib.get_close_matches(key[: len(WHEN)], [WHEN], n=1, cutoff=0.7)
        hint = f"did you mean '{WHEN}<step>'?" if near else f"the known parameter is {WHEN}<step>"
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
        raise ValueError(f"parameter '{key}': steps {indices} use model '{name}'; name the step by its number")
    known = ", ".join(f"{index} ({step.model_name})" for index, step in enumerate(steps))
    raise ValueError(f"parameter '{key}': there is no step '{name}'; steps are: {known}")


def _parse_condition(key: str, text: str) -> Condition:
    label = f"parameter '{key}' is '{text}'"
    match = _CONDITION.fullmatch(text)
    if match is None:
        comparisons = ", ".join(COMPARISONS)
        raise ValueError(f"{label}, expected '<tensor> <comparison> <value>' with a comparison of {comparisons}")
    tensor, comparison, operand = match.groups()
    try:
        value = _parse_operand(operand)
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None
    if isinstance(value, bool | bytes) and comparison not in EQUALITY:
        raise ValueError(f"{label}: only numbers can be compared by {comparison}")
    return Condition(tensor, comparison, value)


def _parse_operand(text: str) -> Operand:
    """Parse a number, ``true``, ``false`` or a text. Quotes are optional. Raises `ValueError` for ``nan``."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1].encode()
    if text in _LITERALS:
        return _LITERALS[text]
    if text.isascii() and "_" not in text:
        for number_type in (int, float):
            try:
                number = number_type(text)
            except ValueError:
                continue
            if math.isnan(number):
                raise ValueError(f"cannot compare with {text}; quote it if it is a text")
            return number
    return text.encode()
