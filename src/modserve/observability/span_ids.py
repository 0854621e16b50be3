"""Ids of a traced request's spans before the spans are created: own ids, parents, and shared batches.

Span ids are known from the beginning, since they travel with the request; spans are created when the trace is
complete. For the event loop's thread.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from modserve.core.requests import trace_context
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.requests.trace_context import SpanContext
from modserve.core.version import ModelId


@dataclass(slots=True, eq=False)
class Batch:
    """An execution with traced requests. `members`: spans of these requests; `context`: span of the execution."""

    timing: ExecutionTiming
    model: ModelId
    context: SpanContext
    members: list[SpanContext] = field(default_factory=list)
    open: int = 0
    """Number of unfinished members."""
    end_ns: int = 0


@dataclass(slots=True, eq=False)
class SpanIds:
    """Span ids of a request. `own`: the model's request, below the call's span `root`, or below `parent`."""

    own: SpanContext
    root: SpanContext | None
    parent: SpanContext | None
    """Span of the client, or of the model that made the request."""
    offset_ns: int
    """Offset from the monotonic clock to Unix time."""
    batch: Batch | None = None
    links: list[SpanContext] = field(default_factory=list)
    """Other requests that this one was made for."""

    def child(self) -> "SpanIds":
        """Return the ids of a request that the model makes for this one."""
        return SpanIds(self._next(self.own), None, self.own, self.offset_ns)

    @staticmethod
    def _next(context: SpanContext) -> SpanContext:
        return context._replace(span_id=trace_context.new_span_id())

    @classmethod
    def of_call(cls, parent: SpanContext | None) -> "SpanIds":
        """Return the ids of a client's request."""
        root = _begin(parent)
        return cls(cls._next(root), root, parent, time.time_ns() - time.monotonic_ns())

    @classmethod
    def elsewhere(cls, parent: SpanContext) -> "SpanIds":
        """Return the ids of a request that belongs to a call in another process."""
        return cls(_begin(parent), None, parent, time.time_ns() - time.monotonic_ns())


def _begin(parent: SpanContext | None) -> SpanContext:
    span_id = trace_context.new_span_id()
    if parent is None:
        return SpanContext(trace_context.new_trace_id(), span_id, True)
    return parent._replace(span_id=span_id, sampled=True)


class Batches:
    """Batches under way with traced requests. `write` gets each finished one with several of them."""

    def __init__(self, write: Callable[[Batch], None]) -> None:
        self._write = write
        self._open: dict[ExecutionTiming, Batch] = {}

    def __len__(self) -> int:
        return len(self._open)

    def join(self, ids: SpanIds, model: ModelId, timing: ExecutionTiming) -> None:
        """Add a request to the execution of `timing`. All its requests join before it begins."""
        self.leave(ids)  # a request may run again
        batch = self._open.get(timing)
        if batch is None:
            batch = self._open[timing] = Batch(timing, model, _begin(None))
        batch.members.append(ids.own)
        batch.open += 1
        ids.batch = batch

    def leave(self, ids: SpanIds) -> None:
        """Remove a finished request from its execution, if any. Idempotent."""
        batch = ids.batch
        if batch is None or batch.end_ns or batch.timing not in self._open:
            return
        batch.open -= 1
        if not batch.open:
            del self._open[batch.timing]
            batch.end_ns = time.monotonic_ns()
            if len(batch.members) > 1:
                self._write(batch)
