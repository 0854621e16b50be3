"""From a config.pbtxt to a `core.ModelConfig`, with all problems reported together and each with its place.

`read` a draft; `check` what can be said before an engine has opened the model; `finish` with what the engine says of
it. All three raise INVALID_ARG with a report for people.
"""

import json
from dataclasses import dataclass

from google.protobuf.message import Message

from modserve.core.model_config import ModelConfig, ModelDescription
from modserve.pb import inference as pb
from modserve.pb.json_message import to_json

from . import complete, convert, defaults, tensors, unsupported, validate
from .override import read_override
from .pbtxt import Draft, parse, read
from .problems import Problems

__all__ = ["Complete", "Draft", "check", "finish", "parse", "read", "read_override", "to_text"]


@dataclass(frozen=True)
class Complete:
    """A configuration that is complete and keeps all rules."""

    config: ModelConfig
    message: pb.ModelConfig
    """The same as a message, with what modserve does not act on: what clients are shown."""
    warnings: list[str]


def check(draft: Draft, *, auto_complete: bool = True) -> None:
    """Raises for what is wrong already, before the model is opened; `finish` checks all of it again."""
    problems = _problems(draft, auto_complete)
    validate.validate(draft.identified, draft.name, problems, partial=auto_complete, gpu_count=None)
    unsupported.check(draft.identified, problems)
    problems.raise_if_any()


def finish(
    draft: Draft,
    description: ModelDescription | None,
    *,
    default_cpu_instances: int,
    default_model_filename: str,
    gpu_count: int,
    auto_complete: bool,
) -> Complete:
    """Completes, normalises, validates and converts a draft.

    `description` is what the engine says of the model, None where it says nothing. Without `auto_complete` it is only
    compared with the configuration. The defaults are those of the backend.
    """
    problems = _problems(draft, auto_complete)
    message = pb.ModelConfig()
    message.CopyFrom(draft.identified)
    fits = True
    if description is not None:
        if auto_complete:
            complete.apply_traits(message, description, problems)
        description = complete.with_batch_dimension(message, description)
        if auto_complete:
            fits = complete.complete(message, description, problems)
    defaults.normalise(
        message,
        problems,
        default_model_filename=default_model_filename,
        default_cpu_instances=default_cpu_instances,
        gpu_count=gpu_count,
    )
    validate.validate(message, draft.name, problems, partial=False, gpu_count=gpu_count)
    unsupported.check(message, problems)
    if description is not None:
        tensors.compare(message, description, problems, shapes=fits)  # else each tensor would repeat it
    elif not message.input and not message.output:
        problems.add((), f"must specify 'input' and 'output' for '{message.name}': its backend can not tell them")
    problems.raise_if_any()
    return Complete(convert.to_model_config(message, _scalars(message, description)), message, problems.warnings)


def to_text(message: Message) -> str:
    """A configuration as JSON, as Triton hands it to models: ``args["model_config"]`` of its Python backend."""
    return json.dumps(to_json(message))


def _problems(draft: Draft, auto_complete: bool) -> Problems:
    problems = Problems(draft.name, draft.source)
    if not draft.exists and not auto_complete:
        problems.add((), "there is no configuration, and automatic completion is off")
    return problems


def _scalars(message: pb.ModelConfig, description: ModelDescription | None) -> set[str]:
    """The tensors without dimensions of a model that does not batch."""
    if description is None or message.max_batch_size > 0:
        return set()
    return {tensor.name for tensor in (*description.inputs, *description.outputs) if not tensor.shape}
