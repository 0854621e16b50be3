"""Jobs (batches on an instance), and the common part of their execution on all kinds of instance."""

import time
from collections.abc import Callable, Sequence

from modserve.backends.api import Executor, FinalResponse, InstanceLostError, Values, reuses_outputs
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError, from_exception, internal
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import InferenceResponse
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.tensors.tensor import Array
from modserve.core.version import ModelId

from .batch import check_outputs, copy_outputs, merge, merge_output_names, on_devices, on_host, single, split
from .item_shapes import ItemShapes
from .memory import EngineMemory
from .padding import PaddedLayout
from .ragged import RaggedLayout
from .running import Deliver, RequestProgress, RunningRequest

_RETRIED_CODES = frozenset({Code.INVALID_ARG, Code.INTERNAL})
"""Failures of a batch that may be caused by single requests."""


def layout_of(config: ModelConfig) -> PaddedLayout | RaggedLayout | None:
    """Return the layout that replaces `batch.merge` and `batch.split`; None for plain rows."""
    if config.fills_up:
        return PaddedLayout(config)
    if config.batch_inputs or config.batch_outputs or any(spec.ragged for spec in config.inputs):
        return RaggedLayout(config)
    return None


class Job:
    """Batch on an instance.

    A finished job has an `error`, or `responses` in the order of `members`, or `running` for engines that respond to
    each request separately. `rows` are the members and the fillers that keep members in their rows. If set, `on_done`
    receives the finished job instead of the pool; it is for warm-ups, which do not count in statistics. `is_retry`: the
    only member runs a second time, after the engine refused a batch with it; `more` such jobs follow.
    """

    __slots__ = (
        "cpu_ns",
        "error",
        "expected_ns",
        "is_retry",
        "late",
        "members",
        "more",
        "on_done",
        "refused",
        "requests",
        "responses",
        "rows",
        "running",
        "timing",
    )

    def __init__(
        self,
        members: list[Inflight],
        close_reason: str = "",
        rows: list[Inflight] | None = None,
        on_done: "Callable[[Job], None] | None" = None,
    ) -> None:
        self.members = members
        self.is_retry = False
        self.more = False
        self.expected_ns = 0
        """Expected duration; known only if places may be prefetched."""
        self.cpu_ns = 0
        """CPU time on the instance's thread; 0 if not measured."""
        self.refused = False
        """True if the engine refused the batch but may accept its members one by one."""
        self.rows = members if rows is None else rows
        batch_size = 0
        for inflight in self.rows:
            batch_size += inflight.batch_size or 1
        self.timing = ExecutionTiming(batch_size, close_reason)
        self.running: list[RequestProgress] = []
        self.requests: list[RunningRequest] = []
        """The engine's side of `running`."""
        self.responses: list[InferenceResponse] = []
        self.late: list[Inflight] = []
        """Requests removed because they were past their deadline or queue limit when the execution began."""
        self.error: ModserveError | None = None
        self.on_done = on_done

    def drop_late(self, now_ns: int) -> None:
        """Move members that are too late from the batch to `late`. Not for jobs with fixed rows."""
        for inflight in self.members:
            if 0 < inflight.deadline_ns <= now_ns or 0 < inflight.queue_limit_ns <= now_ns:
                self.late.append(inflight)
        if self.late:
            gone = set(self.late)
            self.rows = self.members = [inflight for inflight in self.members if inflight not in gone]
            self.timing.batch_size -= sum([inflight.batch_size or 1 for inflight in self.late])

    def of_members(self, rows: list[InferenceResponse]) -> list[InferenceResponse]:
        """Select the members' responses from the responses to all rows."""
        members = set(self.members)
        return [response for row, response in zip(self.rows, rows, strict=True) if row in members]


