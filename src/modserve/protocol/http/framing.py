"""How several JSON answers follow each other in one HTTP body: as server-sent events, or a line each."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Framing:
    """`media_type` is what Accept calls it, `content_type` what an answer says."""

    media_type: str
    content_type: str
    before: bytes
    after: bytes

    def frame(self, text: bytes) -> bytes:
        """One message; `text` is JSON without line breaks."""
        return self.before + text + self.after


EVENTS = Framing("text/event-stream", "text/event-stream; charset=utf-8", b"data: ", b"\n\n")
"""Server-sent events, as Triton's ``generate_stream`` writes them."""
LINES = Framing("application/x-ndjson", "application/x-ndjson", b"", b"\n")


def choose(accept: str) -> Framing:
    """The framing by the request's ``Accept``: that of the higher weight; EVENTS of equals, and where neither is named.

    As RFC 9110, section 12.5.1: the most specific range says the weight of a type.
    """
    weights = _weights(accept)
    return LINES if _weight(weights, LINES) > _weight(weights, EVENTS) else EVENTS


def _weight(weights: dict[str, float], framing: Framing) -> float:
    group = framing.media_type.partition("/")[0]
    matches = (weights[name] for name in (framing.media_type, f"{group}/*", "*/*") if name in weights)
    return next(matches, 0.0)


def _weights(accept: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for item in accept.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        weight = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                weight = _number(value)
        weights[name] = max(weight, weights.get(name, 0.0))
    return weights


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return 0.0
