"""The weights that headers like ``Accept`` give to their values (RFC 9110, section 12.4.2)."""


def weights(header: str) -> dict[str, float]:
    """Return the weights by lower-case value, in the header's order: 1 without a weight, 0 for an invalid number."""
    by_value: dict[str, float] = {}
    for item in header.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        weight = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                weight = _number(value)
        by_value[name] = max(weight, by_value.get(name, 0.0))
    return by_value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
