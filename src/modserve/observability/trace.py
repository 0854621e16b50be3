"""Traces of single requests: sampling by settings, and the activities of a sampled request.

The settings, the sampling and the files are Triton's (``tracer.cc``), and so is the use of the monotonic clock.
"""

import itertools
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from modserve.core.errors import invalid
from modserve.core.response import InferenceResponse, Outcome
from modserve.core.servable import Servable
from modserve.core.tensor import Tensor
from modserve.core.timing import ExecutionTiming
from modserve.core.trace_settings import TraceChange, TraceLevel, TraceSettings
from modserve.core.version import ModelId

from .trace_file import Output, TraceFiles, Writer
from .trace_records import Record, render

_log = logging.getLogger(__name__)

MOST_OF_ONE = 32 * 1024 * 1024
"""Bytes of tensors that one trace keeps, and as many again of stamps; the rest is left out."""

_STAMP_SIZE = 256
"""Roughly the bytes of memory that a stamp takes."""


class Tracer:
    """The trace settings of a server, global and by model, and their sampling. For the event loop's thread.

    `on` is true while a request may be sampled; otherwise `sample` need not be called. A model's settings are kept by
    its name, whether it is loaded or not. Call `close` at the end.
    """

    def __init__(self, settings: TraceSettings | None = None, writer: Writer | None = None) -> None:
        self._start = settings or TraceSettings()
        self.ids = itertools.count(1)
        self._files = TraceFiles(self._start.file)
        self._writer = writer or Writer()
        self._settings = {"": self._setting(self._start, {})}
        """The settings of models with their own by name, and those of all others."""
        self._closed = False
        self.on = False
        self._look()
        if reason := _problem(self._start):
            _log.warning("nothing is traced: %s; say '--trace-config triton,file=PATH' and a rate above 0", reason)

    def __repr__(self) -> str:
        models = [name for name in self._settings if name]
        return f"Tracer({'on' if self.on else 'off'}, {self.settings()}, own settings of {models})"

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
        changed = {model: _changed(behind, self._settings.get(model), change)}
        if not model:
            others = {name: setting for name, setting in self._settings.items() if name}
            changed |= {name: _changed(changed[""][0], setting, {}) for name, setting in others.items()}
        for name, (values, _) in changed.items():
            reason = _problem(values)
            if not reason and name == model and values.level and change.get("count") == 0:
                reason = "trace count must be non-zero, -1 does not limit it"
            if reason:
                raise invalid(f"Attempting to set invalid trace setting :{reason}")
        for name, (values, own) in changed.items():
            if name in self._settings:
                self._retire(self._settings.pop(name))
            if own or not name:
                self._settings[name] = self._setting(values, own)
        self._look()

    def sample(self, servable: Servable) -> "Trace | None":
        """A trace of this request if it is sampled. The caller ends it."""
        setting = self._of(servable.id.name)
        if not setting.hit():
            return None
        if not setting.remaining:
            self._look()
        return Trace(self, setting, servable.id, next(self.ids))

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

    def ended(self, setting: "_Setting", trace: "Trace") -> None:
        """A trace of `setting` is complete."""
        if self._closed:
            return
        output, finish = setting.output, setting.collect()

        def write() -> None:
            try:
                output.append(trace.render())
            finally:
                if finish:
                    output.finish()

        self._writer.put(write, trace.whole_size)
        if setting.retired and not setting.open:
            self._writer.put(output.end)

    def _of(self, model: str) -> "_Setting":
        return self._settings.get(model) or self._settings[""]

    def _setting(self, settings: TraceSettings, own: Mapping[str, Any]) -> "_Setting":
        limited = settings.count > 0 and settings.rate == 1
        indexed = settings.log_frequency > 0 or limited
        return _Setting(settings, own, Output(self._files, indexed=indexed, keep=settings.log_frequency > 0))

    def _retire(self, setting: "_Setting") -> None:
        setting.retired = True
        if not setting.open:
            self._writer.put(setting.output.end)

    def _look(self) -> None:
        self.on = not self._closed and any(setting.live for setting in self._settings.values())


class _Setting:
    """Settings in use: their counts, and the destination of their traces.

    `own` has the fields that are set at this level, by name; the others come from the level behind. A change makes a
    new object, so that traces under way keep theirs.
    """

    def __init__(self, settings: TraceSettings, own: Mapping[str, Any], output: Output) -> None:
        self._settings = settings
        self._samples = 0
        self._collected = 0
        self._in_file = 0
        self._able = bool(settings.level) and not _problem(settings)
        self.own = own
        self.output = output
        self.level = settings.level
        self.remaining = settings.count
        self.open = 0
        """Traces under way."""
        self.retired = False

    @property
    def current(self) -> TraceSettings:
        return replace(self._settings, count=self.remaining)

    @property
    def live(self) -> bool:
        return self._able and self.remaining != 0

    def hit(self) -> bool:
        """Counts a request. Whether it is sampled."""
        if not self.live:
            return False
        self._samples += 1
        if self._samples % self._settings.rate:
            return False
        if self.remaining > 0:
            self.remaining -= 1
        self.open += 1
        return True

    def collect(self) -> bool:
        """Counts a complete trace. Whether it completes its file."""
        self.open -= 1
        self._collected += 1
        self._in_file += 1
        frequency = self._settings.log_frequency
        complete = (self.remaining == 0 and self._collected == self._samples) or 0 < frequency <= self._in_file
        if complete:
            self._in_file = 0
        return complete


