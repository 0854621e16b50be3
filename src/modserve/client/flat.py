"""Flat requests and responses, as the generate extension has them: plain values by name."""

from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

from modserve.core.errors import Code
from modserve.core.requests.request import ParameterValue

from .errors import ClientError
from .values import ModelMetadata, Result, Value


def split(fields: Mapping[str, Value], metadata: ModelMetadata) -> tuple[dict[str, Value], dict[str, ParameterValue]]:
    """Inputs of the model, and parameters. Raises INVALID_ARG for a parameter that is none."""
    names = {spec.name for spec in metadata.inputs}
    inputs: dict[str, Value] = {}
    parameters: dict[str, ParameterValue] = {}
    for name, value in fields.items():
        if name in names:
            inputs[name] = value
        elif isinstance(value, bool | int | float | str):
            parameters[name] = value
        else:
            listed = ", ".join(sorted(names))
            raise ClientError(
                Code.INVALID_ARG,
                f"'{name}' is not an input of model '{metadata.name}', which has {listed}; a parameter must be a "
                f"bool, a number or a text, got {type(value).__name__}",
            )
    return inputs, parameters


def joined(result: Result) -> dict[str, Any]:
    """The outputs and parameters of a response; outputs win."""
    return {**result.parameters, **{name: result.plain(name) for name in result}}


def each(results: Generator[Result]) -> Generator[dict[str, Any]]:
    with closing(results):
        for result in results:
            yield joined(result)
