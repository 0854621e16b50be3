"""The model repository extension: the index, and what requests to load or unload a model say."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from modserve.core.errors import invalid, unsupported
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.core.wire import base64_text
from modserve.pb import inference as pb
from modserve.pb.json_message import to_json
from modserve.protocol.control import control_body
from modserve.protocol.json import long_texts
from modserve.protocol.json.json_text import JsonObject

_CONFIG = "config"
_FILE = "file:"
_DEPENDENTS = "unload_dependents"


# The index


def index_json(entries: Iterable[IndexEntry]) -> list[JsonObject]:
    """Return the index as a bare list; empty fields of an entry are left out."""
    return [{name: value for name, value in to_json(model).items() if value} for model in index_message(entries).models]


def index_message(entries: Iterable[IndexEntry]) -> pb.RepositoryIndexResponse:
    response = pb.RepositoryIndexResponse()
    for entry in entries:
        version = "" if entry.version is None else str(entry.version)
        response.models.add(name=entry.name, version=version, state=_state(entry), reason=entry.reason)
    return response


def _state(entry: IndexEntry) -> str:
    """Return the state of an entry; empty for a model that was never loaded."""
    return "" if entry.version is None and entry.state is LifecycleState.UNKNOWN else entry.state.value


def only_ready(body: bytes) -> bool:
    """True if a request's body, which may be empty, requests only READY models. Raises INVALID_ARG."""
    ready = control_body.read(body).get("ready", False) if body else False
    if type(ready) is not bool:
        raise invalid("Invalid value for 'ready': expected a boolean")
    return ready


def check_repository_name(name: str) -> None:
    """Check the name. Raises UNSUPPORTED for one, as Triton does, except for the index over HTTP, which ignores it."""
    if name:
        raise unsupported("'repository_name' specification is not supported")


# Load and unload


@dataclass(frozen=True, slots=True)
class LoadParameters:
    """Replacements for a load: a configuration, and files by their path in the model."""

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


def load_json(body: bytes) -> LoadParameters:
    """Return the parameters of a load request's body, which may be empty. Raises INVALID_ARG."""
    document = long_texts.cut(body)
    parameters = _json_parameters(document.rest, document.origin)
    files = [text for name, text in parameters.items() if name.startswith(_FILE) and str(text) in document.texts]
    if len(files) == len(document.texts):
        return _load(parameters, partial(_json_value, document.texts))
    return _load(_json_parameters(body), partial(_json_value, {}))


def load_message(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> LoadParameters:
    """Read load parameters as `load_json` does."""
    return _load(parameters, _message_value)


def _load(parameters: Mapping[str, Any], read: Callable[[str, Any, bool], Any]) -> LoadParameters:
    """Return the parameters. `read` returns a named one: bytes if it is a file (the last argument), else text."""
    config = None
    files: dict[str, bytes] = {}
    for name, value in parameters.items():
        if name == _CONFIG:
            config = read(name, value, False)
        else:
            path = name.removeprefix(_FILE)
            if not path or path == name:
                raise invalid(f"unrecognized load parameter '{name}'.")
            files[path] = read(name, value, True)
    return LoadParameters(config, files)


def _json_value(long: Mapping[str, memoryview], name: str, value: object, is_file: bool) -> str | bytes:
    """Return the value of a parameter. `long` are texts by the marks that stand for them."""
    text = control_body.check_type(value, str, f"invalid value for load parameter '{name}': ")
    if not is_file:
        return text
    try:
        return base64_text.decode(long.get(text, text))
    except ValueError as error:
        raise invalid(f"invalid value for load parameter '{name}', expected base64: {error}") from error


def _message_value(name: str, value: pb.ModelRepositoryParameter, is_file: bool) -> str | bytes:
    expected = "bytes_param" if is_file else "string_param"
    if value.WhichOneof("parameter_choice") != expected:
        raise invalid(f"invalid value type for load parameter '{name}', expected {expected}.")
    return value.bytes_param if is_file else value.string_param


def unload_dependents_json(body: bytes) -> bool:
    """True if an unload request's body, which may be empty, includes dependents. Raises INVALID_ARG."""
    value = _json_parameters(body).get(_DEPENDENTS, False)
    return control_body.check_type(value, bool, f"invalid value for unload parameter '{_DEPENDENTS}': ")


def unload_dependents_message(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> bool:
    """True if an unload request includes dependents, as `unload_dependents_json`."""
    if _DEPENDENTS not in parameters:
        return False
    value = parameters[_DEPENDENTS]
    if value.WhichOneof("parameter_choice") != "bool_param":
        raise invalid(f"invalid value type for '{_DEPENDENTS}' parameter, expected bool_param.")
    return value.bool_param


def _json_parameters(body: bytes, origin: Callable[[int], int] = lambda position: position) -> JsonObject:
    parameters = control_body.read(body, origin=origin).get("parameters", {}) if body else {}
    return control_body.check_type(parameters, dict, "Unable to parse 'parameters': ")