def _problem(settings: TraceSettings) -> str:
    """Why these settings cannot trace although they should; empty if they can."""
    if not settings.level:
        return ""
    if not settings.rate:
        return "sample rate must be non-zero"
    return "" if settings.file else "trace file name is not given"


def _changed(
    behind: TraceSettings, setting: _Setting | None, change: TraceChange
) -> tuple[TraceSettings, Mapping[str, Any]]:
    """The settings after a change, and their own fields; the other fields come from `behind`."""
    own: dict[str, Any] = {} if setting is None else {name: getattr(setting.current, name) for name in setting.own}
    for name, value in change.items():
        if value is None:
            own.pop(name, None)
        else:
            own[name] = value
    return replace(behind, **own), own


class Trace:
    """Implements `core.inflight.RequestTrace`: the records of one request, and those of its children.

    The front end adds its own stamps, and calls `end` when the response is sent or nobody waits for it any more. The
    children, requests that a model made for this one, are written with it.
    """

    def __init__(
        self, tracer: Tracer, setting: _Setting, model: ModelId, trace_id: int, parent: "Trace | None" = None
    ) -> None:
        self._tracer = tracer
        self._setting = setting
        self._parent = parent
        self._children: list[Trace] = []
        self._model = model
        self._records: list[Record] = []
        self._timing: ExecutionTiming | None = None
        self.request_id = ""
        self._ended = False
        self.id = trace_id
        self.size = 0

    def stamp(self, activity: str, ns: int = 0) -> None:
        if TraceLevel.TIMESTAMPS not in self._setting.level or self._ended:
            return
        if self.size <= 2 * MOST_OF_ONE:
            self.size += _STAMP_SIZE
            self._records.append(Record(ns or time.monotonic_ns(), activity))

    def submitted(self, inputs: Mapping[str, Tensor], start_ns: int, queue_start_ns: int) -> None:
        self.stamp("REQUEST_START", start_ns)
        self.stamp("QUEUE_START", queue_start_ns)
        self._tensors("TENSOR_QUEUE_INPUT", inputs, queue_start_ns)

    def settled(self, outcome: Outcome, final: bool, timing: ExecutionTiming | None) -> None:
        now_ns = time.monotonic_ns()
        if isinstance(outcome, InferenceResponse):
            self._model = ModelId(self._model.name, outcome.model_version)  # one of those that a routing chooses from
            self._tensors("TENSOR_BACKEND_OUTPUT", outcome.outputs, now_ns)
        if outcome is not None:
            self.stamp("INFER_RESPONSE_COMPLETE", now_ns)
        if final:
            self.stamp("REQUEST_END", now_ns)
            self._timing = timing
            if self._parent is not None:  # nobody else ends the trace of a request that a model made
                self.end()

    def child(self, model: ModelId) -> "Trace":
        child = Trace(self._tracer, self._setting, model, next(self._tracer.ids), self)
        if not self._ended:
            self._children.append(child)
        return child

    def end(self) -> None:
        if not self._ended:
            for child in self._children:
                child.end()
            self._execution()
            self._ended = True
            if self._parent is None:
                self._tracer.ended(self._setting, self)

    def render(self) -> bytes:
        """Its records and those of its children. For any thread, once it has ended."""
        parent_id = 0 if self._parent is None else self._parent.id
        own = render(self.id, self._model, self.request_id, self._records, parent_id)
        return b",".join([own, *(child.render() for child in self._children)])

    @property
    def whole_size(self) -> int:
        """About what it keeps of memory, with its children."""
        return self.size + sum(child.whole_size for child in self._children)

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
            self._records.append(Record(ns, activity, name, copy))

    def _execution(self) -> None:
        """Stamps of the execution as far as it has come: it may still be under way."""
        timing = self._timing
        if timing is None or self._children:  # the executions are the children's
            return
        for activity, ns in (
            ("COMPUTE_START", timing.compute_start_ns),
            ("COMPUTE_INPUT_END", timing.compute_input_end_ns),
            ("COMPUTE_OUTPUT_START", timing.compute_output_start_ns),
            ("COMPUTE_END", timing.compute_end_ns),
        ):
            if ns:
                self.stamp(activity, ns)
