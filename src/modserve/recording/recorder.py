"""Samples requests, and hands them to a thread with their outcomes when these are complete.

Nothing here waits. What a sampled request and its outcomes hold of memory is bounded, also while they wait to be
written: what is too much is dropped and counted, and the requests go on. A sequence is sampled as a whole, by its id,
so that several workers decide alike without a word between them.

    sampled -> submit -> settle ... -> the writer's thread

A thread that runs work in order, and holds up neither a caller nor the end of the process.
"""

import logging
import queue
import random
import re
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from modserve.core.configuration.record_settings import RecordSettings
from modserve.core.errors import ModserveError, from_exception
from modserve.core.recording import RecordFigures
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.core.requests.response import NOBODY, InferenceResponse, Outcome, ResponseSink, hand_over
from modserve.core.runtime.failures import count_failure
from modserve.core.runtime.long_buffers import copy_of
from modserve.core.secret_names import HEADERS
from modserve.core.servable import Servable, Submitter
from modserve.core.tensors.tensor import Buffer, Tensor

from .record import LongLineError, RecordedOutcome, RecordedTensor, RecordFolder, RequestRecord, encode


class RecordWriter:
    """Starts with the first piece of work. `put` is for one thread."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, work: Callable[[], None]) -> bool:
        """False, and it never runs, after `close`."""
        if self._closed:
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="record", daemon=True)
            self._thread.start()
        self._work.put(work)
        return True

    def close(self, seconds: float) -> bool:
        """Run all work that waits and end; False if that takes more than `seconds`. May be called again."""
        if not self._closed:
            self._closed = True
            self._work.put(None)
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:
                count_failure("record", error)


_log = logging.getLogger(__name__)

MOST_OF_ONE: Final = 32 * 1024 * 1024
"""Bytes of tensors that one record has."""
MOST_HELD: Final = 4 * MOST_OF_ONE
"""Bytes of tensors that all records hold until they are written."""
_OVERHEAD: Final = 1024
"""Bytes that a record counts besides its tensors."""
_MOST_NAMES: Final = 1000
DROPPED: Final = ("memory", "too_large", "disk", "failure")
"""Reasons for dropping sampled requests."""


class ModelPlan:
    """Recording plan of one model: `rate` of its requests, without the contents of the `hides` tensors."""

    __slots__ = ("_hidden", "_patterns", "numbers", "rate")

    def __init__(self, model: str, settings: RecordSettings) -> None:
        matches = [rate for pattern, rate in settings.models if fnmatchcase(model, pattern)]
        own = (matches[-1] if matches else 0.0) if settings.models else None
        self.rate = settings.rate if own is None else own
        self.numbers = 0
        self._patterns = [tensor for pattern, tensor in settings.redacted if fnmatchcase(model, pattern)]
        self._hidden: dict[str, bool] = {}

    def hides(self, tensor: str) -> bool:
        if not self._patterns:
            return False
        hidden = self._hidden.get(tensor)
        if hidden is None:
            hidden = any(fnmatchcase(tensor, pattern) for pattern in self._patterns)
            if len(self._hidden) < _MOST_NAMES:  # clients choose them
                self._hidden[tensor] = hidden
        return hidden

    def size(self, tensors: Mapping[str, Tensor]) -> int:
        """Bytes of what a record has of the tensors."""
        return sum(each.size for name, each in tensors.items() if not self.hides(name))

    def copies(self, tensors: Mapping[str, Tensor]) -> dict[str, RecordedTensor]:
        return {
            name: RecordedTensor(each.datatype, each.shape, None if self.hides(name) else _copy(each))
            for name, each in tensors.items()
        }


class Recorder:
    """Implements `core.recording.RequestRecorder`. For the event loop's thread; `open` and `close` block.

    `headers` are the patterns of headers that become parameters of requests: such parameters are left out.
    """

    def __init__(
        self,
        settings: RecordSettings,
        folder: RecordFolder,
        headers: Sequence[re.Pattern[str]] = (),
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._headers = headers
        self._draw = draw
        self._plans: dict[str, ModelPlan] = {}
        self._writer = RecordWriter()
        self._lock = threading.Lock()
        self._held = 0
        self._recorded = 0
        self._dropped: Counter[str] = Counter()
        self._failing = False
        self._epoch_ns = time.time_ns() - time.monotonic_ns()
        """Turns the monotonic clock into the time of day, which may be set at any time."""

    def __repr__(self) -> str:
        return f"Recorder({self._settings}, {self.figures})"

    def open(self) -> None:
        """Raises OSError if the folder cannot be written."""
        self._folder.open()
        _log.info("requests and their responses are recorded in %s", self._settings.folder)

    def close(self, seconds: float = 5.0) -> None:
        """Write the waiting records, within a number of seconds, and end. May be called again."""
        if not self._writer.close(seconds):
            _log.error("some recorded requests are lost: they could not be written within %g s", seconds)

    @property
    def figures(self) -> RecordFigures:
        with self._lock:
            return RecordFigures(self._recorded, {each: self._dropped[each] for each in DROPPED}, self._folder.size)

    @property
    def held(self) -> int:
        """Bytes of what is not yet written."""
        return self._held

    def sample(self, servable: Servable, request: InferenceRequest) -> Submitter:
        name = servable.id.name
        plan = self._plans.get(name)
        if plan is None:
            plan = self._plans[name] = ModelPlan(name, self._settings)
        rate = plan.rate
        if rate < 1.0 and not (rate > 0.0 and self._hits(rate, name, request)):
            return servable
        plan.numbers += 1
        return RecordedSubmission(self, plan, plan.numbers, servable)

    def _hits(self, rate: float, model: str, request: InferenceRequest) -> bool:
        id = request.parameters.get("sequence_id")
        if not id:
            return self._draw() < rate
        tenant = "" if request.tenant is None else request.tenant.name
        return zlib.crc32(f"{model}\0{tenant}\0{id}".encode("utf-8", "surrogatepass")) < rate * 2**32

    def visible(self, parameters: Mapping[str, ParameterValue]) -> dict[str, ParameterValue]:
        """Return the parameters that cannot have been headers."""
        return {name: value for name, value in parameters.items() if not self._may_be_header(name)}

    def _may_be_header(self, name: str) -> bool:
        return name.lower() in HEADERS or any(pattern.search(name) for pattern in self._headers)

    def reserve(self, size: int) -> bool:
        """Hold memory until `release`; False if there is no room."""
        with self._lock:
            if fits := self._held + size <= MOST_HELD:
                self._held += size
        return fits

    def release(self, size: int) -> None:
        with self._lock:
            self._held -= size

    def drop(self, reason: str) -> None:
        with self._lock:
            self._dropped[reason] += 1

    def time_us(self, ns: int) -> int:
        """Return the time of day at `ns` of the monotonic clock, in microseconds since the epoch."""
        return (self._epoch_ns + ns) // 1000

    def write(self, record: RequestRecord, size: int) -> None:
        """The record is complete; its `size` is released when it is written."""
        if not self._writer.put(lambda: self._write(record, size)):
            self.release(size)
            self.drop("failure")

    def _write(self, record: RequestRecord, size: int) -> None:
        """Write a record, on the writer's thread."""
        try:
            self._folder.add(record.model, record.at_us, list(encode(record)))
        except LongLineError:
            self.drop("too_large")
        except OSError as error:
            self.drop("disk")
            if not self._failing:  # a full disk is logged once, not with every request
                self._failing = True
                _log.error("requests cannot be recorded, and are left out: %s", error)
        except Exception:
            self.drop("failure")
            _log.exception("a request of model '%s' cannot be recorded", record.model)
        else:
            self._failing = False
            with self._lock:
                self._recorded += 1
        finally:
            self.release(size)


