"""A configuration as written, before an engine has seen the model."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError, from_exception
from modserve.core.files import regular_file
from modserve.pb import inference as pb

from .features import ModelContext, directory, to_model_config, validate
from .text import override, pbtxt
from .text.problems import ConfigurationError, FieldPath, Problem, Problems, SourceText


@dataclass(frozen=True)
class Draft:
    """A configuration as written. Treat the messages as read-only."""

    name: str
    """The model's name: that of its directory."""
    source: SourceText
    message: pb.ModelConfig = field(default_factory=pb.ModelConfig)
    exists: bool = True
    """False if there is no file; the configuration is then empty."""
    backends: Collection[str] = directory.BACKENDS
    """The names that are backends here, whether or not their engines are installed."""
    measured: bool = False
    """True to use the backend `auto` where nothing names one, not the one that the file is for."""
    filenames: Sequence[Collection[str]] | None = None
    """The names in the folder of each version, the lowest version first; None: in those next to the configuration."""

    @property
    def backend(self) -> str:
        """The name of the backend, written or deduced; empty if neither is possible."""
        return self.identified.backend

    @property
    def is_ensemble(self) -> bool:
        """True if the model is made of other models, so that it needs no backend."""
        return self.message.HasField("ensemble_scheduling")

    @property
    def identified(self) -> pb.ModelConfig:
        """The message with name, backend, platform and default_model_filename deduced where possible."""
        return self._identity[0]

    @property
    def bytes(self) -> bytes:
        """`identified`, serialised: equal for equal configurations."""
        return self.identified.SerializeToString(deterministic=True)

    @property
    def notes(self) -> directory.Notes:
        """Deductions that differ from the configuration as written: the field, and the value meant."""
        return self._identity[1]

    @cached_property
    def _identity(self) -> tuple[pb.ModelConfig, directory.Notes]:
        message = pb.ModelConfig()
        message.CopyFrom(self.message)
        filenames = self.filenames
        if filenames is None:
            filenames = directory.version_filenames(self.source.path.parent)
        return message, directory.identify(message, self.name, filenames, self.backends, measured=self.measured)

    def locate_error(self, error: ModserveError, *fields: str | FieldPath) -> ConfigurationError:
        """Return a failure as a problem of the first of some fields that is written, or of the whole configuration."""
        places = (self.source.locate((field,) if isinstance(field, str) else field) for field in fields)
        problem = Problem(error.message, next(filter(None, places), None))
        return ConfigurationError(error.message, self.source, [problem])

    def provisional(self, *, default_cpu_instances: int = 1) -> ModelConfig:
        """Return the values that are known before the engine has opened the model; none of them has been validated.

        Inputs and outputs may be missing. Instance groups are as written: there may be none, and KIND_AUTO is not
        resolved. A group without a count has `default_cpu_instances`, unless it is for the GPU.
        """
        return to_model_config(self.identified, ModelContext(self.name, default_cpu_instances=default_cpu_instances))


def read(path: Path, name: str) -> Draft:
    """Return the draft of the model `name`. A missing file is an empty configuration: the engine completes it.

    Raises INVALID_ARG with the report of all problems of syntax and of unknown fields and values.
    """
    try:
        content = regular_file.read_bytes(path)
    except FileNotFoundError:
        content = None
    except OSError as error:
        raise from_exception(error, f"reading the configuration of model '{name}'") from error
    return decode(content, path, name)


def decode(content: bytes | None, path: Path, name: str) -> Draft:
    """Decode the content of a file that was read already, like `read`; None stands for a missing file."""
    if content is None:
        return Draft(name, SourceText(path, label=f"{path} (no such file)"), exists=False)
    # Comments may have any encoding: bytes that are not UTF-8 are a mistake only inside a token.
    return parse(content.decode("utf-8-sig", "surrogateescape"), path, name)


def parse(text: str, path: Path, name: str) -> Draft:
    """Parse the text of a file, like `read`. Reports name the `path`; its directory may tell the backend."""
    message, source, mistakes = pbtxt.parse(text, path, name)
    draft = Draft(name, source, message)
    if mistakes:
        problems = Problems(name, source, mistakes, only=lambda path: _is_read(message, path))
        validate(draft.identified, ModelContext(name, partial=True), problems)
        problems.raise_if_any()
    return draft


def _is_read(message: Message, path: FieldPath) -> bool:
    """Return True if the message has the field at this path."""
    value: Any = message
    for part in path:
        if isinstance(value, Message):
            value = {field.name: each for field, each in value.ListFields()}.get(str(part))
        elif isinstance(part, int) and value is not None:
            value = value[part] if part < len(value) else None
        elif value is not None:
            value = value.get(part)
        if value is None:
            return False
    return bool(path)


def read_override(text: str, path: Path, name: str) -> Draft:
    """Return the draft of the model `name` from the JSON of a load request, in place of the configuration at `path`.

    Raises INVALID_ARG for text that is not JSON, for unknown fields and for values of the wrong type.
    """
    return Draft(name, SourceText(path, label="config override"), override.parse(text))
