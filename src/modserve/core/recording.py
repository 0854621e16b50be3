"""Recording of requests, as front ends and the metrics page see it. `recording/` implements it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .requests.request import InferenceRequest
from .servable import Servable, Submitter


@dataclass(frozen=True, slots=True)
class RecordFigures:
    """Counts of recorded requests since the server's start, and the current size of the files."""

    recorded: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Sampled requests that are not in a file, by reason."""
    size: int = 0


class RequestRecorder(Protocol):
    """Recorder of some of the requests that front ends submit."""

    @property
    def figures(self) -> RecordFigures: ...

    def sample(self, servable: Servable, request: InferenceRequest) -> Submitter:
        """Return the submitter of the request: `servable` itself, or for a sampled request one that also records it.

        Never raises.
        """
