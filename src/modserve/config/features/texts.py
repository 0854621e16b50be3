"""Models with a tokenizer next to them: parameters with keys beginning with ``text.``, and the defaults of such models.

By default texts of different lengths share batches: their exports take any length, and have a mask.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from modserve.core.configuration.model_config import ModelDescription
from modserve.core.configuration.text_settings import TextSettings, TextTask
from modserve.core.files import regular_file
from modserve.core.version import parse_directory
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath, Problems
from ..text.suggest import did_you_mean
from . import padding
from .parameters import ParameterSetting, Reader, choice, fault, values, whole_number

PREFIX, PROMPT = "text.", "text.prompt."
TOKENIZER = "tokenizer.json"
POOLING = ("cls", "max", "mean", "mean_sqrt_len", "weighted_mean", "last_token")
"""Pooling modes in the order in which sentence-transformers concatenates several vectors."""

_MASK = "attention_mask"
_INPUTS = frozenset({"input_ids", _MASK, "token_type_ids", "position_ids"})
_INTEGERS = frozenset({pb.TYPE_INT64, pb.TYPE_INT32})
_USUAL_BATCH_SIZE, _BATCH_SIZE = 4, 32
"""Default batch size of Triton's backends, where none is set, and of models with a tokenizer."""
_BATCH_TOKENS = "16384"
"""Token limit of one batch: a bound on its memory."""
_PREPARES_SHAPES = frozenset({"openvino"})
"""Backends that prepare for each new shape, and so do better with few of them."""


def _pooling(text: str) -> tuple[str, ...]:
    names = () if text == "none" else tuple(part.strip() for part in text.split(","))
    if not set(names) <= set(POOLING) or len(set(names)) < len(names):
        raise ValueError(f"'none', or names with commas between: {', '.join(POOLING)}")
    return tuple(name for name in POOLING if name in names)


def _any_text(text: str) -> str:
    return text


_YES_OR_NO: Reader = choice(true=True, false=False)
_SETTINGS: Mapping[str, ParameterSetting] = {
    "text.task": ParameterSetting("task", choice(**{task.value: task for task in TextTask})),
    "text.pooling": ParameterSetting("pooling", _pooling),
    "text.normalize": ParameterSetting("normalize", _YES_OR_NO),
    "text.max_length": ParameterSetting("max_length", whole_number(1, most=10**7)),
    "text.truncate": ParameterSetting("truncate", _YES_OR_NO),
    "text.default_prompt": ParameterSetting("default_prompt", _any_text),
    "text.activation": ParameterSetting("activation", choice(sigmoid="sigmoid", softmax="softmax", none="none")),
    "text.output": ParameterSetting("output", _any_text),
    "text.max_texts": ParameterSetting("max_texts", whole_number(1, most=10**6)),
}


def validate(message: pb.ModelConfig, partial: bool) -> Faults:
    for key, parameter in message.parameters.items():
        if not key.startswith(PREFIX) or (key.startswith(PROMPT) and len(key) > len(PROMPT)):
            continue
        path: FieldPath = ("parameters", key)
        if key not in _SETTINGS:
            known = ", ".join((*_SETTINGS, f"{PROMPT}<name>"))
            hint = did_you_mean(key, _SETTINGS, f"known parameters are: {known}")
            yield path, f"unknown parameter '{key}'; {hint}"
        elif text := fault(key, parameter.string_value, _SETTINGS[key].read):
            yield path, text
        elif key == "text.output" and (message.output or not partial):
            names = [tensor.name for tensor in message.output]
            if parameter.string_value not in names:
                hint = did_you_mean(parameter.string_value, names, f"known outputs are: {', '.join(names)}")
                yield (
                    path,
                    f"parameter '{key}': model '{message.name}' has no output '{parameter.string_value}'; {hint}",
                )


def settings(message: pb.ModelConfig) -> TextSettings:
    fields: dict[str, Any] = values(message, _SETTINGS)
    prompts = {
        key.removeprefix(PROMPT): parameter.string_value
        for key, parameter in message.parameters.items()
        if key.startswith(PROMPT) and len(key) > len(PROMPT)
    }
    return TextSettings(prompts=prompts, **fields)


def enlarge_batch(description: ModelDescription, files: Path | None) -> ModelDescription:
    """Return the description with a larger batch as the default, for a model with a tokenizer."""
    default = description.default_max_batch_size == _USUAL_BATCH_SIZE
    named = {tensor.name for tensor in description.inputs} <= _INPUTS
    if default and named and files is not None and _tokenizer_folder(files) is not None:
        return replace(description, default_max_batch_size=_BATCH_SIZE)
    return description


def complete(message: pb.ModelConfig, files: Path | None, problems: Problems) -> None:
    """Requests of different lengths share batches, if the model has a tokenizer and the usual tensors, and nothing says
    otherwise. After the engine's own completion.
    """
    if any(key.startswith(padding.PREFIX) for key in message.parameters):
        return
    if message.WhichOneof("scheduling_choice") != "dynamic_batching" or not _is_encoder(message):
        return
    folder = None if files is None else _tokenizer_folder(files)
    if folder is None:
        return
    parameters = {f"{padding.AXIS}{tensor.name}": "0" for tensor in message.input if tensor.name != _MASK}
    parameters[padding.MASK] = _MASK
    pad = _pad_token(folder)
    if pad:
        parameters[f"{padding.VALUE}input_ids"] = str(pad)
    parameters |= {f"{padding.UNPAD}{tensor.name}": "0" for tensor in message.output if tensor.dims[0] == -1}
    if message.backend in _PREPARES_SHAPES:
        parameters["padding.multiple_of"] = "8"
    parameters["scheduling.max_batch_elements"] = _BATCH_TOKENS
    for key, value in parameters.items():
        if key not in message.parameters:
            message.parameters[key].string_value = value
    problems.fill_in(
        ("parameters",),
        f"texts of different lengths share the batches of model '{message.name}': it has a {TOKENIZER}, and no "
        f"parameter '{padding.AXIS}input_ids'",
    )


def _is_encoder(message: pb.ModelConfig) -> bool:
    """True if the model has a tokenizer's tensors, each with the length of the text as its one variable dimension."""
    inputs = {tensor.name: tensor for tensor in message.input}
    plain = all(
        list(each.dims) == [-1] and each.data_type in _INTEGERS and not each.HasField("reshape")
        for each in inputs.values()
    )
    ragged = message.batch_input or message.batch_output or any(each.allow_ragged_batch for each in inputs.values())
    outputs = all(-1 not in list(each.dims)[1:] and len(each.dims) for each in message.output)
    return {"input_ids", _MASK} <= inputs.keys() <= _INPUTS and plain and outputs and not ragged


def _tokenizer_folder(files: Path) -> Path | None:
    """Return the folder of the highest version that has a tokenizer."""
    with suppress(OSError):
        versions = filter(None, (parse_directory(entry.name) for entry in files.iterdir()))
        for version in sorted(versions, reverse=True):
            if (files / str(version) / TOKENIZER).is_file():
                return files / str(version)
    return None


def _pad_token(folder: Path) -> int:
    """Return the padding token of ``config.json``; models that count positions by it need the right one."""
    with suppress(OSError, ValueError, AttributeError):
        pad = json.loads(regular_file.read_bytes(folder / "config.json")).get("pad_token_id")
        if isinstance(pad, int) and 0 < pad < 2**31:
            return pad
    return 0
