"""What users may set for the ``python`` backend: model parameters and ``--backend-config`` keys.

The names in capitals and those with ``shm``, ``stub`` and ``pool`` are Triton's (python_backend's README, and
``ModelState`` and ``TRITONBACKEND_Initialize`` in src/python_be.cc); the others are ours. A model's parameters are also
its own: it reads them from ``args["model_config"]``, so an unknown one is worth a warning only if it looks misspelt.
"""

import difflib
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid

ExecutionMode = Literal["process", "thread", "inline"]

EXECUTION_MODE = "EXECUTION_MODE"
ENVIRONMENT_PATH = "EXECUTION_ENV_PATH"
CPU_ONLY_INPUTS = "FORCE_CPU_ONLY_INPUT_TENSORS"
EXECUTION_TIMEOUT = "EXECUTION_TIMEOUT_SECONDS"
MODEL_PARAMETERS = (EXECUTION_MODE, ENVIRONMENT_PATH, CPU_ONLY_INPUTS, EXECUTION_TIMEOUT)
_LIKELY = 0.85
"""How similar an unknown parameter must be to a known one to count as misspelt."""

INSTALL_REQUIREMENTS = "install-requirements"
ENVIRONMENT_DIRECTORY = "environment-directory"
PYTHON = "python"
START_TIMEOUT = "start-timeout-seconds"
_TRITONS_START_TIMEOUT = "stub-timeout-seconds"
STOP_TIMEOUT = "stop-timeout-seconds"
_SIZED_BY_NEED = "shared memory grows and shrinks with the tensors of the requests"
_WITHOUT_EFFECT = {
    "shm-default-byte-size": _SIZED_BY_NEED,
    "shm-growth-byte-size": _SIZED_BY_NEED,
    "shm-region-prefix-name": "servers on one machine never share memory of their workers",
    "shm_message_queue_size": "requests reach a worker through a socket, which has no such limit",
    "thread-pool-size": "calls of models to other models need no threads of the server",
}
BACKEND_OPTIONS: Mapping[str, str] = _WITHOUT_EFFECT | dict.fromkeys(
    (INSTALL_REQUIREMENTS, ENVIRONMENT_DIRECTORY, PYTHON, START_TIMEOUT, _TRITONS_START_TIMEOUT, STOP_TIMEOUT), ""
)
"""Option → why it has no effect, or nothing: the `known_options` of the backend."""

_PLACES = {"thread": "in a thread", "inline": "on the event loop"}
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_LONGEST_S = 86_400.0

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The parameters of one model that the backend acts on. `environment_path` is as it was written, or None.

    `execution_timeout_s`: the process of an execution that takes longer, in seconds, is killed; None for never.
    """

    execution_mode: ExecutionMode = "process"
    environment_path: str | None = None
    cpu_only_inputs: bool = True
    execution_timeout_s: float | None = None

    @property
    def in_server(self) -> bool:
        """The model runs in the server's process, and its interpreter."""
        return self.execution_mode != "process"


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The server's options for the backend.

    `python` is the path of the interpreter for models that have no environment of their own. `environment_directory` is
    where environments are made, as it was written; None for the default. Times are in seconds, and more than 0.
    """

    install_requirements: bool = False
    environment_directory: str | None = None
    python: str = sys.executable
    start_timeout_s: float = 30.0
    stop_timeout_s: float = 30.0


def model_options(config: ModelConfig) -> ModelOptions:
    """Raises INVALID_ARG, with the model's name and what would be right."""
    where, values = f"model '{config.name}': parameter", config.parameters
    modes: Mapping[str, ExecutionMode] = {mode: mode for mode in get_args(ExecutionMode)}
    options = ModelOptions(
        execution_mode=_choice(where, values, EXECUTION_MODE, modes, "process"),
        environment_path=_text(where, values, ENVIRONMENT_PATH, "a conda-pack archive or an environment's directory"),
        cpu_only_inputs=_choice(where, values, CPU_ONLY_INPUTS, {"yes": True, "no": False}, True),
        execution_timeout_s=_seconds(where, values, EXECUTION_TIMEOUT, 0.0) or None,
    )
    if options.in_server and options.execution_timeout_s is not None:
        raise invalid(
            f"model '{config.name}': parameter '{EXECUTION_TIMEOUT}' ends a process, but '{EXECUTION_MODE}' is "
            f"'{options.execution_mode}'; leave one of the two out"
        )
    if options.in_server and options.environment_path is not None:
        raise invalid(
            f"model '{config.name}': parameters '{EXECUTION_MODE}' is '{options.execution_mode}' and "
            f"'{ENVIRONMENT_PATH}' is '{options.environment_path}', but a model that runs "
            f"{_PLACES[options.execution_mode]} of the server runs in the server's interpreter; leave one of the two "
            "out"
        )
    return options


