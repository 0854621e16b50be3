"""Traces of single requests: sampling by settings, and the activities of a sampled request.

The settings, the sampling and the files are Triton's (``tracer.cc``), and so is the use of the monotonic clock. In mode
opentelemetry a complete trace becomes spans in place of records in a file, and a client's own trace is continued:
``traceparent`` says whether it is recorded, which settles whether this part of it is.
"""

import itertools
import logging
import time
from collections.abc import Mapping
from typing import Any, Protocol

from modserve.core.configuration.trace_settings import SpanSettings, TraceChange, TraceLevel, TraceSettings
from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.requests import trace_context
from modserve.core.requests.inflight import RequestTrace
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.requests.trace_context import TraceHeaders
from modserve.core.servable import Servable
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId

from .path_log import PathLog
from .span_figures import SpanFigures
from .span_ids import Batch, Batches, SpanIds
from .span_tree import Failure, failure_of
from .trace_file import Output, TraceFiles, Writer
from .trace_records import Record, render
from .trace_sampling import Setting, changed, problem

_log = logging.getLogger(__name__)

MOST_OF_ONE = 32 * 1024 * 1024
"""Bytes of tensors that one trace keeps, and as many again of stamps; the rest is left out."""

_STAMP_SIZE = 256
"""Roughly the bytes of memory that a stamp takes."""


class SpanWriter(Protocol):
    """Takes complete traces in place of files, on the writer's thread: `span_export.Spans`."""

    @property
    def figures(self) -> SpanFigures: ...
    def write(self, trace: "Trace") -> None: ...
    def write_batch(self, batch: Batch) -> None: ...
    def left_out(self, count: int) -> None: ...
    def close(self) -> None: ...


def _spans(settings: SpanSettings, name: str) -> SpanWriter:
    from .span_export import Spans  # which only servers need that have it

    return Spans(settings, name)


class Tracer:
    """The trace settings of a server, global and by model, and their sampling. For the event loop's thread.

    `on` is true while a request may be sampled; otherwise `sample` need not be called. A model's settings are kept by
    its name, whether it is loaded or not. Call `close` at the end. `name` is that of the server.
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
        self.ids = itertools.count(1)
        self._files = TraceFiles(self._start.file)
        self._writer = writer or self._own_writer(self._start.spans)
        self._settings = {"": self._setting(self._start, {})}
        """The settings of models with their own by name, and those of all others."""
        self._closed = False
        self.verbose = False
        """The path of each request goes to the log."""
        self.on = False
        self._look()
        if reason := problem(self._start):
            _log.warning("nothing is traced: %s; say '--trace-config triton,file=PATH' and a rate above 0", reason)

    def __repr__(self) -> str:
        models = [name for name in self._settings if name]
        return f"Tracer({'on' if self.on else 'off'}, {self.settings()}, own settings of {models})"

    @staticmethod
    def _own_writer(spans: SpanSettings | None) -> Writer:
        """As many traces wait to be made into spans as spans to be sent."""
        return Writer() if spans is None else Writer(spans.bsp_max_queue_size, "")

    @property
    def mode(self) -> str:
        """As the protocol names it. It never changes."""
        return self._start.mode

    @property
    def propagates(self) -> bool:
        """Whether it matters which span of a client's a request belongs to."""
        return self._start.spans is not None

    @property
    def figures(self) -> SpanFigures | None:
        """How many spans have been sent, and lost; None where traces are no spans."""
        return None if self._spans is None else self._spans.figures

    def settings(self, model: str = "") -> TraceSettings:
        """The settings of a model, or of all models without their own; `count` is what remains of it."""
        return self._of(model).current

    def change(self, change: TraceChange, model: str = "") -> None:
        """Changes a model's settings or, for an empty name, the global ones: a model's own settings override them.

        Applies to all later requests; traces under way keep their settings. Counting starts again.

        Raises INVALID_ARG, and changes nothing, for settings that would trace but cannot.
        """
        if not change:
            return
        behind = self._settings[""].current if model else self._start
        values_of = {model: changed(behind, self._settings.get(model), change)}
        if not model:
            others = {name: setting for name, setting in self._settings.items() if name}
            values_of |= {name: changed(values_of[""][0], setting, {}) for name, setting in others.items()}
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

    def sample(self, servable: Servable, headers: TraceHeaders | None = None) -> "Trace | None":
        """A trace of this request if it is sampled, or the client's `headers` say so. The caller ends it."""
        setting = self._of(servable.id.name)
        parent = trace_context.from_headers(headers) if self.propagates else None
        if not setting.hit(parent):
            return None
        if not setting.remaining:
            self._look()
        spans = SpanIds.of_call(parent) if self.propagates else None
        return Trace(self, setting, servable.id, next(self.ids), None, spans)

    def continued(self, servable: Servable, context: str) -> "Trace":
        """The trace of a request whose call is traced elsewhere; it ends with the request's final outcome."""
        setting, parent = self._of(servable.id.name), trace_context.from_json(context)
        assert parent is not None, "another worker has made it: this is a bug"
        setting.open += 1
        return Trace(self, setting, servable.id, next(self.ids), None, SpanIds.elsewhere(parent))

    def follow(self, servable: Servable, request_id: str, trace: RequestTrace | None) -> PathLog:
        """While `verbose`: the path of a request, which has this trace if it is sampled, goes to the log."""
        return PathLog(request_id, servable.id, trace)

    def change_verbosity(self, level: int) -> None:
        """Above 0, requests are to be followed."""
        self.verbose = level > 0
        self._look()

    def close(self) -> None:
        """Writes all traces and ends. Blocks. For when nothing is traced any more; may be called again."""
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

    def ended(self, setting: Setting, trace: "Trace") -> None:
        """A trace of `setting` is complete."""
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

    def _of(self, model: str) -> Setting:
        return self._settings.get(model) or self._settings[""]

    def _setting(self, settings: TraceSettings, own: Mapping[str, Any]) -> Setting:
        limited = settings.count > 0 and settings.rate == 1
        indexed = settings.log_frequency > 0 or limited
        return Setting(settings, own, Output(self._files, indexed=indexed, keep=settings.log_frequency > 0))

    def _retire(self, setting: Setting) -> None:
        setting.retired = True
        if not setting.open:
            self._writer.put(setting.output.end)

    def _look(self) -> None:
        self.on = not self._closed and (self.verbose or any(setting.on for setting in self._settings.values()))


