"""Copies of requests for a shadow version; its responses are only compared with the clients' responses.

A copy is made after the client's response has been delivered, so it can neither delay nor fail the original request. It
is dropped, and counted as dropped, if too many are in flight, if its tensors exceed the server's memory for requests,
or if they are in memory that the client may change by then.
"""

import asyncio
import mmap
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from modserve.core.configuration.routing_config import Shadow
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.memory import MemoryBudget
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, SingleResponseSink
from modserve.core.servable import Servable
from modserve.core.tensors.tensor import Array, Tensor, format_shape


def difference(expected: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: float) -> str:
    """Return a description of the first output of `other` that differs from `expected`; empty if none does.

    Floating-point elements are equal up to a relative difference of `tolerance`; all others must be identical. The time
    grows with the tensors' size, and device tensors are copied to the host.
    """
    if missing := expected.keys() - other.keys():
        return f"output '{min(missing)}' is missing"
    for name, tensor in expected.items():
        if text := _difference(tensor, other[name], tolerance):
            return f"output '{name}' {text}"
    return ""


def _difference(expected: Tensor, other: Tensor, tolerance: float) -> str:
    if other.datatype is not expected.datatype:
        return f"is {other.datatype.name}, expected {expected.datatype.name}"
    if other.shape != expected.shape:
        return f"has shape {format_shape(other.shape)}, expected {format_shape(expected.shape)}"
    if not expected.datatype.size or expected.array.dtype.kind in "biu":
        return _describe_difference(np.asarray(expected.array != other.array), "")
    a, b = expected.array.astype(np.float64), other.array.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a - b)
        size = np.maximum(np.abs(a), np.abs(b))
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | ((apart <= tolerance * size) & np.isfinite(size))
        finite = ~same & np.isfinite(apart) & (size > 0)
        largest = float(np.max(apart[finite] / size[finite])) if finite.any() else None
    return _describe_difference(~same, "" if largest is None else f", by up to {largest:.3g} of their size")


def _describe_difference(differing: Array, more: str) -> str:
    count = int(np.count_nonzero(differing))
    return f"differs in {count} of {differing.size} elements{more}" if count else ""


_PATIENCE_NS: Final = 10_000_000_000
"""Maximum time of a copy in the queue."""
_SHORT: Final = 64 * 1024
"""Size in bytes of outputs compared on the event loop's thread; larger ones and device tensors use another thread."""


def _soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


def _aside(compare: Callable[[], str], done: Callable[[str], None]) -> None:
    """Run `compare` on a thread, and then `done` with its result or the reason of its failure."""

    def on_end(future: "asyncio.Future[str]") -> None:
        if not future.cancelled():
            error = future.exception()
            done(future.result() if error is None else f"cannot be compared: {error}")

    asyncio.get_running_loop().run_in_executor(None, compare).add_done_callback(on_end)


class ShadowTraffic:
    """The shadow of one model. `call_soon`: runs a function after the current turn of the event loop."""

    def __init__(
        self,
        rule: Shadow,
        memory: MemoryBudget,
        call_soon: Callable[[Callable[[], None]], None] = _soon,
        aside: Callable[[Callable[[], str], Callable[[str], None]], None] = _aside,
    ) -> None:
        self._rule = rule
        self._memory = memory
        self._call_soon = call_soon
        self._aside = aside
        self._due = 0.0
        self.outcomes = {"same": 0, "different": 0, "failed": 0, "dropped": 0}
        """Each sampled request is counted as one of these, unless it failed itself."""
        self.in_flight = 0
        self.last_difference = ""
        self.last_failure = ""

    def sample(self, request: InferenceRequest) -> bool:
        """Return True if a request is to be copied: the configured share of them, to within one."""
        if request.parameters.get("sequence_id"):
            return False  # of an ensemble: its steps may have sequences
        self._due += self._rule.share
        if self._due < 1:
            return False
        self._due -= 1
        if any(map(_borrowed, request.inputs.values())):
            self.outcomes["dropped"] += 1
            return False
        return True

    def copy(self, request: InferenceRequest, response: InferenceResponse, servable: Servable) -> None:
        """Submit a copy of `request` to `servable`, after its client has received the response."""
        size = response.size + sum([tensor.size for tensor in request.inputs.values()])
        if self.in_flight >= self._rule.max_in_flight or not self._memory.fits(size):
            self.outcomes["dropped"] += 1
            return
        self._memory.take(size)
        self.in_flight += 1
        self._call_soon(partial(self._submit, request, response, servable, size))

    def _submit(self, request: InferenceRequest, response: InferenceResponse, servable: Servable, size: int) -> None:
        now_ns = time.monotonic_ns()
        copy = InferenceRequest(
            request.model_name,
            request.inputs,
            request.outputs,
            servable.id.version,
            request.id,
            request.parameters,
            now_ns + _PATIENCE_NS,
            tenant=request.tenant,
        )
        try:
            servable.submit(copy, _ComparisonSink(self, response, size), now_ns)
        except ModserveError as error:
            self._end("dropped" if error.code is Code.UNAVAILABLE else "failed", size, error.message)
        except Exception as error:
            self._end("failed", size, f"{error}")

    def on_settle(self, expected: InferenceResponse, outcome: InferenceResponse | ModserveError, size: int) -> None:
        """Handle the outcome of a copy that holds `size` bytes."""
        if isinstance(outcome, ModserveError):
            self._end("failed", size, outcome.message)
            return
        more = outcome.size
        self._memory.force(more)
        compare = partial(difference, expected.outputs, outcome.outputs, self._rule.tolerance)
        tensors = (*expected.outputs.values(), *outcome.outputs.values())
        if size + more > _SHORT or any(tensor.device is not None for tensor in tensors):
            self._aside(compare, partial(self._on_compared, size + more))
            return
        try:
            text = compare()
        except Exception as error:  # an unreadable tensor
            text = f"cannot be compared: {error}"
        self._on_compared(size + more, text)

    def _on_compared(self, size: int, text: str) -> None:
        self._end("different" if text else "same", size, text)

    def _end(self, outcome: str, size: int, text: str) -> None:
        self.outcomes[outcome] += 1
        if outcome == "different":
            self.last_difference = text
        elif outcome != "same":
            self.last_failure = text
        self.in_flight -= 1
        self._memory.give_back(size)

    def report(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "version": self._rule.route,
            **self.outcomes,
            "in_flight": self.in_flight,
            **({"last_difference": self.last_difference} if self.last_difference else {}),
            **({"last_failure": self.last_failure} if self.last_failure else {}),
        }


class _ComparisonSink(SingleResponseSink):
    """Sink for the response to a copy."""

    __slots__ = ("_expected", "_shadow_traffic", "_size")

    def __init__(self, shadow_traffic: ShadowTraffic, expected: InferenceResponse, size: int) -> None:
        super().__init__()
        self._shadow_traffic = shadow_traffic
        self._expected = expected
        self._size = size

    def deliver(self, outcome: InferenceResponse | ModserveError) -> None:
        self._shadow_traffic.on_settle(self._expected, outcome, self._size)


def _borrowed(tensor: Tensor) -> bool:
    """True if its elements are in a shared-memory region, which the client may change after the response."""
    received = tensor.received
    return tensor.device is not None or (isinstance(received, memoryview) and isinstance(received.obj, mmap.mmap))
