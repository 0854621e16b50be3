"""A sequence scheduler between a clock turned by hand and a runner whose batches are finished by hand."""

from collections.abc import Mapping
from typing import Any

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.configuration.sequence_config import Control, ControlKind, SequenceBatching
from modserve.core.errors import ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import InferenceResponse
from modserve.core.tenants import Tenant
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.scheduling.sequence import SequenceScheduler
from modserve.testing import FakeClock, PuppetRunner, RecordingSink, config, request, tensor
from modserve.testing.builders import RecordedInflight

MS = 1_000_000
IDLE = 1_000 * MS
CONTROLS = (
    Control("START", ControlKind.START, dtypes.INT32, (0, 1)),
    Control("END", ControlKind.END, dtypes.INT32, (0, 1)),
    Control("READY", ControlKind.READY, dtypes.INT32, (0, 1)),
    Control("CORRID", ControlKind.CORRID, dtypes.UINT64),
)
RESPONSE = InferenceResponse("model", 1, {})


class Bench:
    def __init__(
        self,
        *,
        slots: int = 1,
        max_batch_size: int = 2,
        files: Mapping[str, Tensor] | None = None,
        model: ModelConfig | None = None,
        **more: Any,
    ) -> None:
        more.setdefault("controls", CONTROLS)
        self.clock = FakeClock()
        self.runner = PuppetRunner(slots)
        self.dropped: list[Inflight] = []
        self.config = config(max_batch_size=max_batch_size, sequence_batching=SequenceBatching(**more))
        self.scheduler = SequenceScheduler(self.config, self.runner, self.clock, self._drop, files or {})
        self.runner.serve(self.scheduler)

    def _drop(self, entry: Inflight, error: ModserveError) -> None:
        self.dropped.append(entry)
        entry.settle(error)

    def enqueue(
        self,
        id: Any = 1,
        flags: str = "",
        *,
        deadline: int = 0,
        limit: int = 0,
        shape_key: object = None,
        value: int = 1,
        batch_size: int = 1,
        tenant: Tenant | None = None,
    ) -> Inflight:
        """`flags`: s for the start, e for the end; `limit` is of the queue. Nothing that becomes due is run yet."""
        parameters: dict[str, Any] = {"sequence_id": id} if id is not None else {}
        parameters |= {name: True for flag, name in (("s", "sequence_start"), ("e", "sequence_end")) if flag in flags}
        shape = (batch_size, 4) if self.config.batching else (4,)
        deadline_ns = self.clock.now_ns() + deadline if deadline else 0
        asked = request(
            {"INPUT0": tensor(dtypes.INT32, shape, value)},
            parameters=parameters,
            deadline_ns=deadline_ns,
            timeout_ns=limit,
            tenant=tenant,
        )
        rows = batch_size if self.config.batching else 0
        entry = RecordedInflight(
            asked, RecordingSink(), asked.inputs, ("OUTPUT0",), rows, shape_key, self.clock.now_ns(), deadline_ns
        )
        entry.queue_limit_ns = self.clock.now_ns() + limit if limit else 0
        self.scheduler.enqueue(entry)
        return entry

    def submit(self, *args: Any, **more: Any) -> Inflight:
        """In a turn of its own."""
        entry = self.enqueue(*args, **more)
        self.clock.run()
        return entry

    def finish(self, slot: int | None = None) -> list[Inflight]:
        """End a batch with success, and let follow what follows."""
        batch = self.runner.finish(slot)
        for entry in batch:
            entry.settle(RESPONSE)
        self.clock.run()
        return batch

    def finish_all(self) -> None:
        while self.runner.running:
            self.finish()

    @property
    def running(self) -> list[Inflight]:
        """What runs, whatever the slot."""
        return [entry for batch in self.runner.running.values() for entry in batch]

    def told(self, name: str, batch: int = -1) -> list[Any]:
        """What a control or state input has in the rows of a batch, by default the last."""
        return [entry.inputs[name].array.ravel().tolist()[0] for entry in self.runner.rows[batch]]


def sink(entry: Inflight) -> RecordingSink:
    assert isinstance(entry.sink, RecordingSink)
    return entry.sink


def failure(entry: Inflight) -> ModserveError:
    """The one failure of a request."""
    assert sink(entry).responses == []
    [error] = sink(entry).errors
    return error
