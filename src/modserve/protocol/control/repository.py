"""The model repository extension: the index, and what requests to load or unload a model say."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from modserve.core.errors import invalid, unsupported
from modserve.core.lifecycle import IndexEntry, State
from modserve.pb import inference as pb
from modserve.protocol.control import control_body
from modserve.protocol.json.json_text import JsonObject

_CONFIG = "config"
_FILE = "file:"
_DEPENDENTS = "unload_dependents"


# The index


def index_json(entries: Iterable[IndexEntry]) -> list[JsonObject]:
    """A bare list; what an entry has nothing to say about is left out."""
    return [
        {
            name: value
            for name, value in (
                ("name", entry.name),
                ("version", "" if entry.version is None else str(entry.version)),
                ("state", _state(entry)),
                ("reason", entry.reason),
            )
            if value
        }
        for entry in entries
    ]


def index_message(entries: Iterable[IndexEntry]) -> pb.RepositoryIndexResponse:
    return pb.RepositoryIndexResponse(
        models=[
            pb.RepositoryIndexResponse.ModelIndex(
                name=entry.name,
                version="" if entry.version is None else str(entry.version),
                state=_state(entry),
                reason=entry.reason,
            )
            for entry in entries
        ]
    )


def _state(entry: IndexEntry) -> str:
    """A model that was never loaded has no state."""
    return "" if entry.version is None and entry.state is State.UNKNOWN else entry.state.value


def only_ready(body: bytes) -> bool:
    """Whether a request's body, which may be empty, asks for what is READY only. Raises INVALID_ARG."""
    ready = control_body.read(body).get("ready", False) if body else False
    if type(ready) is not bool:
        raise invalid("Invalid value for 'ready': expected a boolean")
    return ready


def check_repository_name(name: str) -> None:
    """Raises UNSUPPORTED for a name, as Triton does, but for the index over HTTP, where it ignores it."""
    if name:
        raise unsupported("'repository_name' specification is not supported")


# Load and unload


@dataclass(frozen=True, slots=True)
class LoadParameters:
    """What a load uses in place of what is in the repository: a configuration, files by their path in the model."""

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


def load_json(body: bytes) -> LoadParameters:
    """The parameters of a load request's body, which may be empty. Raises INVALID_ARG."""
    config = None
    files: dict[str, bytes] = {}
    for name, value in _json_parameters(body).items():
        path = "" if name == _CONFIG else _file_path(name)
        text = control_body.typed(value, str, f"invalid value for load parameter '{name}': ")
        if path:
            files[path] = _base64(name, text)
        else:
            config = text
    return LoadParameters(config, files)


def unload_dependents_json(body: bytes) -> bool:
    """Whether an unload request's body, which may be empty, asks for dependents as well. Raises INVALID_ARG."""
    value = _json_parameters(body).get(_DEPENDENTS, False)
    return control_body.typed(value, bool, f"invalid value for unload parameter '{_DEPENDENTS}': ")


def load_message(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> LoadParameters:
    """As `load_json`."""
    config = None
    files: dict[str, bytes] = {}
    for name, value in parameters.items():
        path = "" if name == _CONFIG else _file_path(name)
        expected = "bytes_param" if path else "string_param"
        if value.WhichOneof("parameter_choice") != expected:
            raise invalid(f"invalid value type for load parameter '{name}', expected {expected}.")
        if path:
            files[path] = value.bytes_param
        else:
            config = value.string_param
    return LoadParameters(config, files)


def unload_dependents_message(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> bool:
    """As `unload_dependents_json`."""
    if _DEPENDENTS not in parameters:
        return False
    value = parameters[_DEPENDENTS]
    if value.WhichOneof("parameter_choice") != "bool_param":
        raise invalid(f"invalid value type for '{_DEPENDENTS}' parameter, expected bool_param.")
    return value.bool_param


def _file_path(name: str) -> str:
    """The path that a parameter ``file:<path>`` names."""
    path = name.removeprefix(_FILE)
    if not path or path == name:
        raise invalid(f"unrecognized load parameter '{name}'.")
    return path


def _base64(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(f"invalid value for load parameter '{name}', expected base64: {error}") from error


def _json_parameters(body: bytes) -> JsonObject:
    value = control_body.read(body).get("parameters", {}) if body else {}
    return control_body.typed(value, dict, "Unable to parse 'parameters': ")
