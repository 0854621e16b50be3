"""The spans of a traced request before they are made: which they are, whose children, and of which batch.

A span is known by its ids from the beginning, since they travel with the request, and is made when the
trace is complete. For the event loop's thread.
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
    """An execution with traced requests. `members` are the spans of these requests, `context` is the span of it all."""

    timing: ExecutionTiming
    model: ModelId
    context: SpanContext
    members: list[SpanContext] = field(default_factory=list)
    open: int = 0
    """Members that are not over."""
    end_ns: int = 0


@dataclass(slots=True, eq=False)
class SpanIds:
    """`own` is the span of the model's request, below `root`, that of the call, or if there is none below `parent`."""

    own: SpanContext
    root: SpanContext | None
    parent: SpanContext | None
    """A client's span, or that of the model that has made the request."""
    offset_ns: int
    """Offset from the monotonic clock to that of the world."""
    batch: Batch | None = None
    links: list[SpanContext] = field(default_factory=list)
    """Other requests that this one is made for."""

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
        """Return the ids of a request that belongs to a call with its span in another process."""
        return cls(_begin(parent), None, parent, time.time_ns() - time.monotonic_ns())


def _begin(parent: SpanContext | None) -> SpanContext:
    span_id = trace_context.new_span_id()
    if parent is None:
        return SpanContext(trace_context.new_trace_id(), span_id, True)
    return parent._replace(span_id=span_id, sampled=True)


class Batches:
    """The batches with traced requests that are under way. `write` gets those that had several, when they are over."""

    def __init__(self, write: Callable[[Batch], None]) -> None:
        self._write = write
        self._open: dict[ExecutionTiming, Batch] = {}

    def __len__(self) -> int:
        return len(self._open)

    def join(self, ids: SpanIds, model: ModelId, timing: ExecutionTiming) -> None:
        """A request is part of the execution of `timing`. All its requests join before it begins."""
        self.leave(ids)  # one that runs again
        batch = self._open.get(timing)
        if batch is None:
            batch = self._open[timing] = Batch(timing, model, _begin(None))
        batch.members.append(ids.own)
        batch.open += 1
        ids.batch = batch

    def leave(self, ids: SpanIds) -> None:
        """A request is over, if it was part of an execution. May be called again."""
        batch = ids.batch
        if batch is None or batch.end_ns or batch.timing not in self._open:
            return
        batch.open -= 1
        if not batch.open:
            del self._open[batch.timing]
            batch.end_ns = time.monotonic_ns()
            if len(batch.members) > 1:
                self._write(batch)
