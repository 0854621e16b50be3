"""Traces of single requests: settings, sampling, and destinations.

Settings, sampling and files are Triton's (``tracer.cc``), and so is the use of the monotonic clock. In mode
opentelemetry a complete trace becomes spans instead of records in a file, and a client's own trace is continued:
``traceparent`` says whether that is recorded, and this part of it follows.
"""

import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from modserve.core.configuration.trace_settings import SpanSettings, TraceChange, TraceSettings
from modserve.core.errors import invalid
from modserve.core.requests import trace_context
from modserve.core.requests.inflight import RequestTrace
from modserve.core.requests.trace_context import TraceHeaders
from modserve.core.servable import Servable

from .span_figures import SpanFigures
from .span_ids import Batch, Batches, SpanIds
from .trace_file import TraceFiles, TraceOutput, Writer
from .trace_sampling import TraceSampler, apply_change, problem

if TYPE_CHECKING:  # imported with the first request that is traced or followed
    from .path_log import PathLog
    from .request_trace import Trace

_log = logging.getLogger(__name__)


class SpanWriter(Protocol):
    """Receives complete traces instead of files, on the writer's thread: `span_export.Spans`."""

    @property
    def figures(self) -> SpanFigures: ...
    def write(self, trace: "Trace") -> None: ...
    def write_batch(self, batch: Batch) -> None: ...
    def left_out(self, count: int) -> None: ...
    def close(self) -> None: ...


def _spans(settings: SpanSettings, name: str) -> SpanWriter:
    from .span_export import Spans  # only servers that export spans need it

    return Spans(settings, name)


