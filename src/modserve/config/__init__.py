"""Reader of config.pbtxt: creates a `core.ModelConfig`, and reports all problems together with their positions.

`read` a draft (or `parse` a text, or `read_override`), `check` it as far as possible before an engine has opened the
model, and `finish` it with the engine's description of the model. All of these raise INVALID_ARG with a report.

- `text/`: parses the text into a message with the position of every field, and reports problems.
- `draft`: a configuration as written. `complete`: completion from the engine's description.
- `features/`: one module each for tensors, sequence batching, padding, ...: defaults, rules, comparison with the model,
  and conversion to the values used by the rest of the server.
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
    """A complete and valid configuration."""

    config: ModelConfig
    message: pb.ModelConfig
    """The configuration as shown to clients, including settings that modserve does not use."""
    warnings: list[str]
    """Settings without their usual effect."""
    defaults: list[str]
    """Values filled in by the server, for the user's information."""
    notes: list[Problem]
    """Warnings and defaults, with their positions in the draft's source."""


def check(
    draft: Draft,
    *,
    auto_complete: bool = True,
    on_notes: Callable[[Sequence[Problem]], None] = lambda notes: None,
    files: Path | None = None,
) -> None:
    """Raise INVALID_ARG for problems found before the model is opened. `finish` checks everything again.

    `on_notes` receives settings without their usual effect, even if the draft has problems. `files` is as in `finish`.
    """
    problems = _problems(draft, auto_complete)
    for path, note in draft.notes:
        problems.warn(path, note)
    features.validate(draft.identified, ModelContext(draft.name, partial=auto_complete, files=files), problems)
    on_notes(problems.notes)
    problems.raise_if_any()


def routing_note(draft: Draft, versions: Collection[int], unserved: str) -> Problem | None:
    """Return a note if the configured routing uses versions that are not to be served; else None."""
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
    """Complete, normalise, validate and convert a draft.

    `description` comes from the engine and may be None. Without `auto_complete` it is only compared with the
    configuration. The defaults belong to the backend. `files` is the model's directory, None to ignore files.
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
    """Convert the JSON of a load request to the text of a ``config.pbtxt``. Raises INVALID_ARG."""
    return text_format.MessageToString(override.parse(text), as_utf8=True)


def to_text(message: Message) -> str:
    """Return a configuration as JSON in Triton's form for models: ``args["model_config"]`` of its Python backend."""
    return json.dumps(to_json(message))


def _problems(draft: Draft, auto_complete: bool) -> Problems:
    problems = Problems(draft.name, draft.source)
    if not draft.exists and not auto_complete:
        problems.add((), "there is no configuration, and automatic completion is off")
    return problems
