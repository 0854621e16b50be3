"""Reader of config.pbtxt: makes a `core.ModelConfig`, with all problems reported together and each with its place.

`read` a draft (or `parse` a text, or `read_override`); `check` it as far as possible before an engine has opened the
model; `finish` it with the engine's description of the model. All of them raise INVALID_ARG with a report for people.

- `text/`: from text to a message with the position of every field, and the report of problems.
- `draft`: a configuration as written. `complete`: what the engine's description adds to it.
- `features/`: a module each for tensors, sequence batching, padding, ...: the defaults, the rules, the comparison with
  the model, and the values that the rest of the server reads.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from google.protobuf import text_format
from google.protobuf.message import Message

from modserve.core.configuration.model_config import ModelConfig, ModelDescription
from modserve.core.files.config_file import python_tensors
from modserve.pb import inference as pb
from modserve.pb.json_message import to_json
from modserve.routing.reading import missing

from . import complete, features
from .draft import Draft, decode, parse, read, read_override
from .features import ModelContext, backend_names
from .features.composition import validate_composition
from .features.directory import FORMATS, MEASURED, PLATFORMS, names_in, only_lacks_backend, version_filenames
from .text import override
from .text.problems import ConfigurationError, Position, Problem, Problems, SourceText, printable

__all__ = [
    "FORMATS",
    "MEASURED",
    "PLATFORMS",
    "Complete",
    "ConfigurationError",
    "Draft",
    "Position",
    "Problem",
    "SourceText",
    "backend_names",
    "check",
    "decode",
    "finish",
    "from_json",
    "names_in",
    "only_lacks_backend",
    "parse",
    "printable",
    "read",
    "read_override",
    "routing_note",
    "to_text",
    "validate_composition",
    "version_filenames",
]


@dataclass(frozen=True)
class Complete:
    """A configuration that is complete and keeps all rules."""

    config: ModelConfig
    message: pb.ModelConfig
    """The configuration as clients see it, with the settings that modserve does not act on."""
    warnings: list[str]
    """Settings without effect, or without the usual one."""
    defaults: list[str]
    """Values that the server filled in, and that a user may want to know."""
    notes: list[Problem]
    """Warnings and defaults, with their places in the draft's source."""


def check(
    draft: Draft,
    *,
    auto_complete: bool = True,
    on_notes: Callable[[Sequence[Problem]], None] = lambda notes: None,
    files: Path | None = None,
) -> None:
    """Raises for problems that exist before the model is opened. `finish` checks everything again.

    `on_notes` gets what has no effect or another one than it seems, also of a draft with problems. `files` as `finish`.
    """
    problems = _problems(draft, auto_complete)
    for path, note in draft.notes:
        problems.warn(path, note)
    features.validate(draft.identified, ModelContext(draft.name, partial=auto_complete, files=files), problems)
    on_notes(problems.notes)
    problems.raise_if_any()


def routing_note(draft: Draft, versions: Collection[int], unserved: str) -> Problem | None:
    """Return a note on a configured routing to versions that are not among those to serve; None if there is none."""
    routing = features.routing.routing(draft.message)
    reason = "" if routing is None else missing(routing, versions, unserved)
    return Problem(reason, draft.source.locate(("parameters", "routing"))) if reason else None


def finish(
    draft: Draft,
    description: ModelDescription | None,
    *,
    default_cpu_instances: int,
    default_model_filename: str,
    gpu_count: int,
    auto_complete: bool,
    files: Path | None = None,
) -> Complete:
    """Completes, normalises, validates and converts a draft.

    `description` is the engine's, None if it has none. Without `auto_complete` it is only compared with the
    configuration. The defaults are those of the backend. `files` is the model's directory, None to look at no files.
    """
    context = ModelContext(
        draft.name,
        gpu_count=gpu_count,
        default_cpu_instances=default_cpu_instances,
        default_model_filename=default_model_filename,
        description=description,
        files=files,
    )
    problems = _problems(draft, auto_complete)
    for path, note in draft.notes:
        problems.warn(path, note)
    message = pb.ModelConfig()
    message.CopyFrom(draft.identified)
    fits = True
    if description is not None:
        if auto_complete:
            complete.apply_traits(message, description, problems)
            description = features.texts.enlarge_batch(description, files)
        description = complete.with_batch_dimension(message, description)
        if auto_complete:
            fits = complete.complete(message, description, problems)
            features.texts.complete(message, files, problems)
    features.normalise(message, context, problems)
    features.validate(message, context, problems)
    if description is not None:
        features.compare(message, description, problems, shapes=fits)  # else each tensor would repeat the problem
    elif not message.input and not message.output:
        problems.add((), _no_tensors(message, auto_complete))
    problems.raise_if_any()
    config = features.to_model_config(message, context)
    known = draft.message.max_batch_size or (description is not None and description.max_batch_size)
    if config.batching and not known:
        config = replace(config, default_batch_size=True)
    return Complete(config, message, problems.warnings, problems.defaults, problems.notes)


def _no_tensors(message: pb.ModelConfig, auto_complete: bool) -> str:
    what = f"must specify 'input' and 'output' for '{message.name}': its backend cannot determine them"
    if message.backend != "python":
        return what
    condition = "" if auto_complete else "without --disable-auto-complete-config, "
    return f"{what}; {condition}{python_tensors(message.name)}"


def from_json(text: str) -> str:
    """Return the text of a ``config.pbtxt`` that says what the JSON of a load request says. Raises INVALID_ARG."""
    return text_format.MessageToString(override.parse(text), as_utf8=True)


def to_text(message: Message) -> str:
    """Return a configuration as JSON, as Triton hands it to models: ``args["model_config"]`` of its Python backend."""
    return json.dumps(to_json(message))


def _problems(draft: Draft, auto_complete: bool) -> Problems:
    problems = Problems(draft.name, draft.source)
    if not draft.exists and not auto_complete:
        problems.add((), "there is no configuration, and automatic completion is off")
    return problems