class RecordedSubmission:
    """Sampled request on its way to `servable` and back: implements `Submitter` and `ResponseSink`."""

    __slots__ = ("_number", "_plan", "_record", "_recorder", "_servable", "_sink", "_size", "_start_ns")

    def __init__(self, recorder: Recorder, plan: ModelPlan, number: int, servable: Servable) -> None:
        self._recorder = recorder
        self._plan = plan
        self._number = number
        self._servable: Servable | None = servable
        self._record: RequestRecord | None = None
        self._sink: ResponseSink = NOBODY
        self._size = 0
        self._start_ns = 0

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        servable, self._servable = self._servable, None
        assert servable is not None, "submitted twice: this is a bug"
        self._begin(servable, request, now_ns)
        if self._record is None:
            return servable.submit(request, sink, now_ns)
        self._sink = sink
        try:
            return servable.submit(request, self, now_ns)
        except Exception as error:
            self._sink = NOBODY
            self._keep(from_exception(error, "submitting a request"), True)
            raise

    def settle(self, outcome: Outcome, final: bool) -> None:
        sink = self._sink
        if final:
            self._sink = NOBODY
        # Before the client hears of it, and may write to shared memory that a tensor is in.
        self._keep(outcome, final)
        hand_over(sink, outcome, final)

    def _begin(self, servable: Servable, request: InferenceRequest, now_ns: int) -> None:
        self._start_ns = now_ns
        recorder, size = self._recorder, 0
        try:
            size = _OVERHEAD + self._plan.size(request.inputs)
            if size > MOST_OF_ONE:
                recorder.drop("too_large")
            elif not recorder.reserve(size):
                recorder.drop("memory")
            else:
                self._size = size
                self._record = self._make_record(servable, request, now_ns)
        except Exception:
            recorder.release(self._size)
            recorder.drop("failure")
            _log.exception("a request to model '%s' cannot be recorded", servable.id.name)

    def _make_record(self, servable: Servable, request: InferenceRequest, now_ns: int) -> RequestRecord:
        recorder = self._recorder
        parameters = recorder.visible(request.parameters)
        return RequestRecord(
            servable.id.name,
            self._number,
            recorder.time_us(now_ns),
            request.version,
            self._plan.copies(request.inputs),
            request.outputs,
            request.id,
            "" if request.tenant is None else request.tenant.name,
            parameters,
            tuple(name for name in request.parameters if name not in parameters),
            servable.config.decoupled,
        )

    def _keep(self, outcome: Outcome, final: bool) -> None:
        """Record an outcome. Never raises: the request goes on, even if its record fails."""
        record = self._record
        if record is None:
            return
        try:
            self._add(record, outcome)
        except Exception:
            self._record = None
            self._recorder.release(self._size)
            self._recorder.drop("failure")
            _log.exception("a response of model '%s' cannot be recorded", record.model)
            return
        if final:
            self._record = None
            self._recorder.write(record, self._size)

    def _add(self, record: RequestRecord, outcome: Outcome) -> None:
        entry = RecordedOutcome((time.monotonic_ns() - self._start_ns) / 1000)
        if isinstance(outcome, ModserveError):
            entry.code, entry.message = outcome.code, outcome.message
        elif outcome is not None and not self._add_outputs(record, entry, outcome):
            return
        record.outcomes.append(entry)

    def _add_outputs(self, record: RequestRecord, entry: RecordedOutcome, response: InferenceResponse) -> bool:
        """False if there is no room for it: the record goes on without it."""
        plan = self._plan
        size = _OVERHEAD + plan.size(response.outputs)
        if record.cut or self._size + size > MOST_OF_ONE or not self._recorder.reserve(size):
            record.cut = True
            return False
        self._size += size
        entry.version, entry.parameters = response.model_version, response.parameters
        entry.outputs = plan.copies(response.outputs)
        return True


def _copy(tensor: Tensor) -> Tensor:
    """Return the tensor in memory that no other code changes, not even a client that shares it."""
    if tensor.device is not None:
        return tensor
    raw = tensor.received
    if raw is None:  # its raw form is made on the writer's thread
        return Tensor(tensor.datatype, tensor.shape, None, tensor.array.copy())
    return Tensor.from_raw(tensor.datatype, tensor.shape, raw if _is_constant(raw) else copy_of(raw))


def _is_constant(raw: Buffer) -> bool:
    return type(raw) is bytes or (type(raw) is memoryview and type(raw.obj) is bytes)
