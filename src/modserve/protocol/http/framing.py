"""Framing of several JSON responses in one HTTP body: as server-sent events, or one per line."""

from dataclasses import dataclass

from modserve.protocol.accept import weights


@dataclass(frozen=True, slots=True)
class Framing:
    """`media_type` is what Accept calls it, `content_type` what a response says."""

    media_type: str
    content_type: str
    before: bytes
    after: bytes

    def frame(self, text: bytes) -> bytes:
        """Frame one message; `text` is JSON without line breaks."""
        return self.before + text + self.after


EVENTS = Framing("text/event-stream", "text/event-stream; charset=utf-8", b"data: ", b"\n\n")
"""Server-sent events, as Triton's ``generate_stream`` writes them."""
LINES = Framing("application/x-ndjson", "application/x-ndjson", b"", b"\n")


def choose(accept: str) -> Framing:
    """Choose the framing by the request's ``Accept``: the higher weight; EVENTS if equal, or neither is named.

    As RFC 9110, section 12.5.1: the most specific range says the weight of a type.
    """
    by_range = weights(accept)
    return LINES if _weight(by_range, LINES) > _weight(by_range, EVENTS) else EVENTS


def _weight(by_range: dict[str, float], framing: Framing) -> float:
    group = framing.media_type.partition("/")[0]
    return next((by_range[name] for name in (framing.media_type, f"{group}/*", "*/*") if name in by_range), 0.0)
