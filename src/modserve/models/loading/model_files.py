"""The files beside a model that its configuration names: labels of classes, states of new sequences."""

import logging
from pathlib import Path

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import internal
from modserve.core.files import regular_file
from modserve.core.requests.sequence import file_state
from modserve.core.tensors.tensor import Tensor

_log = logging.getLogger(__name__)

INITIAL_STATE_FOLDER = "initial_state"


def read_labels(directory: Path, config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """The lines of each output's label file. Raises as `_read`."""
    labels: dict[str, tuple[str, ...]] = {}
    for output in config.outputs:
        if not output.label_filename:
            continue
        who = f"label_filename of output '{output.name}' of model '{config.name}'"
        path = directory / output.label_filename
        text = _text(_read(path, who), path, who).replace("\r\n", "\n")
        labels[output.name] = tuple(text.removesuffix("\n").split("\n")) if text else ()
    return labels


def _text(content: bytes, path: Path, label: str) -> str:
    """Decode a label file without its byte order mark. Logs a warning for bytes that are not UTF-8: JSON cannot carry
    them."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        _log.warning(
            "%s, '%s', is not UTF-8: byte 0x%02x in line %d. HTTP requests for its classes fail; save it as UTF-8",
            label,
            path,
            content[error.start],
            line,
        )
        return content.decode("utf-8-sig", "surrogateescape")


def read_initial_states(directory: Path, config: ModelConfig) -> dict[str, Tensor]:
    """The states of new sequences that come from files, by input. Raises as `_read`."""
    states: dict[str, Tensor] = {}
    for state in config.sequence_batching.states if config.sequence_batching is not None else ():
        initial = state.initial
        if initial is None or not initial.file:
            continue
        who = f"data_file of the initial_state of state '{state.input_name}' of model '{config.name}'"
        states[state.input_name] = file_state(
            state, initial, _read(directory / INITIAL_STATE_FOLDER / initial.file, who)
        )
    return states


def _read(path: Path, label: str) -> bytes:
    """A file that the configuration names. Raises INTERNAL, as Triton does, if it cannot be read."""
    try:
        return regular_file.read_bytes(path)
    except OSError as error:
        raise internal(f"failed to open text file for read {path}: {error.strerror} ({label})") from error
