"""Parameters of requests and responses: names with booleans, integers and texts; models read them as JSON."""

import json
from typing import Any, Dict, Mapping, Optional, Union

from .errors import TritonModelException

Value = Union[bool, int, float, str]

_RESERVED = frozenset(("binary_data_output", "priority", "sequence_end", "sequence_id", "sequence_start", "timeout"))
"""Names that clients send as parameters and Triton keeps apart."""

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


def check_and_copy(parameters: Optional[Mapping[str, Value]]) -> Optional[Dict[str, Value]]:
    """Return a copy; None if there are none. Raises TritonModelException with Triton's texts."""
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to be a dict, got {type(parameters)}")
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(name)}")
        if not isinstance(value, (int, str)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)} of '{name}'"
            )
        if isinstance(value, int) and not _LOWEST <= value <= _HIGHEST:
            raise TritonModelException(f"parameter '{name}' is {value}, which has more than 64 bits")
    return dict(parameters) or None


def as_json(parameters: Optional[Mapping[str, Any]]) -> str:
    """Return the parameters of a request or response as JSON, for the model."""
    return json.dumps(parameters) if parameters else "{}"


def as_json_of_client(parameters: Optional[Mapping[str, Any]]) -> str:
    """Return the parameters of a received request as JSON, as Triton writes them."""
    if not parameters:
        return "{}"
    shown = {name: value for name, value in parameters.items() if name not in _RESERVED}
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
