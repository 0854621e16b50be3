"""The files beside a model that its configuration names: labels of classes, states of new sequences."""

from collections.abc import Callable
from pathlib import Path

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import internal
from modserve.core.files import regular_file
from modserve.core.requests.sequence import file_state
from modserve.core.tensors.tensor import Tensor

INITIAL_STATE_FOLDER = "initial_state"


def read_labels(
    directory: Path, config: ModelConfig, warn: Callable[[str], None] = lambda text: None
) -> dict[str, tuple[str, ...]]:
    """The lines of each output's label file. Raises as `_read`. Warns of files that are not UTF-8."""
    labels: dict[str, tuple[str, ...]] = {}
    for output in config.outputs:
        if not output.label_filename:
            continue
        who = f"label_filename of output '{output.name}' of model '{config.name}'"
        path = directory / output.label_filename
        content = _read(path, who)
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            warn(
                f"{who}, '{path}', is not UTF-8: byte 0x{content[error.start]:02x} in line {line}. HTTP requests for "
                "its classes fail; save it as UTF-8"
            )
            text = content.decode("utf-8-sig", "surrogateescape")
        text = text.replace("\r\n", "\n")
        labels[output.name] = tuple(text.removesuffix("\n").split("\n")) if text else ()
    return labels


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
