"""What a model's configuration makes of it: a rule, a gate, and whether it has to be told of executions."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from modserve.core.configuration.merging import Padding, PaddingPolicy
from modserve.core.configuration.model_config import Admission, DynamicBatching, ModelConfig, QueuePolicy
from modserve.core.requests.timing import ExecutionTiming
from modserve.scheduling.adaptive.adaptation import Adaptation
from modserve.scheduling.batch_policy import BatchPolicy, adapts
from modserve.scheduling.batching import direct
from modserve.testing import config, inflight

MS = 1_000_000
LARGEST = DynamicBatching()
MEASURED = DynamicBatching(measured_sizes=True)


@pytest.mark.parametrize(
    ("given", "learns"),
    [
        (config(), False),
        (config(dynamic_batching=LARGEST), False),
        (config(dynamic_batching=replace(LARGEST, default_policy=QueuePolicy(default_timeout_ns=1))), False),
        (config(dynamic_batching=MEASURED, max_batch_size=1), False),
        (config(dynamic_batching=LARGEST, padding=Padding({}, policy=PaddingPolicy.ALWAYS)), False),
        (config(dynamic_batching=MEASURED), True),
        (config(dynamic_batching=LARGEST, padding=Padding({})), True),
        (config(dynamic_batching=replace(LARGEST, max_queue_delay_ns=1)), True),
        (config(dynamic_batching=DynamicBatching(default_policy=QueuePolicy(max_queue_size=1))), True),
        (config(dynamic_batching=DynamicBatching(level_policies={2: QueuePolicy(max_queue_size=1)})), True),
        (config(admission=Admission(by_deadline=True)), True),
    ],
    ids=[
        "direct",
        "dynamic",
        "time-out",
        "of one",
        "always padded",
        "by size",
        "by length",
        "delay",
        "queue size",
        "queue size of a level",
        "admission",
    ],
)
def test_only_models_that_predict_learn_from_short_executions(given: ModelConfig, learns: bool) -> None:
    adaptation, member = Adaptation(given) if adapts(given) else BatchPolicy(given), inflight()
    assert adaptation.expect([member]) == 0
    for ns in (MS // 2, 10 * MS):
        timing = ExecutionTiming(1, "")
        timing.compute_start_ns, timing.compute_end_ns = 1, 1 + ns
        adaptation.observe(timing, [member])
        assert (adaptation.expect([member]) > 0) == (learns or ns > MS)


def test_models_without_a_batcher_run_each_request_alone() -> None:
    assert not adapts(config())
    policy = BatchPolicy(config())
    assert (policy.rule, policy.bounds, policy.choice) == (direct, DynamicBatching(), None)


def test_the_gate_predicts_by_what_was_observed() -> None:
    class Slots:
        most_places = 1

        def free_places(self) -> int:
            return 0

        def remaining_ns(self, now_ns: int, run_ns: Callable[[int], int]) -> list[int]:
            return [run_ns(1)]

    adaptation = BatchPolicy(config(dynamic_batching=DynamicBatching(), admission=Admission(by_deadline=True)))
    gate = adaptation.gate(Slots())
    timing = ExecutionTiming(1, "single")
    timing.compute_end_ns = 7 * MS
    adaptation.observe(timing, [])
    error = gate.full(inflight(), 0, 0, 0)
    assert error.retry_after_ns == 7 * MS
