"""Export of spans to an OpenTelemetry collector; the only module that uses the library.

The tracer's thread creates spans of complete traces, the library's thread sends them, and the event loop waits for
neither. Spans that cannot be sent are dropped and counted: the library's queue never gets more than its capacity, so
none is lost there uncounted.
"""

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

from opentelemetry import trace as api
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace.span import TraceState

from modserve.__about__ import __version__
from modserve.core.configuration.trace_settings import SpanSettings
from modserve.core.requests.trace_context import SpanContext

from .request_trace import Trace
from .span_figures import EXPORT_FAILED, OVERLOADED, QUEUE_FULL, STOPPED, SpanFigures
from .span_ids import Batch
from .span_tree import Span, batch_span, spans_of

_log = logging.getLogger(__name__)

T = TypeVar("T")

GRPC = "grpc"
FLUSH_S = 5.0
"""Maximum wait in seconds at the end for unsent spans."""
_AGAIN_S = 60.0
"""Interval in seconds of log lines about lost spans, while losses continue."""
_PATH = "/v1/traces"
_LIBRARY = "opentelemetry.exporter"
"""Logger of the library's exporters. Its messages provide the reason in ours."""


def default_exporter(settings: SpanSettings) -> SpanExporter:
    """Return an exporter to `settings.url`, the environment's address (``OTEL_EXPORTER_OTLP_…``) or this machine."""
    environment = os.environ
    by_environment = environment.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL) or environment.get(OTEL_EXPORTER_OTLP_PROTOCOL)
    url = settings.url if "://" in settings.url or not settings.url else f"http://{settings.url}"
    if (settings.protocol or by_environment) == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(url or None)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    parts = urlsplit(url)
    if url and parts.path in ("", "/"):
        url = urlunsplit(parts._replace(path=_PATH))
    return HttpExporter(url or None)


def resource_of(settings: SpanSettings, name: str) -> Resource:
    """Return the attributes of this server: the settings, then the environment, then `name`."""
    defaults = {"service.name": name, "service.version": __version__, "service.instance.id": str(uuid.uuid4())}
    by_environment = dict(OTELResourceDetector().detect().attributes)
    return Resource.create({**defaults, **by_environment, **dict(settings.resource)})


@dataclass(eq=False)
class ExportStats:
    """Counts spans, and logs losses: at once, and then from time to time."""

    clock: Callable[[], float] = time.monotonic
    handed: int = 0
    """Spans passed to the library."""
    drawn: int = 0
    """Spans taken by the library's thread from its queue."""
    exported: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    reason: str = ""
    """Latest message of the library."""
    _logged: int = 0
    _next_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def drop(self, count: int, why: str) -> None:
        with self._lock:
            self.dropped[why] = self.dropped.get(why, 0) + count
            now_s = self.clock()
            if self._logged and now_s < self._next_s:
                return
            new, self._logged = sum(self.dropped.values()) - self._logged, sum(self.dropped.values())
            self._next_s = now_s + _AGAIN_S
        _log.warning("%d trace spans were lost: %s%s", new, why, f" ({self.reason})" if self.reason else "")

    @property
    def waiting(self) -> int:
        return self.handed - self.drawn

    @property
    def figures(self) -> SpanFigures:
        with self._lock:
            return SpanFigures(self.exported, dict(self.dropped), self.waiting)


class _CountingExporter(SpanExporter):
    """Exporter that counts, on the library's thread."""

    def __init__(self, inner: SpanExporter, losses: ExportStats) -> None:
        self._inner = inner
        self._losses = losses

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        losses = self._losses
        losses.drawn += len(spans)
        losses.reason = ""
        try:
            result = self._inner.export(spans)
        except Exception as error:
            losses.reason = f"{type(error).__name__}: {error}"
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            losses.exported += len(spans)
        else:
            losses.drop(len(spans), EXPORT_FAILED)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


