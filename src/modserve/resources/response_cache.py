"""Caches responses for identical later requests (Triton's local response cache).

Triton's key is 64 bits of the model's name, its version and the inputs' bytes. A key here also covers the inputs'
names, datatypes and shapes, the requested outputs and the parameters: only equal requests share a key.

Format of stored responses, for caches shared between processes:

    MAGIC  digest (16)  length of the head (4)  head (JSON)  tensors, raw, one after the other

The digest covers the request's key and everything after the digest. It reveals bytes that are truncated, changed, of
another version, or stored under another key. Reading executes nothing.
"""

import asyncio
import hashlib
import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.core.requests.response import InferenceResponse
from modserve.core.runtime.long_buffers import copy_of
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Shape, Tensor

MAGIC = b"modserve response 1\n"
_DIGEST = 16
_LENGTH = 4
_HEAD_AT = len(MAGIC) + _DIGEST + _LENGTH

_BY_NAME = {row.name: row for row in dtypes.ALL}
_Head: TypeAlias = dict[str, Any]


class UnusableError(Exception):
    """Bytes that are no response to the request. The text has the reason."""


def to_bytes(key: bytes, response: InferenceResponse) -> bytes:
    """Return the response to the request with this key as bytes, without its id. They may be stored anywhere."""
    raws = [(name, tensor, tensor.raw) for name, tensor in response.outputs.items()]
    head = json.dumps(
        {
            "model": response.model_name,
            "version": response.model_version,
            "outputs": [[name, one.datatype.name, list(one.shape), len(raw)] for name, one, raw in raws],
            "parameters": dict(response.parameters),
            "skipped": sorted(response.skipped),
        }
    ).encode()
    body = b"".join((len(head).to_bytes(_LENGTH, "big"), head, *(raw for _, _, raw in raws)))
    return MAGIC + _digest(key, body) + body


def from_bytes(key: bytes, kept: bytes) -> InferenceResponse:
    """Return the response to the request with this key, without an id. Tensors are views. Raises `UnusableError`."""
    if not kept.startswith(MAGIC) or len(kept) < _HEAD_AT:
        raise UnusableError("it is not a response of this version")
    body = memoryview(kept)[len(MAGIC) + _DIGEST :]
    if _digest(key, body) != kept[len(MAGIC) : len(MAGIC) + _DIGEST]:
        raise UnusableError("its digest is wrong")
    try:
        return _read(body)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UnusableError(f"it cannot be read: {error}") from None


def _digest(key: bytes, body: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(key, digest_size=_DIGEST)
    digest.update(body)
    return digest.digest()


def _read(body: memoryview) -> InferenceResponse:
    length = int.from_bytes(body[:_LENGTH], "big")
    head: _Head = json.loads(bytes(body[_LENGTH : _LENGTH + length]))
    at = _LENGTH + length
    outputs: dict[str, Tensor] = {}
    for output in map(_output, head["outputs"]):
        raw = body[at : at + output.size]
        at += output.size
        tensor = outputs[output.name] = Tensor.from_raw(output.datatype, output.shape, raw)
        if not output.datatype.size and tensor.count_elements() != math.prod(output.shape):
            raise ValueError(f"output '{output.name}' has a number of elements that does not match its shape")
    if at != len(body):
        raise ValueError(f"{len(body)} bytes, expected {at}")
    parameters: dict[str, ParameterValue] = {str(name): value for name, value in head["parameters"].items()}
    return InferenceResponse(
        head["model"], head["version"], outputs, parameters=parameters, skipped=frozenset(head["skipped"])
    )


@dataclass(frozen=True, slots=True)
class _Output:
    name: str
    datatype: Datatype
    shape: Shape
    size: int


def _output(values: list[Any]) -> _Output:
    name, datatype, shape, size = values
    output = _Output(str(name), _BY_NAME[datatype], tuple(map(int, shape)), int(size))
    expected = math.prod(output.shape) * output.datatype.size
    if min(output.shape, default=0) < 0 or (output.datatype.size and output.size != expected):
        raise ValueError(f"output '{name}' has {size} bytes, expected {expected}")
    return output


_OVERHEAD = 512
"""Approximate size in bytes of an entry without its tensors."""

_LONG = 256 * 1024
"""Size in bytes from which a tensor's digest, computed on a thread, goes into the key."""

_WITHOUT_MEANING = frozenset({"priority", "timeout"})
"""Parameters that affect only the queue, not the response."""


class Cache(Protocol):
    """Responses by owner, a loaded model version, and by the key of a request.

    For the event loop's thread; methods do not block. A failing cache finds nothing, and raises nothing.
    """

    def get(self, owner: object, key: bytes) -> InferenceResponse | None:
        """Return the cached response, with another request's id. Its tensors are read-only."""

    def fetch(self, owner: object, key: bytes) -> "asyncio.Future[InferenceResponse | None] | None":
        """Return a future of the response that never fails; None if there is nothing to wait for."""

    def put(self, owner: object, key: bytes, response: InferenceResponse) -> None:
        """Store a response, if there is room for it."""

    def forget(self, owner: object) -> None:
        """Drop all responses of `owner`, now or soon."""


class _Entry(NamedTuple):
    response: InferenceResponse
    size: int
    until: float
    """Expiry in seconds of the monotonic clock."""


class ResponseCache:
    """Implements `Cache` with at most `capacity` bytes of responses; the least recently used are dropped first.

    Responses are visible to their owner only, and not to the version that replaces it. Responses longer than `longest`
    bytes are not stored, and others are stored for `ttl_s` at most; 0 for no such limit.
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
        """Size of all entries in bytes."""

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
        """Return None: `get` finds every entry."""
        return None

    def put(self, owner: object, key: bytes, response: InferenceResponse) -> None:
        """Store a copy, unless it is larger than the whole cache.

        Copied at once: after the response has been delivered, a client may write to shared memory with its tensors.
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
        """Drop all responses of `owner`."""
        for entry_key in [each for each in self._entries if each[0] is owner]:
            self._drop(entry_key)

    def _drop(self, entry_key: tuple[object, bytes]) -> None:
        entry = self._entries.pop(entry_key, None)
        if entry is not None:
            self.size -= entry.size


def key(request: InferenceRequest, tenant: str = "") -> bytes:
    """Return 256 bits of a cryptographic hash, equal only for requests of a tenant with the same response."""
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
    """Return the size of the tensors' raw forms in bytes."""
    return sum(len(tensor.raw) for tensor in tensors)


def _text(value: object) -> bytes:
    return repr(value).encode(errors="surrogatepass")
