"""Ensembles over models that answer when the test says so."""

import gc
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from modserve.core.configuration.ensemble_config import Condition, EnsembleConfig, Step
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import Code, ModserveError, OverloadedError, internal, invalid, not_found, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.normalize import Signature
from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.core.requests.response import InferenceResponse, ResponseSink
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId
from modserve.models.serving.ensemble import EnsembleModel
from modserve.scheduling.ensemble import EnsembleScheduler
from modserve.testing import FakeClock, RecordingSink, tensor
from modserve.testing import config as plain


def spec(name: str, optional: bool = False) -> TensorSpec:
    return TensorSpec(name, dtypes.INT32, (1,), optional=optional)


def model(name: str, inputs: str = "x", outputs: str = "y", optional: str = "", **more: Any) -> ModelConfig:
    return plain(
        name,
        inputs=(*map(spec, inputs.split()), *(spec(each, optional=True) for each in optional.split())),
        outputs=tuple(map(spec, outputs.split())),
        max_batch_size=0,
        **more,
    )


class Puppet:
    """A model whose requests wait until the test answers them."""

    unready_reason: str | None = None

    def __init__(self, config: ModelConfig, version: int = 1) -> None:
        self.id = ModelId(config.name, version)
        self.config = config
        self.config_message = b""
        self.statistics = ModelStatistics()
        self.labels: Mapping[str, tuple[str, ...]] = {}
        self.asked: list[Inflight] = []
        self.refusal: ModserveError | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        """Called while it takes a request."""
        self.borrowed = 0
        self._signature = Signature(config)

    @property
    def servable(self) -> "Puppet":
        return self

    def release(self) -> None:
        self.borrowed -= 1

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        if self.refusal is not None:
            raise self.refusal
        self.meanwhile()
        inflight = self._signature.accept(request, sink, now_ns)
        self.asked.append(inflight)
        return inflight

    async def drain(self) -> None: ...

    async def close(self) -> None: ...

    def answer(self, index: int = 0, *, final: bool = True, waited_ns: int = 0, **outputs: int | Tensor) -> None:
        """Answer one of its requests, which had to wait, after an execution of 1 + 2 + 3 ns."""
        inflight = self.asked[index]
        inflight.timing = timing = ExecutionTiming()
        inflight.queue_start_ns = 1000 - waited_ns
        timing.compute_start_ns, timing.compute_input_end_ns = 1000, 1001
        timing.compute_output_start_ns, timing.compute_end_ns = 1003, 1006
        tensors = {name: value if isinstance(value, Tensor) else one(value) for name, value in outputs.items()}
        inflight.settle(InferenceResponse(self.config.name, 1, tensors), final)

    def inputs(self, index: int = 0) -> dict[str, int]:
        return {name: value.array.item() for name, value in self.asked[index].inputs.items()}


def one(value: int) -> Tensor:
    return tensor(dtypes.INT32, (1,), value)


@dataclass
class Bench:
    """An ensemble `e` of puppets; a step is a model, its inputs and its outputs, each by the ensemble's names."""

    config: ModelConfig
    puppets: dict[str, Puppet]
    clock: FakeClock = field(default_factory=FakeClock)
    missing: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.over: list[tuple[ExecutionTiming, ModserveError | None]] = []
        self.paces: list[tuple[int, int]] = []
        """Of responses of a decoupled ensemble: when the one before was given, and this one."""
        self.scheduler = EnsembleScheduler(
            self.config,
            3,
            self.borrow,
            self.clock,
            lambda inflight, timing, error: self.over.append((timing, error)),
            lambda inflight, since_ns, now_ns: self.paces.append((since_ns, now_ns)),
        )
        self._signature = Signature(self.config)

    def borrow(self, name: str, version: int | None) -> Puppet:
        if name in self.missing:
            raise not_found(f"Request for unknown model: '{name}' is not found")
        puppet = self.puppets[f"{name}:{version}" if version else name]
        puppet.borrowed += 1
        return puppet

    def __getitem__(self, name: str) -> Puppet:
        return self.puppets[name]

    def ask(self, outputs: tuple[str, ...] = (), start: bool = True, **more: Any) -> tuple[Inflight, RecordingSink]:
        given = {each.name: one(7) for each in self.config.inputs if not each.optional}
        sink = RecordingSink()
        inflight = self._signature.accept(InferenceRequest("e", given, outputs, **more), sink, self.clock.now_ns())
        self.scheduler.enqueue(inflight)
        assert not sink.settled, "told before enqueue returned"
        if start:
            self.clock.run()
        return inflight, sink

    @property
    def borrowed(self) -> int:
        return sum(puppet.borrowed for puppet in self.puppets.values())


