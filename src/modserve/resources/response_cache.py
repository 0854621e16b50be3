"""Keeps responses for later requests that are the same (Triton's local response cache).

Triton's key is 64 bits of the model's name, its version and the inputs' bytes. A key here also covers the names,
datatypes and shapes of the inputs, the requested outputs and the parameters: only equal requests share a key.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple, Protocol

from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse
from modserve.core.runtime.long_buffers import copy_of
from modserve.core.tensors.tensor import Tensor

_OVERHEAD = 512
"""Roughly the bytes of an entry besides its tensors."""

_LONG = 256 * 1024
"""Bytes of a tensor that goes into a key by its digest, which was computed on a thread."""

_WITHOUT_MEANING = frozenset({"priority", "timeout"})
"""Parameters that only matter to the queue, not to the response."""


class Cache(Protocol):
    """Responses by their owner, which is a loaded model version, and the key of a request.

    For the event loop's thread, which no method blocks. A cache that has trouble finds nothing; it raises nothing.
    """

    def get(self, owner: object, key: bytes) -> InferenceResponse | None:
        """The kept response, whose id is not this request's. Its tensors are read-only."""

    def fetch(self, owner: object, key: bytes) -> "asyncio.Future[InferenceResponse | None] | None":
        """A response that only a wait can tell of, which never fails; None: there is nothing to wait for."""

    def put(self, owner: object, key: bytes, response: InferenceResponse) -> None:
        """Keep a response, if there is room for it."""

    def forget(self, owner: object) -> None:
        """Drop all responses of `owner`, now or soon."""


class _Entry(NamedTuple):
    response: InferenceResponse
    size: int
    until: float
    """By the monotonic clock, in seconds."""


class ResponseCache:
    """Implements `Cache`: at most `capacity` bytes of responses; drops the least recently used first.

    Only the owner finds its responses, not even the version that replaces it. Those that are longer than `longest`
    bytes are not kept, and none for longer than `ttl_s`; 0: no such limit.
    """

    def __init__(
        self, capacity: int, ttl_s: float = 0, longest: int = 0, now: Callable[[], float] | None = None
    ) -> None:
        self._capacity = min(capacity, longest + _OVERHEAD) if longest else capacity
        self._room = capacity
        self._ttl_s = ttl_s or float("inf")
        self._now = now or time.monotonic
        self._entries: OrderedDict[tuple[object, bytes], _Entry] = OrderedDict()
        self.size = 0
        """Bytes."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, owner: object, key: bytes) -> InferenceResponse | None:
        entry = self._entries.get((owner, key))
        if entry is None:
            return None
        if entry.until <= self._now():
            self._drop((owner, key))
            return None
        self._entries.move_to_end((owner, key))
        return entry.response

    def fetch(self, owner: object, key: bytes) -> "asyncio.Future[InferenceResponse | None] | None":
        """None: what it has, `get` tells."""
        return None

    def put(self, owner: object, key: bytes, response: InferenceResponse) -> None:
        """Keeps a copy, unless it is larger than the whole cache.

        It is made at once: when the response has gone on, a client may write to the shared memory that a tensor is in.
        """
        size = _OVERHEAD + raw_size(response.outputs.values())
        if size > self._capacity:
            return
        self._drop((owner, key))
        while self.size + size > self._room:
            self._drop(next(iter(self._entries)))
        # The tensors may be views of a whole batch, which would stay in memory with them.
        outputs = {
            name: Tensor.from_raw(one.datatype, one.shape, copy_of(one.raw)) for name, one in response.outputs.items()
        }
        kept = replace(response, outputs=outputs, id="", parameters=dict(response.parameters), waited_ns=0)
        self._entries[owner, key] = _Entry(kept, size, self._now() + self._ttl_s)
        self.size += size

    def forget(self, owner: object) -> None:
        """Drops all responses of `owner`."""
        for entry_key in [each for each in self._entries if each[0] is owner]:
            self._drop(entry_key)

    def _drop(self, entry_key: tuple[object, bytes]) -> None:
        entry = self._entries.pop(entry_key, None)
        if entry is not None:
            self.size -= entry.size


def key(request: InferenceRequest, tenant: str = "") -> bytes:
    """256 bits of a cryptographic hash: equal only for requests of a tenant that have the same response."""
    parameters = {name: value for name, value in request.parameters.items() if name not in _WITHOUT_MEANING}
    digest = hashlib.blake2b(_text((request.outputs, sorted(parameters.items()))), digest_size=32)
    if tenant:
        digest.update(_text((tenant,)))
    for name in sorted(request.inputs):
        tensor = request.inputs[name]
        raw = tensor.raw
        digest.update(_text((name, tensor.datatype.name, tensor.shape, len(raw))))
        digest.update(raw if len(raw) <= _LONG else tensor.digest())
    return digest.digest()


def raw_size(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' raw forms."""
    return sum(len(tensor.raw) for tensor in tensors)


def _text(value: object) -> bytes:
    return repr(value).encode(errors="surrogatepass")
