"""The sinks of requests that a model has accepted: a request lets go of its own once it is settled."""

from modserve.core.requests.inflight import Inflight
from modserve.testing import RecordingSink

_kept: dict[int, tuple[Inflight, RecordingSink]] = {}


def keep(entry: Inflight, sink: RecordingSink) -> Inflight:
    """Remember the sink with which `entry` was submitted."""
    _kept[id(entry)] = entry, sink
    return entry


def sink_of(entry: Inflight) -> RecordingSink:
    return _kept[id(entry)][1]