class Trace:
    """Implements `core.requests.inflight.RequestTrace`: the records of one request, and those of its children.

    `spans` are the ids of its spans, None where it goes to a file.

    The front end adds its own stamps, and calls `end` when the response is sent or nobody waits for it any more. The
    children, requests that a model made for this one, are written with it.
    """

    def __init__(
        self,
        tracer: Tracer,
        setting: Setting,
        model: ModelId,
        trace_id: int,
        parent: "Trace | None" = None,
        spans: SpanIds | None = None,
    ) -> None:
        self._tracer = tracer
        self._setting = setting
        self._parent = parent
        self._ended = False
        self.model = model
        self.children: list[Trace] = []
        self.records: list[Record] = []
        self.timing: ExecutionTiming | None = None
        self.failure: Failure | None = None
        self.refusal: Failure | None = None
        self.request_id = ""
        self.spans = spans
        self.start_ns = time.monotonic_ns()
        self.end_ns = 0
        self.id = trace_id
        self.size = 0

    @property
    def context(self) -> str:
        return "" if self.spans is None else self.spans.own.as_json()

    @property
    def parent_id(self) -> int:
        return 0 if self._parent is None else self._parent.id

    @property
    def trace_id(self) -> str:
        return str(self.id) if self.spans is None else f"{self.spans.own.trace_id:032x}"

    def stamp(self, activity: str, ns: int = 0) -> None:
        if TraceLevel.TIMESTAMPS not in self._setting.level or self._ended:
            return
        if self.size <= 2 * MOST_OF_ONE:
            self.size += _STAMP_SIZE
            self.records.append(Record(ns or time.monotonic_ns(), activity))

    def submitted(self, inputs: Mapping[str, Tensor], start_ns: int, queue_start_ns: int) -> None:
        self.stamp("REQUEST_START", start_ns)
        self.stamp("QUEUE_START", queue_start_ns)
        self._tensors("TENSOR_QUEUE_INPUT", inputs, queue_start_ns)

    def batched(self, timing: ExecutionTiming) -> None:
        if self.spans is not None and not self._ended:
            self._tracer.batches.join(self.spans, self.model, timing)

    def settled(self, outcome: Outcome, final: bool, timing: ExecutionTiming | None) -> None:
        now_ns = time.monotonic_ns()
        if isinstance(outcome, InferenceResponse):
            self.model = ModelId(self.model.name, outcome.model_version)  # one of those that a routing chooses from
            self._tensors("TENSOR_BACKEND_OUTPUT", outcome.outputs, now_ns)
        elif isinstance(outcome, ModserveError):
            self.failure = failure_of(outcome.code, outcome.message)
        inner = self._parent is not None or self._is_continued
        # As in Triton it belongs to the client's call: not to requests of models, nor to a call that nobody waits for.
        if outcome is not None and not inner and not _is_cancellation(outcome):
            self.stamp("INFER_RESPONSE_COMPLETE", now_ns)
        if final:
            self.stamp("REQUEST_END", now_ns)
            self.timing = timing
            if inner:  # nobody else ends the trace of such a request
                self.end()

    def child(self, model: ModelId) -> "Trace":
        spans = None if self.spans is None else self.spans.child()
        child = Trace(self._tracer, self._setting, model, next(self._tracer.ids), self, spans)
        if not self._ended:
            self.children.append(child)
        return child

    def link(self, other: RequestTrace) -> None:
        if self.spans is not None and isinstance(other, Trace) and other.spans is not None:
            self.spans.links.append(other.spans.own)

    def failed(self, error: ModserveError) -> None:
        self.refusal = failure_of(error.code, error.message)

    def end(self) -> None:
        if not self._ended:
            for child in self.children:
                child.end()
            self._execution()
            self._ended = True
            self.end_ns = time.monotonic_ns()
            if self.spans is not None:
                self._tracer.batches.leave(self.spans)
            if self._parent is None:
                self._tracer.ended(self._setting, self)

    def render(self) -> bytes:
        """Its records and those of its children. For any thread, once it has ended."""
        own = render(self.id, self.model, self.request_id, self.records, self.parent_id)
        return b",".join([own, *(child.render() for child in self.children)])

    @property
    def whole_size(self) -> int:
        """About what it keeps of memory, with its children."""
        return self.size + sum(child.whole_size for child in self.children)

    @property
    def span_count(self) -> int:
        """About as many spans as it makes, with its children: of the call, the model's request and its execution."""
        return 3 + sum(child.span_count for child in self.children)

    @property
    def _is_continued(self) -> bool:
        """Whether the call has its span in another process."""
        return self.spans is not None and self.spans.root is None

    def _tensors(self, activity: str, tensors: Mapping[str, Tensor], ns: int) -> None:
        if TraceLevel.TENSORS not in self._setting.level or self._ended:
            return
        for name, tensor in tensors.items():
            raw = tensor.raw
            size = memoryview(raw).nbytes
            if self.size + size > MOST_OF_ONE:
                _log.warning("trace %d: tensor '%s' of %d bytes is left out, it is too much", self.id, name, size)
                continue
            self.size += size
            # A copy: the memory may be the client's, or the engine's to use again.
            copy = Tensor.from_raw(tensor.datatype, tensor.shape, bytes(raw))
            self.records.append(Record(ns, activity, name, copy))

    def _execution(self) -> None:
        """Stamps of the execution as far as it has come: it may still be under way."""
        timing = self.timing
        executed = self.spans is not None and self.spans.batch is not None
        if timing is None or (self.children and not executed):  # the executions are the children's
            return
        for activity, ns in (
            ("COMPUTE_START", timing.compute_start_ns),
            ("COMPUTE_INPUT_END", timing.compute_input_end_ns),
            ("COMPUTE_OUTPUT_START", timing.compute_output_start_ns),
            ("COMPUTE_END", timing.compute_end_ns),
        ):
            if ns:
                self.stamp(activity, ns)


def _is_cancellation(outcome: Outcome) -> bool:
    return isinstance(outcome, ModserveError) and outcome.code is Code.CANCELLED
