"""What drives the engine step by step, with an engine that says what the test wants."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("openvino")

from modserve.backends.generation.program.contract import GenerationCall, OutputOptions, Replies, RequestError
from modserve.backends.generation.program.figures import clock
from modserve.backends.generation.program.on_genai.engine import GenerationEngine
from modserve.backends.generation.program.on_genai.sampling import SamplingParameters

OPTIONS = OutputOptions(True, False, True, False, False, False, True, False)
Status = Enum("Status", "RUNNING FINISHED IGNORED CANCEL STOP")
Finish = Enum("Finish", "NONE STOP LENGTH")


class Handle:
    """A generation that has a token in each step, up to `limit` of them."""

    def __init__(self, limit: int) -> None:
        self.limit, self.count, self.status = limit, 0, Status.RUNNING
        self.fresh: list[SimpleNamespace] = []
        self.freed = False

    def step(self) -> None:
        if self.status is Status.RUNNING:
            self.count += 1
            last = self.count == self.limit
            reason = Finish.LENGTH if last else Finish.NONE
            part = SimpleNamespace(generated_ids=[self.count], generated_log_probs=[-1.0], finish_reason=reason)
            self.fresh.append(part)
            self.status = Status.FINISHED if last else Status.RUNNING
        self.freed = self.status is not Status.RUNNING

    def can_read(self) -> bool:
        return bool(self.fresh)

    def read(self) -> Mapping[int, Any]:
        return {0: self.fresh.pop(0)}

    def get_status(self) -> Any:
        return self.status

    def cancel(self) -> None:
        self.status = Status.IGNORED

    stop = cancel


class Tokenizer:
    """A token is a letter."""

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(chr(ord("a") + token - 1) for token in row) for row in rows]

    def get_bos_token(self) -> str:
        return "<s>"

    def encode(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        ids = [0] * add_special_tokens + [1] * len(text.split())
        return SimpleNamespace(input_ids=SimpleNamespace(data=[SimpleNamespace(tolist=lambda: ids)]))


class Pipeline:
    def __init__(self) -> None:
        self.handles: list[Handle] = []
        self.error: Exception | None = None
        self.seeds: list[int] = []
        self.numbers: set[int] = set()

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def get_config(self) -> SimpleNamespace:
        return SimpleNamespace(eos_token_id=2, stop_token_ids={2})

    def add_request(self, number: int, ids: Any, config: Any) -> Handle:
        assert number > 0, "the engine's numbers have no sign"
        assert number not in self.numbers
        self.numbers.add(number)
        self.seeds.append(config.rng_seed)
        self.handles.append(Handle(config.max_new_tokens))
        return self.handles[-1]

    def step(self) -> None:
        if self.error is not None:
            raise self.error
        for handle in self.handles:
            handle.step()

    def has_non_finished_requests(self) -> bool:
        return not all(handle.freed for handle in self.handles)

    def get_metrics(self) -> SimpleNamespace:
        running = sum(handle.status is Status.RUNNING for handle in self.handles)
        return SimpleNamespace(scheduled_requests=running, cache_usage=50.0)


class Client:
    """A request with its sender, and what it has been sent."""

    def __init__(self) -> None:
        self.text = ""
        self.cancelled = False
        self.slow = False
        self.error = ""
        self.ended = False

    def is_cancelled(self) -> bool:
        return self.cancelled

    def is_paused(self) -> bool:
        return self.slow

    def is_closed(self) -> bool:
        return self.ended


class Bench:
    def __init__(self, most: int = 4, context: int = 0) -> None:
        self.pipeline = Pipeline()
        self.log: list[str] = []
        self.tokens: list[int] = []
        self.gauges: dict[str, float] = {}
        self.reports = 0
        """How often the server has heard of tokens."""
        self.between: list[float] = []
        """Seconds from one token of an output to the next."""
        self.is_due = False
        figures: Any = SimpleNamespace(
            **dict.fromkeys(("observe", "first_token", "count_end"), lambda *_: None),
            next_tokens=self.between.append,
            count=self._count,
            set=self.gauges.__setitem__,
            is_due=lambda at: self.is_due,
            report=self._report,
        )
        genai = SimpleNamespace(
            GenerationConfig=SimpleNamespace, GenerationStatus=Status, GenerationFinishReason=Finish
        )
        self.engine = GenerationEngine(
            genai, self.pipeline, most, context, figures, cast(Replies, self), self.log.append
        )

    def _count(self, name: str, number: int) -> None:
        if name == "generation_tokens_total":
            self.tokens.append(number)

    def _report(self, at: float) -> None:
        self.reports += 1

    def send(self, client: "Client", arrays: Mapping[str, Any], final: bool) -> None:
        client.text += arrays["text_output"][0].decode()
        if final:
            client.ended = True

    def fail(self, client: "Client", code: str, message: str) -> None:
        client.error = f"{code}: {message}"
        client.ended = True

    def begin(self, **values: Any) -> Client:
        client, sampling = Client(), SamplingParameters(**values)
        self.engine.add(GenerationCall(client, client, "", (), {}, True, OPTIONS, 0.0), [1], sampling)
        return client

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.turn()


@pytest.fixture
def make() -> Callable[..., Bench]:
    return Bench


def test_requests_join_and_leave(make: Callable[..., Bench]) -> None:
    bench = make()
    first, second = bench.begin(max_tokens=2), bench.begin(max_tokens=3, stop=("c",))
    bench.run(3)
    assert first.ended
    assert second.ended
    assert (first.text, second.text) == ("ab", "ab")
    third = bench.begin(max_tokens=1)
    bench.run(1)
    assert third.ended
    assert third.text == "a"


def test_a_text_to_stop_at_ends_the_engines_generation(make: Callable[..., Bench]) -> None:
    bench = make()
    client = bench.begin(max_tokens=50, stop=("bc",))
    bench.run(4)
    assert client.ended
    assert client.text == "a"
    assert bench.pipeline.handles[0].status is Status.IGNORED
    bench.engine.close()
    assert bench.pipeline.handles[0].freed


def test_a_text_to_stop_at_does_not_end_fewer_tokens_than_the_request_wants(make: Callable[..., Bench]) -> None:
    bench = make()
    client = bench.begin(max_tokens=50, min_tokens=3, stop=("b", "d"))
    bench.run(6)
    assert (client.ended, client.text) == (True, "abc")


def test_a_cancelled_request_is_ended_before_the_next_step(make: Callable[..., Bench]) -> None:
    bench = make()
    client = bench.begin(max_tokens=50)
    client.cancelled = True
    bench.run(2)
    assert client.ended
    assert client.error == "CANCELLED: the request was cancelled"
    assert bench.pipeline.handles[0].count <= 1


def test_a_slow_client_holds_up_nobody_and_misses_nothing(make: Callable[..., Bench]) -> None:
    bench = make()
    slow, other = bench.begin(max_tokens=4), bench.begin(max_tokens=3)
    slow.slow = True
    bench.run(3)
    assert other.ended
    assert slow.text == ""
    bench.run(1)
    assert slow.ended
    assert slow.text == "abcd"


def test_what_the_cache_has_no_room_for(make: Callable[..., Bench]) -> None:
    bench = make()
    client = bench.begin(max_tokens=50)
    bench.pipeline.handles[0].status = Status.IGNORED
    bench.run(1)
    assert client.ended
    assert client.error.startswith("UNAVAILABLE: the KV cache of the model has no room for the request's 1 tokens")


def test_requests_that_come_between_two_steps_join_in_the_next(make: Callable[..., Bench]) -> None:
    bench = make()
    first = bench.begin(max_tokens=3)
    bench.run(1)
    others = [bench.begin(max_tokens=2) for _ in range(3)]
    assert bench.engine.turn()
    assert [client.text for client in (first, *others)] == ["ab", "a", "a", "a"]
    assert not bench.engine.turn()
    assert [client.text for client in (first, *others)] == ["abc", "ab", "ab", "ab"]
    assert bench.tokens == [1, 4, 4]


def test_seconds_between_tokens(make: Callable[..., Bench]) -> None:
    bench = make()
    start = clock()
    bench.begin(max_tokens=4)
    bench.run(4)
    assert len(bench.between) == 3
    assert min(bench.between) >= 0
    assert sum(bench.between) <= clock() - start


def test_reports_come_at_changes_and_now_and_then(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.begin(max_tokens=9)
    bench.run(4)
    assert (bench.reports, bench.gauges["num_requests_running"], bench.gauges["kv_cache_usage_perc"]) == (1, 1, 0.5)
    bench.is_due = True
    bench.run(1)
    bench.is_due = False
    bench.run(1)
    assert bench.reports == 2
    bench.begin(max_tokens=2)
    bench.run(1)
    assert (bench.reports, bench.gauges["num_requests_running"]) == (3, 2)
    bench.run(2)
    assert (bench.reports, bench.gauges["num_requests_running"], bench.tokens) == (5, 0, [1, 1, 1, 1, 1, 1, 2, 2, 1])
    assert bench.gauges["kv_cache_usage_perc"] == 0


def test_closing_ends_what_runs(make: Callable[..., Bench]) -> None:
    bench = make()
    client = bench.begin(max_tokens=9)
    bench.engine.close()
    assert client.text == "abcdefghi"
    assert not bench.engine.turn()


def test_outputs_have_seeds_of_their_own(make: Callable[..., Bench]) -> None:
    bench = make()
    client = bench.begin(n=3, seed=5, max_tokens=1)
    bench.run(1)
    assert client.ended
    assert bench.pipeline.seeds == [5, 6, 7]


def test_an_engine_that_fails_tells_everybody(make: Callable[..., Bench]) -> None:
    bench = make()
    clients = [bench.begin(max_tokens=9), bench.begin(max_tokens=9)]
    bench.pipeline.error = RuntimeError("[05:27:56] /home/somebody/regex_converter.cc:75: it broke\n")
    with pytest.raises(RuntimeError):
        bench.engine.turn()
    for client in clients:
        assert client.ended
        assert client.error == "INTERNAL: the engine failed: it broke"
    assert bench.log == ["the engine failed, and its process ends: RuntimeError: it broke"]


@pytest.mark.parametrize(("text", "tokens"), [("a b", [0, 1, 1]), ("<s> a", [1, 1]), ("a b c d", None), ("", None)])
def test_the_tokens_of_a_prompt(make: Callable[..., Bench], text: str, tokens: list[int] | None) -> None:
    bench = make(context=4)
    if tokens is not None:
        assert bench.engine.tokens_of(text) == tokens
        return
    with pytest.raises(RequestError, match=r"text_input (is empty|has 5 tokens, but the model's context)"):
        bench.engine.tokens_of(text)


def test_the_context_ends_an_output(make: Callable[..., Bench]) -> None:
    bench = make(context=4)
    client = bench.begin(max_tokens=None)
    bench.run(3)
    assert client.ended
    assert client.text == "abc"
