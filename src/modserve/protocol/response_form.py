"""Form that a client requests for an inference response, over HTTP or gRPC."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from modserve.core.requests.response import InferenceResponse
from modserve.core.servable import Servable
from modserve.core.tensors.shared_memory import RegionLease, RegionSlice
from modserve.protocol import classification, shared_memory


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """Selection of binary outputs: those in `binary`, or all. Over HTTP the others are JSON.

    `classes` has the outputs of which only the best classes are sent, and how many of them; `places` the outputs that
    go into shared memory.
    """

    all_binary: bool = False
    binary: frozenset[str] = frozenset()
    classes: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, RegionSlice] = field(default_factory=dict)

    def apply(self, response: InferenceResponse, servable: Servable, lease: RegionLease | None) -> InferenceResponse:
        """Return the response with its outputs written to shared memory, or replaced by their best classes.

        Raises INVALID_ARG for outputs that do not fit into their place, or that cannot be ranked.
        """
        if self.places:
            assert lease is not None, "there are places of outputs only with a lease: this is a bug"
            response = shared_memory.move_outputs(response, self.places, lease)
        return classification.classify(response, self.classes, servable)


JSON = ResponseForm()
BINARY = ResponseForm(all_binary=True)
