"""``ensemble_scheduling``, like Triton's ``ValidateEnsembleSchedulingConfig``, and conditions for steps.

A condition is a model parameter ``ensemble.when.<step>`` like ``language == "de"``. `<step>` is the number of the step,
from 0, or the name of its model if only one step runs that model.
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
"""Values of `model_version` that mean the latest; protobuf gives a step without one 0."""
_HERE: FieldPath = ("ensemble_scheduling", "step")
PREFIX = "ensemble."
WHEN = "ensemble.when."
_FORM = re.compile(rf"\s*(.+?)\s*({'|'.join(sorted(COMPARISONS, key=len, reverse=True))})\s*(.+?)\s*", re.DOTALL)
_WORDS: dict[str, Operand] = {"true": True, "false": False}


def ensembling(message: pb.ModelConfig) -> EnsembleConfig | None:
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
    """The rules for a model that is an ensemble, or calls itself one."""
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
    """The rules for each step by itself."""
    for index, step in enumerate(message.ensemble_scheduling.step):
        label = f"step {index} of ensemble '{message.name}'"
        for part in ("model_name", "input_map", "output_map"):
            if not getattr(step, part):
                yield (*_HERE, index), f"must specify '{part}' in {label}"
        if step.model_version < 0 and step.model_version not in _LATEST:
            expected = "expected -1, or none, for the latest, or a version > 0"
            yield (*_HERE, index, "model_version"), f"{label} has model_version {step.model_version}, {expected}"


def _flow_faults(message: pb.ModelConfig) -> Faults:
    """Yield the faults in the connections of tensors, from the inputs to the outputs."""
    name, steps = message.name, _steps(message)
    writers = _writers(steps)
    inputs, outputs = {tensor.name for tensor in message.input}, {tensor.name for tensor in message.output}
    for tensor, indices in writers.items():
        unconditional = [index for index in indices if steps[index].when is None]
        if len(indices) > 1 and (unconditional or len(set(indices)) < len(indices)):
            index = indices[-1]
            rule = f"can appear in an output map only once for ensemble '{name}' step {index}"
            yield (*_HERE, index, "output_map"), f"ensemble tensor '{tensor}' {rule}"
        elif indices and tensor in inputs:
            rule = f"is an input of ensemble '{name}' and cannot be produced by step {indices[0]}"
            yield (*_HERE, indices[0], "output_map"), f"ensemble tensor '{tensor}' {rule}"
    for position, model_input in enumerate(message.input):
        if model_input.name not in writers:
            loose = [tensor for tensor, indices in writers.items() if not indices and tensor not in inputs]
            hint = _which(model_input.name, loose, "the input maps lack")
            text = f"ensemble input '{model_input.name}' for ensemble '{name}' is not used"
            yield ("input", position), f"{text}: it is the value of no input_map{hint}"
    ready = _ready(steps, writers, inputs)
    for position, output in enumerate(message.output):
        if output.name not in writers:
            hint = _which(output.name, [tensor for tensor, indices in writers.items() if indices], "the steps produce")
            text = f"ensemble output '{output.name}' for ensemble '{name}' is not used"
            yield ("output", position), f"{text}: it is the value of no output_map{hint}"
        elif output.name not in ready:
            yield ("output", position), _not_written(output.name, name, steps, writers, ready)
    used = outputs | {tensor for step in steps for tensor in step.needs & ready}
    for tensor in writers:
        if tensor not in used:
            text = f"ensemble tensor '{tensor}' is unused in ensemble '{name}'"
            yield _first_use(tensor, steps), f"{text}: {_loose_end(tensor, inputs, outputs, steps, writers)}"


def _writers(steps: Iterable[Step]) -> dict[str, list[int]]:
    """Return each tensor that steps read or write, and the steps that write it."""
    writers: dict[str, list[int]] = {}
    for index, step in enumerate(steps):
        for tensor in sorted(step.needs):
            writers.setdefault(tensor, [])
        for tensor in step.outputs.values():
            writers.setdefault(tensor, []).append(index)
    return writers


def _ready(steps: Sequence[Step], writers: Mapping[str, Sequence[int]], inputs: Iterable[str]) -> set[str]:
    """Return the tensors that can be computed from the inputs, and these."""
    ready, done, count = set(inputs), set[int](), -1
    while len(done) > count:
        count = len(done)
        for index, step in enumerate(steps):
            if index not in done and step.needs <= ready:
                done.add(index)
                ready |= {tensor for tensor in step.outputs.values() if done.issuperset(writers[tensor])}
    return ready


def _not_written(
    output: str, ensemble: str, steps: Sequence[Step], writers: Mapping[str, Sequence[int]], ready: Set[str]
) -> str:
    """Names the first tensor that is not connected on the way to an output; goes once around a circle."""
    text = f"output '{output}' for ensemble '{ensemble}' is not written"
    last, seen = output, set[str]()
    while missing := {tensor for index in writers[last] for tensor in steps[index].needs - ready - seen}:
        last = min(missing)
        seen.add(last)
    return text if last == output else f"{text}: at least one of its depending tensors, '{last}', is not connected"


def _loose_end(
    tensor: str, inputs: Set[str], outputs: Set[str], steps: Sequence[Step], writers: Mapping[str, Sequence[int]]
) -> str:
    """Return the reason why a tensor is not connected, and the one that may be meant."""
    if writers[tensor]:
        giver = f"step {writers[tensor][0]}"
        if any(tensor in step.needs for step in steps):
            return f"{giver}, which produces it, never gets all of its inputs"
        lacking = {name for name, indices in writers.items() if not indices} - inputs | outputs - writers.keys()
        return f"{giver} produces it, and nothing uses it{_which(tensor, lacking, '')}"
    takers = {index for index, step in enumerate(steps) if tensor in step.needs}
    givers = [*inputs, *(name for name, indices in writers.items() if set(indices) - takers)]
    return f"no step produces it, and it is not an input of the ensemble{_which(tensor, givers, 'there are')}"


def _which(name: str, names: Collection[str], otherwise: str) -> str:
    """Return the end of a sentence about a tensor that is not there: the one that is meant, or what there is."""
    others = ", ".join(f"'{each}'" for each in sorted(set(names) - {name}))
    listed = f"{otherwise}: {others}" if otherwise and others else ""
    hint = suggest.did_you_mean(name, names, listed, cutoff=0.6)
    return f"; {hint}" if hint else ""


def _first_use(tensor: str, steps: Sequence[Step]) -> FieldPath:
    """Return the first step that reads or writes a tensor."""
    for index, step in enumerate(steps):
        for part, names in (("input_map", step.inputs), ("output_map", step.outputs)):
            for key, value in names.items():
                if value == tensor:
                    return (*_HERE, index, part, key)
    return _HERE[:1]


# Conditions


def _conditions(message: pb.ModelConfig) -> tuple[dict[int, Condition], list[tuple[FieldPath, str]]]:
    """Return the conditions by step, and what is wrong with the others."""
    conditions: dict[int, Condition] = {}
    faults: list[tuple[FieldPath, str]] = []
    for key, parameter in message.parameters.items():
        if not key.startswith(PREFIX):
            continue
        try:
            index = _step(key, message)
            if index in conditions:
                raise ValueError(f"parameter '{key}': step {index} already has a condition")
            conditions[index] = _condition(key, parameter.string_value)
        except ValueError as error:
            faults.append((("parameters", key), str(error)))
    return conditions, faults


def _step(key: str, message: pb.ModelConfig) -> int:
    """Return the step that a parameter is for."""
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


def _condition(key: str, text: str) -> Condition:
    label = f"parameter '{key}' is '{text}'"
    form = _FORM.fullmatch(text)
    if form is None:
        comparisons = ", ".join(COMPARISONS)
        raise ValueError(f"{label}, expected '<tensor> <comparison> <value>' with a comparison of {comparisons}")
    tensor, comparison, operand = form.groups()
    try:
        value = _operand(operand)
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None
    if isinstance(value, bool | bytes) and comparison not in EQUALITY:
        raise ValueError(f"{label}: only numbers can be compared by {comparison}")
    return Condition(tensor, comparison, value)


def _operand(text: str) -> Operand:
    """Return a number, ``true`` or ``false``, or a text, with or without quotes. Raises `ValueError` for ``nan``."""
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
                raise ValueError(f"cannot compare with {text}; quote it if it is a text")
            return number
    return text.encode()