class _Reasons(logging.Handler):
    """Collects log messages of the library's exporter, instead of logging each attempt."""

    def __init__(self, losses: ExportStats) -> None:
        super().__init__(logging.WARNING)
        self._losses = losses

    def emit(self, record: logging.LogRecord) -> None:
        self._losses.reason = record.getMessage()


class Spans:
    """Creates and sends the spans of complete traces. `write` and `write_batch` are for one thread.

    Spans are created complete, in the form that exporters read, since all data is known by then. The library's own
    spans, with a begin and an end, take four times as long.
    """

    def __init__(self, settings: SpanSettings, name: str, exporter: SpanExporter | None = None) -> None:
        self.losses = ExportStats()
        self._most = settings.bsp_max_queue_size
        self._exporter = default_exporter(settings) if exporter is None else exporter
        self._resource = resource_of(settings, name)
        self._scope = InstrumentationScope("modserve", __version__)
        self._limits = SpanLimits()
        self._processor = BatchSpanProcessor(
            _CountingExporter(self._exporter, self.losses),
            settings.bsp_max_queue_size,
            settings.bsp_schedule_delay,
            min(settings.bsp_max_export_batch_size, settings.bsp_max_queue_size),
        )
        self._reasons = _Reasons(self.losses)
        library = logging.getLogger(_LIBRARY)
        library.addHandler(self._reasons)
        library.propagate = False

    @property
    def figures(self) -> SpanFigures:
        return self.losses.figures

    def write(self, trace: Trace) -> None:
        for span in spans_of(trace):
            self._send(span)

    def write_batch(self, batch: Batch) -> None:
        span = batch_span(batch, time.time_ns() - time.monotonic_ns())
        if span is not None:
            self._send(span)

    def left_out(self, count: int) -> None:
        """Count the spans of a trace dropped because too many wait."""
        self.losses.drop(count, OVERLOADED)

    def close(self, limit_s: float = FLUSH_S) -> None:
        """Send remaining spans within `limit_s` seconds. Blocks."""
        losses = self.losses
        ending = threading.Thread(target=self._processor.shutdown, name="spans", daemon=True)
        ending.start()
        ending.join(limit_s)
        if ending.is_alive():
            self._exporter.shutdown()  # ends the wait for another attempt
            ending.join(limit_s / 10)
        lost = losses.handed - losses.exported - losses.dropped.get(EXPORT_FAILED, 0)
        if lost > 0:
            losses.drop(lost, STOPPED)
        library = logging.getLogger(_LIBRARY)
        library.removeHandler(self._reasons)
        library.propagate = True

    def _send(self, span: Span) -> None:
        losses = self.losses
        if losses.waiting >= self._most:
            losses.drop(1, QUEUE_FULL)
            return
        failure = span.failure
        losses.handed += 1
        self._processor.on_end(
            ReadableSpan(
                span.name,
                _to_api_context(span.context),
                None if span.parent is None else _to_api_context(span.parent, span.serves),
                self._resource,
                span.attributes,
                _limit([Event(event.name, None, event.ns) for event in span.events], self._limits.max_events),
                _limit([api.Link(_to_api_context(each)) for each in span.links], self._limits.max_links),
                api.SpanKind.SERVER if span.serves else api.SpanKind.INTERNAL,
                status=_OK if failure is None else api.Status(api.StatusCode.ERROR, failure.message),
                start_time=span.start_ns,
                end_time=max(span.end_ns, span.start_ns),
                instrumentation_scope=self._scope,
            )
        )


_OK = api.Status()


def _limit(items: list[T], most: int | None) -> Sequence[T]:
    """Return the last items, up to the limit of a span, which also reports the number of dropped ones."""
    return items if most is None or len(items) <= most else BoundedList.from_seq(most, items)


def _to_api_context(span: SpanContext, remote: bool = False) -> api.SpanContext:
    state = TraceState.from_header([span.state]) if span.state else None
    return api.SpanContext(span.trace_id, span.span_id, remote, _SAMPLED if span.sampled else None, state)


_SAMPLED = api.TraceFlags(api.TraceFlags.SAMPLED)