def bench(
    steps: list[tuple[str, str, str]],
    outputs: str = "out",
    *,
    inputs: str = "in",
    optional: str = "",
    when: Mapping[int, Condition] | None = None,
    decoupled: str = "",
    optional_inputs: str = "",
    limit: int = 0,
) -> Bench:
    puppets = {}
    made = []
    for index, (name, needs, gives) in enumerate(steps):
        maps = [{each: each for each in names.split()} for names in (needs, gives)]
        made.append(Step(name, None, maps[0], maps[1], (when or {}).get(index)))
        required = " ".join(each for each in needs.split() if each not in optional_inputs.split())
        free = " ".join(each for each in needs.split() if each in optional_inputs.split())
        puppets[name] = Puppet(model(name, required, gives, free, decoupled=name in decoupled.split()))
    config = model(
        "e", inputs, outputs, optional, ensemble=EnsembleConfig(tuple(made), limit), decoupled=bool(decoupled)
    )
    return Bench(config, puppets)


CHAIN = [("a", "in", "mid"), ("b", "mid", "out")]
DIAMOND = [("a", "in", "left"), ("b", "in", "right"), ("c", "left right", "out")]


def values(sink: RecordingSink) -> list[dict[str, int]]:
    return [{name: value.array.item() for name, value in each.outputs.items()} for each in sink.responses]


def test_a_chain() -> None:
    made = bench(CHAIN)
    inflight, sink = made.ask(id="r")
    assert made["a"].inputs() == {"in": 7}
    assert not made["b"].asked
    assert made.borrowed == 2
    middle = one(8)
    made["a"].answer(mid=middle)
    assert made["b"].asked[0].inputs["mid"] is middle
    made["b"].answer(out=9)
    [response] = sink.responses
    assert (response.model_name, response.model_version, response.id, response.parameters) == ("e", 3, "r", {})
    assert values(sink) == [{"out": 9}]
    assert (sink.ended, inflight.settled, made.borrowed) == (1, True, 0)


def test_branches_run_side_by_side_and_meet() -> None:
    made = bench(DIAMOND)
    _, sink = made.ask()
    assert (len(made["a"].asked), len(made["b"].asked)) == (1, 1)
    made["b"].answer(right=2)
    assert not made["c"].asked
    made["a"].answer(left=1)
    assert made["c"].inputs() == {"left": 1, "right": 2}
    made["c"].answer(out=3)
    assert values(sink) == [{"out": 3}]


def test_time_is_counted_as_if_one_step_ran_after_the_other() -> None:
    made = bench(DIAMOND)
    inflight, _ = made.ask()
    made["a"].answer(left=1)
    made["b"].answer(right=2)
    made["c"].answer(out=3)
    [(timing, error)] = made.over
    start = timing.compute_start_ns
    assert inflight.timing is timing
    assert (start, error) == (made.clock.now_ns(), None)
    stamps = (timing.compute_input_end_ns, timing.compute_output_start_ns, timing.compute_end_ns)
    assert [stamp - start for stamp in stamps] == [3, 9, 18]


def test_what_is_not_asked_for_is_not_run() -> None:
    made = bench([*DIAMOND, ("d", "right", "aside")], "out aside")
    _, sink = made.ask(("aside",))
    assert not made["a"].asked
    assert made["a"].borrowed == 0
    made["b"].answer(right=2)
    assert not made["c"].asked
    made["d"].answer(aside=4)
    assert values(sink) == [{"aside": 4}]


def test_what_steps_are_told_of_the_request() -> None:
    made = bench(CHAIN)
    parameters: dict[str, ParameterValue] = {"priority": 2, "sequence_id": 5, "mine": "x"}
    now_ns = made.clock.now_ns()
    made.ask(id="r", parameters=parameters, deadline_ns=now_ns + 100, timeout_ns=60)
    made.clock.advance(70)
    made["a"].answer(mid=8, waited_ns=20)
    for name, timeout_ns in (("a", 60), ("b", 40)):
        request = made[name].asked[0].request
        assert (request.model_name, request.id, request.version) == (name, "r", None)
        assert request.parameters == parameters
        assert (request.deadline_ns, request.timeout_ns) == (now_ns + 100, timeout_ns)


# The time-out


def timeouts(puppet: Puppet) -> list[int]:
    return [inflight.request.timeout_ns for inflight in puppet.asked]


