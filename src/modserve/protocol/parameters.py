"""Request parameters (protocol: parameters, schedule policy and sequence extensions), alike on both wires."""

from modserve.core.errors import invalid
from modserve.core.requests.request import ParameterValue
from modserve.protocol.json.json_text import JsonTypeError, unable

_MAX_INTEGER = 2**63 - 1


def check_name(name: str, allowed: frozenset[str] = frozenset()) -> None:
    """Check a name. Raises INVALID_ARG for reserved names that start with ``triton_``, except the `allowed` ones."""
    if name.startswith("triton_") and name not in allowed:
        if allowed:
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {', '.join(sorted(allowed))}"
            )
        raise invalid(
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
        )


def custom(key: str, element: object) -> ParameterValue:
    """Return a parameter that only the model knows. Raises INVALID_ARG for a value that is none."""
    if not isinstance(element, bool | int | float | str):
        raise invalid(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")
    if type(element) is int and not -_MAX_INTEGER - 1 <= element <= _MAX_INTEGER:
        return _as_double(key, element)  # as Triton has it of what fits no 64 bits with a sign
    return element


def _as_double(key: str, number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        raise unable(key, JsonTypeError("number", "double")) from None
