"""Responses kept for requests that are the same as one before (Triton's local response cache).

Unlike Triton's, whose key is 64 bits of the model's name, its version and the inputs' bytes, a key here also covers the
inputs' names, datatypes and shapes, the outputs asked for and the parameters: two requests share one only if they are
the same.
"""

import hashlib
from collections import OrderedDict
from typing import NamedTuple

from modserve.core.request import InferenceRequest
from modserve.core.response import InferenceResponse
from modserve.core.tensor import Tensor

_OVERHEAD = 512
"""What an entry takes beside its tensors, roughly."""

_LONG = 256 * 1024
"""Bytes of a tensor that goes into a key by its digest, which was computed on a thread."""

_WITHOUT_MEANING = frozenset({"priority", "timeout"})
"""Parameters that steer the queue and leave the answer as it is."""


class _Entry(NamedTuple):
    response: InferenceResponse
    size: int


class ResponseCache:
    """At most `capacity` bytes of responses; the least recently used go first. For the event loop's thread.

    An `owner` is a loaded model version: what one has put there nobody else finds, nor the one that takes its place.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[tuple[object, bytes], _Entry] = OrderedDict()
        self.size = 0
        """Bytes."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, owner: object, key: bytes) -> InferenceResponse | None:
        """The response kept, with an id that is not this request's. Its tensors are read-only."""
        entry = self._entries.get((owner, key))
        if entry is None:
            return None
        self._entries.move_to_end((owner, key))
        return entry.response

    def put(self, owner: object, key: bytes, response: InferenceResponse) -> None:
        """Keep a copy, if it is not larger than the whole cache."""
        size = _OVERHEAD + sum(len(tensor.raw) for tensor in response.outputs.values())
        if size > self._capacity:
            return
        self._drop((owner, key))
        while self.size + size > self._capacity:
            self._drop(next(iter(self._entries)))
        # Its tensors may be parts of a whole batch, which would be kept with them.
        outputs = {name: _copy(tensor) for name, tensor in response.outputs.items()}
        kept = InferenceResponse(
            response.model_name,
            response.model_version,
            outputs,
            parameters=dict(response.parameters),
            skipped=response.skipped,
        )
        self._entries[owner, key] = _Entry(kept, size)
        self.size += size

    def forget(self, owner: object) -> None:
        """Drop all that `owner` has put there."""
        for found in [entry for entry in self._entries if entry[0] is owner]:
            self._drop(found)

    def _drop(self, found: tuple[object, bytes]) -> None:
        entry = self._entries.pop(found, None)
        if entry is not None:
            self.size -= entry.size


def key(request: InferenceRequest) -> bytes:
    """Equal for requests that have the same answer, and for no others: 256 bits of a cryptographic hash."""
    parameters = {name: value for name, value in request.parameters.items() if name not in _WITHOUT_MEANING}
    found = hashlib.blake2b(_text((request.outputs, sorted(parameters.items()))), digest_size=32)
    for name in sorted(request.inputs):
        tensor = request.inputs[name]
        raw = tensor.raw
        found.update(_text((name, tensor.datatype.name, tensor.shape, len(raw))))
        found.update(raw if len(raw) <= _LONG else tensor.digest())
    return found.digest()


def _text(value: object) -> bytes:
    return repr(value).encode(errors="surrogatepass")


def _copy(tensor: Tensor) -> Tensor:
    return Tensor.from_raw(tensor.datatype, tensor.shape, bytes(tensor.raw))