class Tracer:
    """Trace settings of a server, global and by model, and their sampling. For the event loop's thread.

    `on`: true while a request may be sampled; otherwise `sample` need not be called. A model's settings are kept by its
    name, loaded or not. Call `close` at the end. `name`: the server's name.
    """

    def __init__(
        self,
        settings: TraceSettings | None = None,
        writer: Writer | None = None,
        spans: SpanWriter | None = None,
        name: str = "modserve",
    ) -> None:
        self._start = settings or TraceSettings()
        self._spans = spans
        if spans is None and self._start.spans is not None:
            self._spans = _spans(self._start.spans, name)
        self.batches = Batches(self._write_batch)
        self.ids: Iterator[int] = itertools.count(1)
        self._files = TraceFiles(self._start.file)
        self._writer = writer or self._own_writer(self._start.spans)
        self._settings = {"": self._setting(self._start, {})}
        """Settings by model name; the global ones are under an empty name."""
        self._closed = False
        self.verbose = False
        """True if each request's path is logged."""
        self.on = False
        self._look()
        if reason := problem(self._start):
            _log.warning("nothing is traced: %s; set '--trace-config triton,file=PATH' and a rate above 0", reason)

    def __repr__(self) -> str:
        models = [name for name in self._settings if name]
        return f"Tracer({'on' if self.on else 'off'}, {self.settings()}, own settings of {models})"

    @staticmethod
    def _own_writer(spans: SpanSettings | None) -> Writer:
        """Return a writer with a queue for as many traces as spans may wait to be sent."""
        return Writer() if spans is None else Writer(spans.bsp_max_queue_size, "")

    @property
    def mode(self) -> str:
        """Trace mode in the protocol's notation. Never changes."""
        return self._start.mode

    @property
    def propagates(self) -> bool:
        """True if the client's span of a request matters."""
        return self._start.spans is not None

    @property
    def figures(self) -> SpanFigures | None:
        """Numbers of sent and lost spans; None if traces are not spans."""
        return None if self._spans is None else self._spans.figures

    @property
    def dropped(self) -> int:
        """Number of traces missing from files, or of spans that were not created."""
        return self._writer.dropped

    def settings(self, model: str = "") -> TraceSettings:
        """Return a model's settings, or the global ones; `count` is the remaining count."""
        return self._of(model).current

    def change(self, change: TraceChange, model: str = "") -> None:
        """Change a model's settings; with an empty name, the global ones. A model's own settings override these.

        Applies to all later requests; traces under way keep their settings. Counting starts again.

        Raises INVALID_ARG, and changes nothing, for settings that enable traces but make them impossible.
        """
        if not change:
            return
        behind = self._settings[""].current if model else self._start
        values_of = {model: apply_change(behind, self._settings.get(model), change)}
        if not model:
            others = {name: setting for name, setting in self._settings.items() if name}
            values_of |= {name: apply_change(values_of[""][0], setting, {}) for name, setting in others.items()}
        for name, (values, _) in values_of.items():
            reason = problem(values)
            if not reason and name == model and values.level and change.get("count") == 0:
                reason = "trace count must be non-zero, -1 does not limit it"
            if reason:
                raise invalid(f"Attempting to set invalid trace setting :{reason}")
        for name, (values, own) in values_of.items():
            if name in self._settings:
                self._retire(self._settings.pop(name))
            if own or not name:
                self._settings[name] = self._setting(values, own)
        self._look()

    def sample(self, servable: Servable, headers: TraceHeaders | None = None, tenant: str = "") -> "Trace | None":
        """Return a trace of this request if it is sampled by settings or the client's `headers`. The caller ends it."""
        setting = self._of(servable.id.name)
        parent = trace_context.from_headers(headers) if self.propagates else None
        if not setting.hit(parent):
            return None
        if not setting.remaining:
            self._look()
        from .request_trace import Trace

        spans = SpanIds.of_call(parent) if self.propagates else None
        trace = Trace(self, setting, servable.id, next(self.ids), None, spans)
        trace.tenant = tenant
        return trace

    def continue_trace(self, servable: Servable, context: str) -> "Trace":
        """Return the trace of a request with its call traced elsewhere; it ends with the request's final outcome."""
        setting, parent = self._of(servable.id.name), trace_context.from_json(context)
        assert parent is not None, "another worker has made it: this is a bug"
        from .request_trace import Trace

        setting.open += 1
        return Trace(self, setting, servable.id, next(self.ids), None, SpanIds.elsewhere(parent))

    def follow(self, servable: Servable, request_id: str, trace: RequestTrace | None) -> "PathLog":
        """Return the log of a request's path, for `verbose`. `trace`: the request's trace if it is sampled."""
        from .path_log import PathLog

        return PathLog(request_id, servable.id, trace)

    def change_verbosity(self, level: int) -> None:
        """Log the paths of requests if `level` is above 0."""
        self.verbose = level > 0
        self._look()

    def close(self) -> None:
        """Write all traces and stop. Blocks. Call when nothing is traced any more; idempotent."""
        if self._closed:
            return
        self._closed = True
        self.on = False
        for setting in self._settings.values():
            setting.open = 0
            self._retire(setting)
        self._writer.put(self._files.close)
        self._writer.close()
        if self._spans is not None:
            self._spans.close()

    def on_end(self, setting: TraceSampler, trace: "Trace") -> None:
        """Handle a complete trace of `setting`."""
        if self._closed:
            return
        output, finish, spans = setting.output, setting.collect(), self._spans
        if spans is not None:
            if not self._writer.put(lambda: spans.write(trace), count := trace.span_count):
                spans.left_out(count)
            return

        def write() -> None:
            try:
                output.append(trace.render())
            finally:
                if finish:
                    output.finish()

        self._writer.put(write, trace.whole_size)
        if setting.retired and not setting.open:
            self._writer.put(output.end)

    def _write_batch(self, batch: Batch) -> None:
        spans = self._spans
        if spans is not None and not self._closed:
            self._writer.put(lambda: spans.write_batch(batch))

    def _of(self, model: str) -> TraceSampler:
        return self._settings.get(model) or self._settings[""]

    def _setting(self, settings: TraceSettings, own: Mapping[str, Any]) -> TraceSampler:
        limited = settings.count > 0 and settings.rate == 1
        indexed = settings.log_frequency > 0 or limited
        return TraceSampler(settings, own, TraceOutput(self._files, indexed=indexed, keep=settings.log_frequency > 0))

    def _retire(self, setting: TraceSampler) -> None:
        setting.retired = True
        if not setting.open:
            self._writer.put(setting.output.end)

    def _look(self) -> None:
        self.on = not self._closed and (self.verbose or any(setting.on for setting in self._settings.values()))