def test_of_branches_the_one_that_waited_longest_counts() -> None:
    made = bench([*DIAMOND, ("d", "out", "end")], "end")
    _, sink = made.ask(timeout_ns=100)
    made["a"].answer(left=1, waited_ns=30)
    made["b"].answer(right=1, waited_ns=10)
    made["c"].answer(out=1, waited_ns=5)
    assert [timeouts(made[name]) for name in "abcd"] == [[100], [100], [70], [65]]
    made["d"].answer(end=1, waited_ns=2)
    assert [response.waited_ns for response in sink.responses] == [37]


def test_a_branch_that_is_skipped_has_waited_as_long_as_what_it_waited_for() -> None:
    steps = [("a", "in", "kind"), ("b", "kind", "mid"), ("c", "in mid", "out")]
    made = bench(steps, when={1: Condition("kind", "==", 1)}, optional_inputs="mid")
    made.ask(timeout_ns=100)
    made["a"].answer(kind=2, waited_ns=30)
    assert timeouts(made["c"]) == [70]


def test_each_response_of_a_decoupled_step_carries_its_own_waiting() -> None:
    made = bench([*CHAIN[:1], ("b", "mid", "more"), ("c", "more", "out")], decoupled="a")
    _, sink = made.ask(timeout_ns=100)
    made["a"].answer(final=False, mid=1, waited_ns=10)
    made["a"].answer(final=True, mid=2, waited_ns=10)
    made["b"].answer(0, more=1, waited_ns=20)
    made["b"].answer(1, more=2, waited_ns=40)
    assert (timeouts(made["b"]), timeouts(made["c"])) == ([90, 90], [70, 50])
    for index in (0, 1):
        made["c"].answer(index, out=1)
    assert [response.waited_ns for response in sink.responses] == [30, 50]


def test_responses_of_a_decoupled_ensemble_are_timed() -> None:
    made = bench([("a", "in", "out")], decoupled="a")
    made.ask()
    made.clock.advance(5)
    made["a"].answer(final=False, out=1)
    made.clock.advance(7)
    made["a"].answer(final=False, out=2)
    first, second = made.paces
    assert first[0] == 0
    assert second == (first[1], first[1] + 7)
    plain = bench([("a", "in", "out")])
    plain.ask()
    plain["a"].answer(out=1)
    assert plain.paces == []


def test_what_the_steps_of_an_ensemble_inside_waited_counts() -> None:
    made = bench(CHAIN)
    made.ask(timeout_ns=100)
    made["a"].asked[0].settle(InferenceResponse("a", 1, {"mid": one(1)}, waited_ns=30))
    assert timeouts(made["b"]) == [70]


def test_a_step_after_one_that_could_wait_for_longer_may_not_wait() -> None:
    made = bench(CHAIN)
    made.ask(timeout_ns=100)
    made["a"].answer(mid=1, waited_ns=300)
    assert timeouts(made["b"]) == [1]


@pytest.mark.parametrize(("timeout_ns", "deadline_ns"), [(50, 0), (50, 60), (60, 50), (0, 50)])
def test_no_longer_than_allowed_for_the_limit(timeout_ns: int, deadline_ns: int) -> None:
    made = bench(CHAIN, limit=1)
    made.ask()
    _, sink = made.ask(timeout_ns=timeout_ns, deadline_ns=deadline_ns and made.clock.now_ns() + deadline_ns)
    made.clock.advance(49)
    assert not sink.errors
    made.clock.advance(1)
    assert [(error.code, error.message) for error in sink.errors] == [
        (Code.UNAVAILABLE, "in ensemble 'e', Request timeout expired")
    ]
    assert (len(made.scheduler.runs), made.clock.next_timer_ns()) == (1, None)


def test_waiting_for_the_limit_counts_and_executing_does_not() -> None:
    made = bench(CHAIN, limit=1)
    made.ask()
    _, sink = made.ask(timeout_ns=100)
    made.clock.advance(40)
    made["a"].answer(0, mid=1)
    assert timeouts(made["a"]) == [0, 60]
    made.clock.advance(500)
    made["a"].answer(1, mid=2, waited_ns=15)
    assert len(made["b"].asked) == 1
    made.clock.advance(44)
    assert not sink.errors
    made["b"].answer(0, out=1)
    assert timeouts(made["b"]) == [0, 1]
    made["b"].answer(1, out=2)
    assert values(sink) == [{"out": 2}]


def test_the_limit_has_no_time_for_one_that_has_waited_enough() -> None:
    made = bench(CHAIN, limit=1)
    made.ask()
    made["a"].answer(mid=1)
    _, sink = made.ask(timeout_ns=100)
    made["a"].answer(1, mid=2, waited_ns=100)
    made.clock.run()
    assert [error.message for error in sink.errors] == ["in ensemble 'e', Request timeout expired"]


