"""The model repository extension: the index, and what requests to load or unload a model say."""

from collections.abc import Iterable, Mapping

from modserve.core.errors import invalid, unsupported
from modserve.core.lifecycle import IndexEntry
from modserve.pb import inference as pb

from . import control_body
from .json_message import JsonObject

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
                ("state", entry.state.value),
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
                state=entry.state.value,
                reason=entry.reason,
            )
            for entry in entries
        ]
    )


def only_ready(body: bytes) -> bool:
    """Whether a request's body, which may be empty, asks for what is READY only. Raises INVALID_ARG."""
    ready = control_body.read(body).get("ready", False) if body else False
    if type(ready) is not bool:
        raise invalid("Invalid value for 'ready': expected a boolean")
    return ready


def check_repository_name(name: str) -> None:
    """Raises UNSUPPORTED for a name, as Triton's gRPC does; its HTTP ignores it."""
    if name:
        raise unsupported("'repository_name' specification is not supported")


# Load and unload


def check_load_json(body: bytes) -> None:
    """Raises INVALID_ARG for parameters of a load request which are not to be understood."""
    for name, value in _json_parameters(body).items():
        control_body.typed(value, str)
        if name != _CONFIG and not name.startswith(_FILE):
            raise invalid(f"unrecognized load parameter '{name}'.")


def check_unload_json(body: bytes) -> None:
    parameters = _json_parameters(body)
    if _DEPENDENTS in parameters:
        control_body.typed(parameters[_DEPENDENTS], bool)


def check_load_message(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> None:
    for name, value in parameters.items():
        if name != _CONFIG and not name.startswith(_FILE):
            raise invalid(f"unrecognized load parameter '{name}'.")
        expected = "string_param" if name == _CONFIG else "bytes_param"
        if value.WhichOneof("parameter_choice") != expected:
            raise invalid(f"invalid value type for load parameter '{name}', expected {expected}.")


def check_unload_message(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> None:
    if _DEPENDENTS in parameters and parameters[_DEPENDENTS].WhichOneof("parameter_choice") != "bool_param":
        raise invalid(f"invalid value type for '{_DEPENDENTS}' parameter, expected bool_param.")


def _json_parameters(body: bytes) -> JsonObject:
    return control_body.typed(control_body.read(body).get("parameters", {}), dict) if body else {}
