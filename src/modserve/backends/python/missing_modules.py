"""Advice for a model that fails because a module is missing: a sentence after the error."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from modserve.backends.api import ModelSource
from modserve.core.errors import ModserveError

from . import requirements
from .options import ENVIRONMENT_PATH, EXECUTION_MODE, INSTALL_REQUIREMENTS, BackendOptions, ModelOptions

_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_PACKAGES = {"mlflow": "mlflow-skinny pandas"}
"""Module → the packages that the models which import it need, where that is known."""


@contextmanager
def hints(source: ModelSource, model: ModelOptions, backend: BackendOptions, python: str) -> Iterator[None]:
    """Append a `hint` to an error for a missing module, raised by the model's code inside this context."""
    try:
        yield
    except ModserveError as error:
        missing = _MISSING.match(error.message)
        if missing is None:
            raise
        text = hint(missing[1], source, model, backend, python)
        raise ModserveError(error.code, f"{error.message.rstrip()}\n\n{text}") from error


def hint(module: str, source: ModelSource, model: ModelOptions, backend: BackendOptions, python: str) -> str:
    """Return where a module is missing, and how to install it. `python` is the interpreter that the model runs in."""
    if model.environment_path is not None:
        return f"module '{module}' is not in the environment '{model.environment_path}' of model '{source.config.name}'"
    path = requirements.file_of(source.model_directory / str(source.version), source.model_directory)
    where, mode = f"module '{module}' is not installed in {python}", model.execution_mode
    by_hand = f"install it there ('{python} -m pip install {_PACKAGES.get(module, '…')}')"
    if path is None:
        elsewhere = f"name an environment that has it with the parameter '{ENVIRONMENT_PATH}'"
        if model.in_server:
            elsewhere = f"remove '{EXECUTION_MODE}' and {elsewhere}"
        return f"{where}, which the model runs in: {by_hand}, or {elsewhere}"
    if model.in_server:
        return (
            f"{where}, which the model runs in, since its '{EXECUTION_MODE}' is '{mode}'; '{path}' is for models that "
            "run in a process of their own"
        )
    if backend.install_requirements:
        return f"{where}, where '{path}' is installed; does the file name its package?"
    name = source.config.backend or "python"
    install = f"install it with --backend-config={name},{INSTALL_REQUIREMENTS}=true"
    return f"{where}, and '{path}' is not installed: {install}, or {by_hand}"