def backend_options(values: Mapping[str, str]) -> BackendOptions:
    """Raises INVALID_ARG, with what would be right."""
    where, default = "backend option", BackendOptions()
    start_key = START_TIMEOUT if START_TIMEOUT in values else _TRITONS_START_TIMEOUT
    return BackendOptions(
        install_requirements=_choice(where, values, INSTALL_REQUIREMENTS, _FLAGS, default.install_requirements),
        environment_directory=_text(where, values, ENVIRONMENT_DIRECTORY, "a directory"),
        python=_parsed(where, values, PYTHON, _executable, "the path or name of a Python interpreter", default.python),
        start_timeout_s=_seconds(where, values, start_key, default.start_timeout_s),
        stop_timeout_s=_seconds(where, values, STOP_TIMEOUT, default.stop_timeout_s),
    )


def warnings(config: ModelConfig) -> list[str]:
    """Parameters of a model that look like misspelt ones of the backend, or that have no effect."""
    notes = []
    for key, value in config.parameters.items():
        who = f"model '{config.name}': parameter '{key}'"
        if key in MODEL_PARAMETERS:
            if key == CPU_ONLY_INPUTS and value.lower() == "no":
                notes.append(f"{who} is '{value}', which has no effect: all input tensors are in host memory")
            continue
        near = difflib.get_close_matches(_fold(key), MODEL_PARAMETERS, n=1, cutoff=_LIKELY)
        if near:
            notes.append(f"{who} has no effect unless the model itself reads it; did you mean '{near[0]}'?")
    return notes


def _fold(key: str) -> str:
    return key.upper().replace("-", "_").replace(".", "_").replace(" ", "_")


def _executable(text: str) -> str | None:
    """The absolute path of an interpreter; a link to it stays a link, by which a virtual environment is recognised."""
    path = shutil.which(os.path.expanduser(text)) if text else None
    return os.path.abspath(path) if path is not None else None


def _parsed(
    where: str, values: Mapping[str, str], key: str, parse: Callable[[str], Value | None], right: str, default: Value
) -> Value:
    """The value under `key`, which `parse` understands or returns None for. Raises INVALID_ARG."""
    text = values.get(key)
    if text is None:
        return default
    value = parse(text)
    if value is None:
        raise invalid(f"{where} '{key}' is '{text}', expected {right}")
    return value


def _choice(where: str, values: Mapping[str, str], key: str, choices: Mapping[str, Value], default: Value) -> Value:
    right = " or ".join(f"'{choice}'" for choice in choices)
    return _parsed(where, values, key, lambda text: choices.get(text.strip().lower()), right, default)


def _text(where: str, values: Mapping[str, str], key: str, right: str) -> str | None:
    # An empty value is how a configuration made from a template leaves a parameter out.
    return _parsed(where, values, key, lambda text: None if "\0" in text else text.strip(), right, "") or None


def _seconds(where: str, values: Mapping[str, str], key: str, default: float) -> float:
    def parse(text: str) -> float | None:
        try:
            seconds = float(text)
        except ValueError:
            return None
        return seconds if 0 < seconds <= _LONGEST_S else None

    return _parsed(where, values, key, parse, f"seconds, more than 0 and at most {_LONGEST_S:.0f}", default)
