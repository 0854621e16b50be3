"""Request parameters (protocol: parameters, schedule policy and sequence extensions), alike on both wires."""

from collections.abc import Mapping

from modserve.core.errors import invalid
from modserve.core.request import ParameterValue

MICROSECOND_NS = 1_000


def check_name(name: str, allowed: frozenset[str] = frozenset()) -> None:
    """Raises INVALID_ARG for the reserved names that start with ``triton_``, but for the `allowed` ones."""
    if name.startswith("triton_") and name not in allowed:
        if allowed:
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {', '.join(sorted(allowed))}"
            )
        raise invalid(
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
        )


def deadline_ns(parameters: Mapping[str, ParameterValue], now_ns: int, limit_ns: int = 0) -> int:
    """When a request must have run: its ``timeout`` parameter (microseconds) from now on, or `limit_ns` if earlier."""
    timeout = parameters.get("timeout")
    if not timeout or not isinstance(timeout, int):
        return limit_ns
    own_ns = now_ns + timeout * MICROSECOND_NS
    return min(own_ns, limit_ns) if limit_ns else own_ns