def test_only_those_that_still_wait_for_the_limit_are_too_late() -> None:
    made = bench(CHAIN, decoupled="a", limit=1)
    _, sink = made.ask(timeout_ns=100)
    for value, waited_ns in ((1, 0), (2, 0), (3, 60)):
        made["a"].answer(final=value == 3, mid=value, waited_ns=waited_ns)
    made["b"].answer(0, out=1)
    made.clock.advance(39)
    made["b"].answer(1, out=2)
    made.clock.advance(500)
    made["b"].answer(2, out=3)
    assert (sink.errors, len(sink.responses), sink.ended) == ([], 3, 1)


def test_versions() -> None:
    config = model("e", "in", "out", ensemble=EnsembleConfig((Step("a", 4, {"x": "in"}, {"y": "out"}),)))
    made = Bench(config, {"a:4": Puppet(model("a"), 4)})
    made.ask()
    assert made["a:4"].asked[0].request.version == 4


def test_a_step_that_sets_sequence_parameters() -> None:
    made = bench([*CHAIN[:1], ("b", "mid", "more"), ("c", "more", "out")])
    _, sink = made.ask(parameters={"sequence_id": 5, "sequence_start": True, "mine": 1})
    inflight = made["a"].asked[0]
    inflight.settle(InferenceResponse("a", 1, {"mid": one(1)}, parameters={"sequence_end": True, "other": 2}))
    expected = {"sequence_id": 5, "sequence_start": False, "sequence_end": True}
    assert made["b"].asked[0].request.parameters == {**expected, "mine": 1}
    made["b"].answer(more=2)
    assert made["c"].asked[0].request.parameters == {**expected, "mine": 1}
    made["c"].answer(out=3)
    assert sink.responses[0].parameters == expected


# Optional tensors


def test_an_optional_input_that_is_not_given() -> None:
    made = bench([("a", "in extra", "out")], optional="extra", optional_inputs="extra")
    _, sink = made.ask()
    assert made["a"].inputs() == {"in": 7}
    made["a"].answer(out=1)
    assert values(sink) == [{"out": 1}]


def test_an_output_that_a_model_leaves_out() -> None:
    made = bench([("a", "in", "mid out"), ("b", "mid", "end")], "out end", optional_inputs="mid")
    _, sink = made.ask()
    made["a"].answer(out=1)
    assert made["b"].inputs() == {}
    made["b"].answer(end=2)
    assert values(sink) == [{"out": 1, "end": 2}]


# Conditions


@pytest.mark.parametrize(("kind", "expected"), [(1, "b"), (2, "c"), (3, "")])
def test_a_switch(kind: int, expected: str) -> None:
    when = {1: Condition("kind", "==", 1), 2: Condition("kind", "==", 2)}
    made = bench([("a", "in", "kind"), ("b", "in", "out"), ("c", "in", "out")], "out", when=when)
    _, sink = made.ask()
    made["a"].answer(kind=kind)
    assert [name for name in "bc" if made[name].asked] == list(expected)
    if expected:
        made[expected].answer(out=4)
    assert values(sink) == [{"out": 4} if expected else {}]
    assert sink.ended == 1


def test_what_only_a_skipped_step_feeds_is_skipped_too() -> None:
    steps = [("a", "in", "mid"), ("b", "mid", "far"), ("c", "in far", "out"), ("d", "in far", "end")]
    made = bench(steps, "far out end", when={0: Condition("in", "<", 0)}, optional_inputs="far")
    made["d"].config = model("d", "in far", "end")
    _, sink = made.ask()
    assert [name for name in "abcd" if made[name].asked] == ["c"]
    made["c"].answer(out=5)
    assert values(sink) == [{"out": 5}]


@pytest.mark.parametrize(("skipped", "asked"), [("mid", 0), ("", 1)], ids=["skipped", "absent"])
def test_what_an_ensemble_inside_has_skipped_is_skipped(skipped: str, asked: int) -> None:
    made = bench([("a", "in", "mid out"), ("b", "mid", "end")], "out end", optional_inputs="mid")
    _, sink = made.ask()
    response = InferenceResponse("a", 1, {"out": one(1)}, skipped=frozenset(skipped.split()))
    made["a"].asked[0].settle(response)
    assert len(made["b"].asked) == asked
    if asked:
        made["b"].answer()
    assert values(sink) == [{"out": 1}]
    assert sink.responses[0].skipped == ({"end"} if skipped else set())