class Work:
    """Preparation and completion of an instance's jobs, before and after the engine's execution. Any thread."""

    def __init__(self, model: ModelId, name: str, config: ModelConfig, engine: Executor) -> None:
        stateless = config.sequence_batching is None
        self._drops_late = stateless  # otherwise the model would miss part of a sequence
        self._one_by_one = stateless  # otherwise the failed execution may have changed states
        self.open: dict[RequestProgress, None] = {}
        self._model = model
        self._who = f"model '{model.name}', instance '{name}'"
        self._config = config
        self._layout = layout_of(config)
        watched = config.default_batch_size and config.batching and stateless and self._layout is None
        self._item_shapes = ItemShapes(config) if watched else None
        self._reuses_outputs = reuses_outputs(engine)
        self._responds_at_once = stateless and not config.decoupled and not self._reuses_outputs
        self._devices: frozenset[tuple[int, int]] = frozenset(map(tuple, getattr(engine, "devices", ())))
        allocate = getattr(engine, "allocate", None)
        self._memory = None if allocate is None else EngineMemory(allocate, model.name)

    def begin(self, job: Job) -> bool:
        """Begin the job; return whether it has any requests left to run."""
        timing = job.timing
        timing.compute_start_ns = time.monotonic_ns()
        if self._drops_late and job.rows is job.members:
            job.drop_late(timing.compute_start_ns)
        return bool(job.members) and not (job.is_retry and job.members[0].settled)

    def inputs(self, job: Job) -> tuple[dict[str, Array], tuple[str, ...]]:
        """Return the merged inputs of the execution and the names of the required outputs."""
        rows, config = job.rows, self._config
        if (
            self._devices
            and len(rows) == 1
            and self._layout is None
            and (there := on_devices(rows[0], self._devices)) is not None
        ):
            inputs = there
        elif self._layout is not None:
            inputs = self._layout.merge(rows, job.timing)
            if self._memory is not None:
                inputs = self._memory.move(inputs)
        elif self._memory is not None:
            inputs = self._memory.merge(rows)
        else:
            inputs = merge(rows)
        job.timing.compute_input_end_ns = time.monotonic_ns()
        names = merge_output_names(rows)
        if config.state_outputs:
            names = tuple(dict.fromkeys((*names, *config.state_outputs)))
        return inputs, names

    def outputs(self, job: Job, result: Values | None) -> None:
        """Split the engine's outputs into responses."""
        rows, config = job.rows, self._config
        outputs: Values
        if self._reuses_outputs or type(result) is not dict:
            outputs = (copy_outputs if self._reuses_outputs else check_outputs)(result, config)
        else:
            outputs = result
        if self._layout is None:
            responses = split(outputs, rows, config, self._model.version)
            if self._item_shapes is not None:
                self._item_shapes.check(responses, rows)
        else:
            responses = self._layout.split(outputs, rows, self._model.version)
        if config.state_outputs:
            arrays = on_host(outputs)
            for row, inflight in enumerate(rows):
                if inflight.states is not None:
                    inflight.states.keep(config.name, arrays, row if config.batching else None, len(rows))
        job.responses = responses if rows is job.members else job.of_members(responses)

    def requests(self, job: Job, deliver: Deliver) -> list[RunningRequest]:
        """Return the rows as requests for an engine that responds to each separately."""
        job.running = [RequestProgress(inflight, self.open) for inflight in job.rows]
        if job.rows is not job.members:
            members = set(job.members)
            for running in job.running:
                running.filler = running.ended = running.inflight not in members
        self.open.update({running: None for running in job.running if not running.filler})
        if job.on_done is not None:
            for running in job.running:
                running.filler = True
        version, reuses = self._model.version, self._reuses_outputs
        job.requests = [RunningRequest(running, self._config, version, deliver, reuses) for running in job.running]
        job.timing.compute_input_end_ns = time.monotonic_ns()
        return job.requests

    def respond(self, job: Job, finals: Sequence[FinalResponse]) -> None:
        """Accept the engine's final responses to all requests, as one result where possible."""
        if len(finals) != len(job.requests):
            raise internal(f"{self._who} returned {len(finals)} responses for {len(job.requests)} requests")
        if self._responds_at_once and job.rows is job.members and not [each for each in job.running if each.ended]:
            config, version = self._config, self._model.version
            try:
                job.responses = [
                    single(final.outputs, job.running[index].inflight, config, version, final.parameters)
                    for index, final in enumerate(finals)
                ]
            except ModserveError:
                job.responses = []  # some responses are invalid: requests get separate outcomes
            else:
                for request in job.requests:
                    request.end()
                for running in job.running:
                    self.open.pop(running, None)
                job.running = []
                return
        for request, final in zip(job.requests, finals, strict=True):
            request.respond(final.outputs, parameters=final.parameters, final=True, wait=False)

    def name_instance(self, error: InstanceLostError) -> InstanceLostError:
        """Prefix the error with the instance's name."""
        if error.message.startswith(self._who):
            return error
        return InstanceLostError(f"{self._who} was lost: {error.message}")

    def fail(self, job: Job, error: BaseException) -> None:
        """Fail the job's requests with an error raised by the engine."""
        job.error = (
            self.name_instance(error) if isinstance(error, InstanceLostError) else from_exception(error, self._who)
        )
        if error is not job.error:
            job.error.__cause__ = error
        # A failure before any outputs means that the engine refuses the batch or memory does not suffice for it.
        # Outputs that do not fit mean that a model with a default batch size does not batch by rows.
        job.refused = (
            (self._config.default_batch_size or not job.timing.compute_output_start_ns)
            and len(job.members) > 1
            and self._one_by_one
            and not job.running
            and job.error.code in _RETRIED_CODES
        )
