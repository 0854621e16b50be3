"""The options of the ``python`` backend: model parameters and ``--backend-config`` keys.

The names in capitals and those with ``shm``, ``stub`` and ``pool`` are Triton's (python_backend's README, and
``ModelState`` and ``TRITONBACKEND_Initialize`` in src/python_be.cc); the others are ours. A model's parameters are also
its own: it reads them from ``args["model_config"]``, so an unknown one is worth a warning only if it looks misspelt.
"""

import difflib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid

from ..options import OptionReader, options_of, parameters_of

ExecutionMode = Literal["process", "thread", "inline"]

EXECUTION_MODE = "EXECUTION_MODE"
ENVIRONMENT_PATH = "EXECUTION_ENV_PATH"
CPU_ONLY_INPUTS = "FORCE_CPU_ONLY_INPUT_TENSORS"
EXECUTION_TIMEOUT = "EXECUTION_TIMEOUT_SECONDS"
MODEL_PARAMETERS = (EXECUTION_MODE, ENVIRONMENT_PATH, CPU_ONLY_INPUTS, EXECUTION_TIMEOUT)
_LIKELY = 0.85
"""Similarity to a known parameter from which an unknown one counts as misspelt."""

INSTALL_REQUIREMENTS = "install-requirements"
ENVIRONMENT_DIRECTORY = "environment-directory"
PYTHON = "python"
FULL_ERRORS = "full-errors"
START_TIMEOUT = "start-timeout-seconds"
_TRITONS_START_TIMEOUT = "stub-timeout-seconds"
STOP_TIMEOUT = "stop-timeout-seconds"
_SIZED_BY_NEED = "shared memory grows and shrinks with the tensors of requests"
_WITHOUT_EFFECT = {
    "shm-default-byte-size": _SIZED_BY_NEED,
    "shm-growth-byte-size": _SIZED_BY_NEED,
    "shm-region-prefix-name": "servers on one machine never share the memory of their workers",
    "shm_message_queue_size": "requests reach a worker through a socket, which has no such limit",
    "thread-pool-size": "calls between models need no threads of the server",
}
BACKEND_OPTIONS: Mapping[str, str] = _WITHOUT_EFFECT | dict.fromkeys(
    (
        INSTALL_REQUIREMENTS,
        ENVIRONMENT_DIRECTORY,
        PYTHON,
        FULL_ERRORS,
        START_TIMEOUT,
        _TRITONS_START_TIMEOUT,
        STOP_TIMEOUT,
    ),
    "",
)
"""Option → why it has no effect, or nothing: the `known_options` of the backend."""

_PLACES = {"thread": "in a thread", "inline": "on the event loop"}
_LONGEST_S = 86_400.0


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The parameters of one model that the backend acts on. `environment_path` is as it was written, or None.

    `execution_timeout_s`: the process of an execution that takes longer, in seconds, is killed; None for never.
    """

    execution_mode: ExecutionMode = "process"
    environment_path: str | None = None
    execution_timeout_s: float | None = None

    @property
    def in_server(self) -> bool:
        """The model runs in the server's process, and its interpreter."""
        return self.execution_mode != "process"


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The server's options for the backend.

    `python` is the path of the interpreter for models that have no environment of their own. `environment_directory` is
    where environments are made, as it was written; None for the default. `full_errors`: clients get all places of an
    exception in ``execute``, with their paths, as from Triton. Times are in seconds, and more than 0.
    """

    install_requirements: bool = False
    environment_directory: str | None = None
    python: str = sys.executable
    full_errors: bool = False
    start_timeout_s: float = 30.0
    stop_timeout_s: float = 30.0


def model_options(config: ModelConfig) -> ModelOptions:
    """Read the options of a model. Raises INVALID_ARG, with the model's name and the expected value."""
    values = parameters_of(config)
    values.choice(CPU_ONLY_INPUTS, ("yes", "no"))
    options = ModelOptions(
        execution_mode=cast(ExecutionMode, values.choice(EXECUTION_MODE, get_args(ExecutionMode), "process")),
        environment_path=_path(values, ENVIRONMENT_PATH, "a conda-pack archive or an environment's directory"),
        execution_timeout_s=_seconds(values, EXECUTION_TIMEOUT, 0.0) or None,
    )
    if options.in_server and options.execution_timeout_s is not None:
        raise invalid(
            f"model '{config.name}': parameter '{EXECUTION_TIMEOUT}' needs a process that it can end, but "
            f"'{EXECUTION_MODE}' is '{options.execution_mode}'; remove one of the two"
        )
    if options.in_server and options.environment_path is not None:
        raise invalid(
            f"model '{config.name}': parameters '{EXECUTION_MODE}' is '{options.execution_mode}' and "
            f"'{ENVIRONMENT_PATH}' is '{options.environment_path}'; a model that runs "
            f"{_PLACES[options.execution_mode]} of the server uses the server's interpreter; remove "
            "one of the two"
        )
    return options


def backend_options(options: Mapping[str, str]) -> BackendOptions:
    """Read the options of the backend. Raises INVALID_ARG, with the expected value."""
    values, default = options_of(options), BackendOptions()
    start_key = START_TIMEOUT if START_TIMEOUT in values else _TRITONS_START_TIMEOUT
    return BackendOptions(
        install_requirements=values.flag(INSTALL_REQUIREMENTS, default=default.install_requirements),
        environment_directory=_path(values, ENVIRONMENT_DIRECTORY, "a directory"),
        python=_interpreter(values, default.python),
        full_errors=values.flag(FULL_ERRORS, default=default.full_errors),
        start_timeout_s=_seconds(values, start_key, default.start_timeout_s),
        stop_timeout_s=_seconds(values, STOP_TIMEOUT, default.stop_timeout_s),
    )


def warnings(config: ModelConfig) -> list[str]:
    """Return warnings about parameters that look like misspelt ones of the backend, or that have no effect."""
    notes = []
    for key, value in config.parameters.items():
        label = f"model '{config.name}': parameter '{key}'"
        if key in MODEL_PARAMETERS:
            if key == CPU_ONLY_INPUTS and value.lower() == "no":
                notes.append(f"{label} is '{value}', which has no effect: all input tensors are in host memory")
            continue
        near = difflib.get_close_matches(_fold(key), MODEL_PARAMETERS, n=1, cutoff=_LIKELY)
        if near:
            notes.append(f"{label} has no effect unless the model itself reads it; did you mean '{near[0]}'?")
    return notes


def _fold(key: str) -> str:
    return key.upper().replace("-", "_").replace(".", "_").replace(" ", "_")


def _interpreter(values: OptionReader, default: str) -> str:
    """Return the absolute path of an interpreter, with links: a virtual environment is recognised by its link."""
    if PYTHON not in values.values:
        return default
    path = shutil.which(os.path.expanduser(values.text(PYTHON)))
    if path is None:
        raise values.fault(PYTHON, "the path or name of a Python interpreter")
    return os.path.abspath(path)


def _path(values: OptionReader, key: str, expected: str) -> str | None:
    if "\0" in values.text(key):
        raise values.fault(key, expected)
    return values.text(key) or None


def _seconds(values: OptionReader, key: str, default: float) -> float:
    expected = f"seconds, more than 0 and at most {_LONGEST_S:.0f}"
    return values.number(key, default, lambda seconds: 0 < seconds <= _LONGEST_S, expected)