def test_a_condition_that_can_not_be_decided() -> None:
    made = bench([("a", "in", "kind"), ("b", "in", "out")], when={1: Condition("kind", "==", 1)})
    _, sink = made.ask()
    made["a"].answer(kind=tensor(dtypes.INT32, (2,)))
    assert [error.message for error in sink.errors] == [
        "in ensemble 'e', condition 'kind == 1' needs a tensor of one element, 'kind' has shape [2]"
    ]


# Failures


@pytest.mark.parametrize(
    ("error", "code"),
    [(internal("broke"), Code.INTERNAL), (unavailable("Request timeout expired"), Code.UNAVAILABLE)],
)
def test_a_step_that_fails(error: ModserveError, code: Code) -> None:
    made = bench(DIAMOND)
    _, sink = made.ask()
    made["a"].asked[0].settle(error)
    assert [(each.code, each.message) for each in sink.errors] == [(code, f"in ensemble 'e', {error.message}")]
    assert made["b"].asked[0].cancelled
    assert (sink.ended, made.borrowed, made.over[0][1]) == (1, 0, sink.errors[0])
    assert error.message in ("broke", "Request timeout expired")


def test_a_step_that_is_refused() -> None:
    made = bench(DIAMOND)
    made["b"].refusal = OverloadedError("Exceeds maximum queue size", 5, too_many=True)
    _, sink = made.ask()
    [error] = sink.errors
    assert isinstance(error, OverloadedError)
    assert (error.message, error.retry_after_ns) == ("in ensemble 'e', Exceeds maximum queue size", 5)
    assert error.too_many
    assert made["a"].asked[0].cancelled


def test_a_model_that_is_not_there() -> None:
    made = bench(CHAIN)
    made.missing.add("b")
    _, sink = made.ask()
    assert [error.message for error in sink.errors] == ["in ensemble 'e', Request for unknown model: 'b' is not found"]
    assert (made.borrowed, made["a"].asked) == (0, [])


WRONG_SHAPE = "with shape [2], but its configuration says [1]"
WRONG_TYPE = "of type TYPE_FP32, but its configuration says TYPE_INT32"


@pytest.mark.parametrize(
    ("output", "difference"),
    [(tensor(dtypes.INT32, (2,)), WRONG_SHAPE), (tensor(dtypes.FP32, (1,)), WRONG_TYPE)],
    ids=["shape", "type"],
)
def test_an_output_that_is_not_as_configured_is_its_step_s_fault(output: Tensor, difference: str) -> None:
    """Whoever sent the request can do nothing about it, nor can the model that refuses the tensor."""
    made = bench(CHAIN)
    _, sink = made.ask()
    made["a"].answer(mid=output)
    [error] = sink.errors
    assert (error.code, error.message) == (
        Code.INTERNAL,
        f"in ensemble 'e', model 'a' (step 1 of 2) returned output 'mid' {difference}; "
        "model 'b' cannot take it as input 'mid'",
    )
    assert (sink.ended, made.borrowed) == (1, 0)


def with_dims(made: Bench, name: str, dims: tuple[int, ...], *, max_batch_size: int = 0) -> None:
    """Let a model have inputs and outputs of these dims."""
    former = made[name].config
    inputs, outputs = ([replace(each, dims=dims) for each in specs] for specs in (former.inputs, former.outputs))
    made.puppets[name] = Puppet(
        replace(former, inputs=tuple(inputs), outputs=tuple(outputs), max_batch_size=max_batch_size)
    )


def test_an_output_of_rows_that_is_not_as_configured() -> None:
    made = bench(CHAIN)
    with_dims(made, "a", (1,), max_batch_size=4)
    _, sink = made.ask()
    made["a"].answer(mid=tensor(dtypes.INT32, (1, 2)))
    [error] = sink.errors
    assert "returned output 'mid' with shape [1,2], but its configuration says [1,1]; model 'b' " in error.message


def test_an_output_that_is_not_as_configured_and_that_the_engine_behind_it_refuses() -> None:
    """The model there takes any shape, but not its engine."""
    made = bench(CHAIN)
    with_dims(made, "b", (-1,))
    _, sink = made.ask()
    made["a"].answer(mid=tensor(dtypes.INT32, (2,)))
    made["b"].asked[0].settle(invalid("Got: 2 Expected: 1"))
    [error] = sink.errors
    assert (error.code, WRONG_SHAPE in error.message) == (Code.INTERNAL, True)


