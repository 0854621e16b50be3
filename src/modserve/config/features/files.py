"""Names of files: ``default_model_filename`` and ``label_filename``. They must stay inside the model's directory."""

import os
from dataclasses import replace

from modserve.core.model_config import ModelConfig
from modserve.pb import inference as pb

from ..text.problems import Faults, Problems
from .feature import Context, Feature


def escapes(filename: str) -> bool:
    """Whether a file name leads out of the directory that it is relative to."""
    return os.path.isabs(filename) or os.path.normpath(filename).split(os.sep)[0] == os.pardir


def _normalise(message: pb.ModelConfig, context: Context, problems: Problems) -> None:
    message.default_model_filename = message.default_model_filename or context.default_model_filename


def _validate(message: pb.ModelConfig, context: Context) -> Faults:
    name = message.name
    if escapes(message.default_model_filename):
        text = f"model file path '{message.default_model_filename}' in model '{name}' is outside version directory"
        yield ("default_model_filename",), text
    for index, output in enumerate(message.output):
        if escapes(output.label_filename):
            yield (
                ("output", index, "label_filename"),
                f"label file path '{output.label_filename}' for output '{output.name}' in model '{name}' is outside "
                "model directory",
            )


def _convert(message: pb.ModelConfig, config: ModelConfig, context: Context) -> ModelConfig:
    return replace(config, default_model_filename=message.default_model_filename)


FEATURE = Feature(normalise=_normalise, validate=_validate, convert=_convert)
