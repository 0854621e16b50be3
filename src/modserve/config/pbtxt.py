"""Reads a config.pbtxt into a draft of a configuration, or reports everything in it that can not be read."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from google.protobuf import text_format

from modserve.core.errors import from_exception
from modserve.core.model_config import ModelConfig
from modserve.pb import inference as pb

from . import convert, platforms, walker
from .problems import Position, Problem, Problems, Source


@dataclass(frozen=True)
class Draft:
    """A configuration as written, before an engine has seen the model. Treat the messages as read-only."""

    name: str
    """The model's name: that of its directory."""
    source: Source
    message: pb.ModelConfig = field(default_factory=pb.ModelConfig)
    exists: bool = True
    """False where there is no file; the configuration is then empty."""

    @property
    def path(self) -> Path:
        return self.source.path

    @property
    def text(self) -> str:
        return self.source.text

    @property
    def backend(self) -> str:
        """The name of the backend, written or deduced; empty when nothing tells."""
        return self.identified.backend

    @property
    def is_ensemble(self) -> bool:
        """Whether the model is made of others, so that it needs no backend."""
        return self.message.HasField("ensemble_scheduling")

    @cached_property
    def identified(self) -> pb.ModelConfig:
        """The message with name, backend, platform and default_model_filename filled in as far as they can be told."""
        message = pb.ModelConfig()
        message.CopyFrom(self.message)
        platforms.identify(message, self.name, self.path.parent)
        return message

    def provisional(self, *, default_cpu_instances: int = 1) -> ModelConfig:
        """What is known before the engine has opened the model; nothing in it has been validated.

        Inputs and outputs may be missing. Instance groups are as written: none where there is none, KIND_AUTO not
        resolved; one without a count has `default_cpu_instances`, unless it is for the GPU.
        """
        return convert.to_model_config(self.identified, default_cpu_instances=default_cpu_instances)


def read(path: Path, name: str) -> Draft:
    """The draft of a model called `name`. A missing file is an empty configuration, where all is left to the engine.

    Raises INVALID_ARG with the report of all problems of syntax and of unknown fields and values.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = None
    except OSError as error:
        raise from_exception(error, f"reading the configuration of model '{name}'") from error
    return decode(content, path, name)


def decode(content: bytes | None, path: Path, name: str) -> Draft:
    """Like `read`, for the content of a file that was read already; None for a missing file."""
    if content is None:
        return Draft(name, Source(path, label=f"{path} (no such file)"), exists=False)
    # Comments may be in any encoding, so bytes that are no UTF-8 only matter where they are in a token.
    return parse(content.decode("utf-8-sig", "surrogateescape"), path, name)


def parse(text: str, path: Path, name: str) -> Draft:
    """As `read`, for a text at hand; `path` is named in reports, and its directory tells the backend if need be."""
    walk = walker.walk(text, pb.ModelConfig.DESCRIPTOR)
    source = Source(path, text, walk.positions)
    message = pb.ModelConfig()
    problems = walk.problems
    if not walk.unreadable:
        refusal, stopped = _parse(text, message)
        if not refusal:
            problems = []  # text_format has the last word: what it accepts is right.
        elif not any(stopped is None or problem.position <= stopped for problem in problems if problem.position):
            # Nothing found up to there explains the refusal, so it is something that the walker does not know.
            problems = [*problems, Problem(refusal, stopped)]
    Problems(name, source, problems).raise_if_any()
    return Draft(name, source, message)


def _parse(text: str, message: pb.ModelConfig) -> tuple[str, Position | None]:
    """Parses the text into the message; says what stopped it, and where if known. An empty text when nothing did."""
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        line = error.GetLine() or 1
        # It says the position first and then often repeats the line, both of which the report shows anyway.
        cause = re.sub(r"^\d+:\d+ : ", "", str(error)).removeprefix(f"'{text.split(chr(10))[line - 1]}': ")
        return cause, Position(line, error.GetColumn() or 1)
    except (ValueError, TypeError, OverflowError) as error:  # a value that slipped through its checks
        return str(error), None
    return "", None