def test_a_failure_behind_an_output_that_is_not_as_configured_keeps_its_text() -> None:
    made = bench(CHAIN)
    with_dims(made, "b", (-1,))
    _, sink = made.ask()
    made["a"].answer(mid=tensor(dtypes.INT32, (2,)))
    made["b"].asked[0].settle(unavailable("Exceeds maximum queue size"))
    assert [error.message for error in sink.errors] == ["in ensemble 'e', Exceeds maximum queue size"]


def test_a_tensor_that_a_model_does_not_take() -> None:
    """The step before has kept its promise, which is any shape: the request may be wrong."""
    made = bench(CHAIN)
    with_dims(made, "a", (-1,))
    _, sink = made.ask()
    made["a"].answer(mid=tensor(dtypes.INT32, (2,)))
    [error] = sink.errors
    assert error.code is Code.INVALID_ARG
    assert error.message.startswith("in ensemble 'e', [request id: <id_unknown>] unexpected shape for input 'mid'")


def test_nobody_is_blamed_for_a_tensor_that_several_steps_may_have_given() -> None:
    when = {1: Condition("kind", "==", 1), 2: Condition("kind", "==", 2)}
    steps = [("a", "in", "kind"), ("b", "in", "mid"), ("c", "in", "mid"), ("d", "mid", "out")]
    made = bench(steps, "out", when=when)
    _, sink = made.ask()
    made["a"].answer(kind=2)
    made["c"].answer(mid=tensor(dtypes.INT32, (2,)))
    assert [error.code for error in sink.errors] == [Code.INVALID_ARG]


def test_a_step_s_inputs_are_kept_no_longer_than_its_request() -> None:
    made = bench(CHAIN)
    made.ask()
    middle = tensor(dtypes.INT32, (1,), 5)
    array = weakref.ref(middle.array)
    made["a"].answer(mid=middle)
    del middle
    made["a"].asked.clear()
    assert array() is not None
    made["b"].answer(out=6)
    made["b"].asked.clear()
    assert array() is None


def test_a_model_that_ends_without_a_response() -> None:
    made = bench(CHAIN)
    _, sink = made.ask(id="r")
    made["a"].asked[0].settle(None)
    assert [(error.code, error.message) for error in sink.errors] == [
        (
            Code.INVALID_ARG,
            "in ensemble 'e', [request id: r] unexpected deadlock, at least one output is not set while no more "
            "ensemble steps can be made",
        )
    ]


def test_a_deadline_that_passes_between_two_steps() -> None:
    made = bench(CHAIN)
    _, sink = made.ask(deadline_ns=made.clock.now_ns() + 10)
    made.clock.advance(10)
    made["a"].answer(mid=1)
    assert [error.message for error in sink.errors] == ["in ensemble 'e', Request timeout expired"]
    assert not made["b"].asked


def test_cancellation_reaches_the_steps() -> None:
    made = bench(DIAMOND)
    inflight, sink = made.ask()
    made["a"].answer(left=1)
    inflight.cancel()
    assert made["b"].asked[0].cancelled
    assert [error.code for error in sink.errors] == [Code.CANCELLED]
    assert (made.borrowed, len(made.scheduler.runs)) == (0, 0)
    made["b"].answer(right=1)
    assert (sink.settled, len(made.over)) == (1, 1)


@pytest.mark.parametrize("refusal", [None, unavailable("full")], ids=["taken", "refused"])
def test_one_that_is_cancelled_while_a_step_is_asked(refusal: ModserveError | None) -> None:
    made = bench(CHAIN, limit=1)
    inflight, sink = made.ask(start=False)

    def meanwhile() -> None:
        inflight.cancel()
        if refusal is not None:
            raise refusal

    made["a"].meanwhile = meanwhile
    made.clock.run()
    assert [each.cancelled for each in made["a"].asked] == ([True] if refusal is None else [])
    assert [error.code for error in sink.errors] == [Code.CANCELLED]
    assert (made.borrowed, len(made.scheduler.runs), len(made.over)) == (0, 0, 1)
    made["a"].meanwhile = lambda: None
    made.ask()
    assert not made["a"].asked[-1].cancelled


def test_a_request_cancelled_before_it_began() -> None:
    made = bench(CHAIN)
    inflight, sink = made.ask(start=False)
    inflight.cancel()
    made.clock.run()
    assert (made["a"].asked, sink.settled, len(made.over)) == ([], 1, 1)


def test_stopping_and_closing() -> None:
    made = bench(CHAIN)
    _, sink = made.ask()
    made.scheduler.stop()
    with pytest.raises(ModserveError, match="has stopped accepting new inference requests"):
        made.ask()
    made.scheduler.close(unavailable("gone"))
    assert [error.message for error in sink.errors] == ["gone"]
    assert made["a"].asked[0].cancelled


