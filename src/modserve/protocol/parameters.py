"""Request parameters (protocol: parameters, schedule policy and sequence extensions), alike on both wires."""

from modserve.core.errors import invalid


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