# Decoupled steps


def test_responses_flow_down_and_leave_in_order() -> None:
    made = bench(CHAIN, decoupled="a")
    _, sink = made.ask()
    for value in (1, 2):
        made["a"].answer(final=False, mid=value)
    made["b"].answer(1, out=20)
    assert values(sink) == []
    made["b"].answer(0, out=10)
    assert values(sink) == [{"out": 10}, {"out": 20}]
    made["a"].answer(mid=3)
    assert sink.ended == 0
    made["b"].answer(2, out=30)
    assert values(sink) == [{"out": 10}, {"out": 20}, {"out": 30}]
    assert (sink.ended, made.borrowed, len(made.over)) == (1, 0, 1)


def test_branches_behind_a_decoupled_step_meet_by_response() -> None:
    made = bench([("a", "in", "mid"), ("b", "mid", "left"), ("c", "mid left", "out")], decoupled="a")
    _, sink = made.ask()
    made["a"].answer(final=False, mid=1)
    made["a"].answer(final=True, mid=2)
    made["b"].answer(1, left=20)
    made["b"].answer(0, left=10)
    assert [made["c"].inputs(index) for index in (0, 1)] == [{"mid": 2, "left": 20}, {"mid": 1, "left": 10}]
    made["c"].answer(0, out=4)
    made["c"].answer(1, out=3)
    assert values(sink) == [{"out": 3}, {"out": 4}]


def test_a_decoupled_step_behind_another() -> None:
    made = bench(CHAIN, decoupled="a b")
    _, sink = made.ask()
    made["a"].answer(final=False, mid=1)
    made["a"].answer(final=True, mid=2)
    made["b"].answer(1, final=True, out=21)
    made["b"].answer(0, final=False, out=11)
    made["b"].answer(0, final=False, out=12)
    assert values(sink) == [{"out": 11}, {"out": 12}]
    made["b"].asked[0].settle(None)
    assert values(sink) == [{"out": 11}, {"out": 12}, {"out": 21}]
    assert sink.ended == 1


@pytest.mark.parametrize("answers", [0, 2])
def test_the_end_comes_alone_if_the_last_response_is_out(answers: int) -> None:
    made = bench(CHAIN, decoupled="a")
    _, sink = made.ask()
    for index in range(answers):
        made["a"].answer(final=False, mid=index)
        made["b"].answer(index, out=index)
    assert sink.ended == 0
    made["a"].asked[0].settle(None)
    assert (len(sink.responses), sink.ended, sink.errors) == (answers, 1, [])


def test_a_failure_ends_the_stream() -> None:
    made = bench(CHAIN, decoupled="a")
    _, sink = made.ask()
    for value in (1, 2):
        made["a"].answer(final=False, mid=value)
    made["b"].answer(0, out=10)
    made["a"].asked[0].settle(invalid("odd"), final=False)
    assert values(sink) == [{"out": 10}]
    assert [error.message for error in sink.errors] == ["in ensemble 'e', odd"]
    assert (sink.ended, made["a"].asked[0].cancelled, made["b"].asked[1].cancelled) == (1, True, True)


def test_responses_that_a_condition_drops() -> None:
    made = bench(CHAIN, decoupled="a", when={1: Condition("mid", ">", 1)})
    _, sink = made.ask()
    for value in (1, 2):
        made["a"].answer(final=value == 2, mid=value)
    made["b"].answer(out=20)
    assert values(sink) == [{"out": 20}]
    assert sink.ended == 1


# max_inflight_requests


def test_no_more_than_so_many_requests_a_step() -> None:
    made = bench(CHAIN, decoupled="a", limit=2)
    _, sink = made.ask()
    for value in range(5):
        made["a"].answer(final=value == 4, mid=value)
    assert len(made["b"].asked) == 2
    for index in range(5):
        assert len(made["b"].asked) == min(5, index + 2)
        made["b"].answer(index, out=index)
    assert [each["out"] for each in values(sink)] == [0, 1, 2, 3, 4]
    assert sink.ended == 1


def test_the_limit_is_one_for_all_requests() -> None:
    made = bench(CHAIN, limit=1)
    inflights = [made.ask() for _ in range(3)]
    assert len(made["a"].asked) == 1
    inflights[1][0].cancel()
    made["a"].answer(mid=0)
    assert len(made["a"].asked) == 2
    made["a"].answer(1, mid=2)
    made["b"].answer(out=0)
    made["b"].answer(1, out=2)
    assert [values(sink) for _, sink in inflights] == [[{"out": 0}], [], [{"out": 2}]]


def test_what_waits_for_the_limit_is_not_asked_because_its_request_ends() -> None:
    made = bench(CHAIN, decoupled="a", limit=1)
    inflight, _ = made.ask()
    for value in range(20):
        made["a"].answer(final=value == 19, mid=value)
    inflight.cancel()
    assert len(made["b"].asked) == 1
    made.ask()
    made["a"].answer(1, mid=1)
    assert len(made["b"].asked) == 2


def test_nor_because_the_ensemble_is_closed() -> None:
    made = bench(CHAIN, limit=1)
    sinks = [made.ask()[1] for _ in range(20)]
    made.scheduler.close(unavailable("gone"))
    assert len(made["a"].asked) == 1
    assert all(len(sink.errors) == 1 for sink in sinks)


def test_those_cancelled_while_they_wait_for_the_limit_leave_nothing_behind() -> None:
    made = bench(CHAIN, limit=1)
    made.ask()
    now_ns = made.clock.now_ns()
    asked = [made.ask(timeout_ns=100, deadline_ns=now_ns + 200) for _ in range(300)]
    assert made.clock.next_timer_ns() == now_ns + 100
    watched = [weakref.ref(sink) for _, sink in asked]
    for inflight, _ in asked:
        inflight.cancel()
    assert (made.clock.next_timer_ns(), len(made.scheduler.runs), made.borrowed) == (None, 1, 2)
    asked.clear()
    del inflight, _
    gc.collect()
    assert not any(each() for each in watched)
    made["a"].answer(mid=1)
    made.ask()
    assert len(made["a"].asked) == 2


def test_a_model_that_refuses_all_who_waited() -> None:
    made = bench(CHAIN, limit=1)
    sinks = [made.ask()[1] for _ in range(2000)]
    made["a"].refusal = unavailable("full")
    made["a"].answer(mid=0)
    assert all(len(sink.errors) == 1 for sink in sinks[1:])
    made["a"].refusal = None
    made.ask()
    assert len(made["a"].asked) == 2


def test_a_deadline_that_passes_while_waiting_for_the_limit() -> None:
    made = bench(CHAIN, limit=1)
    made.ask()
    _, sink = made.ask(deadline_ns=made.clock.now_ns() + 10)
    made.clock.advance(9)
    assert not sink.errors
    made.clock.advance(1)
    assert [error.message for error in sink.errors] == ["in ensemble 'e', Request timeout expired"]


# The model around it


@pytest.fixture
def made() -> Bench:
    return bench(CHAIN)


@pytest.fixture
async def ensemble(made: Bench) -> EnsembleModel:
    return EnsembleModel(ModelId("e", 3), made.config, b"", made.borrow, made.clock)


def request() -> InferenceRequest:
    return InferenceRequest("e", {"in": one(7)})


async def test_statistics_of_successes(made: Bench, ensemble: EnsembleModel) -> None:
    sink = RecordingSink()
    ensemble.submit(request(), sink, made.clock.now_ns())
    assert repr(ensemble) == "EnsembleModel(e, version 3, 1 outstanding)"
    made.clock.run()
    made["a"].answer(mid=1)
    made["b"].answer(out=2)
    found = ensemble.statistics
    assert (found.inference_count, found.execution_count, found.success.count, found.pending) == (1, 1, 1, 0)
    assert [each.ns for each in (found.queue, found.compute_input, found.compute_infer, found.compute_output)] == [
        0,
        2,
        4,
        6,
    ]
    assert sink.ended == 1
    await ensemble.drain()


async def test_statistics_of_failures(made: Bench, ensemble: EnsembleModel) -> None:
    first = ensemble.submit(request(), RecordingSink(), made.clock.now_ns())
    ensemble.submit(request(), RecordingSink(), made.clock.now_ns())
    made.clock.run()
    first.cancel()
    made["a"].asked[1].settle(internal("broke"))
    found = ensemble.statistics
    assert {reason.value: count for reason, count in found.failures.items() if count} == {"CANCELED": 1, "OTHER": 1}
    assert (found.success.count, found.fail.count) == (0, 2)


async def test_wrong_requests_are_refused_at_once(made: Bench, ensemble: EnsembleModel) -> None:
    with pytest.raises(ModserveError, match="expected 1 inputs but got 0 inputs for model 'e'"):
        ensemble.submit(InferenceRequest("e", {}), RecordingSink(), 0)
    await ensemble.drain()
    with pytest.raises(ModserveError, match="has stopped accepting"):
        ensemble.submit(request(), RecordingSink(), made.clock.now_ns())
    await ensemble.close()
