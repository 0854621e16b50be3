"""What drives vLLM's asynchronous engine, with an engine of the same interface that does what the test wants.

The same on vLLM itself is in tests/vllm, which needs 2.5 GB.
"""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from modserve.backends.generation.program.contract import GenerationCall, OutputOptions, Replies, RequestError
from modserve.backends.generation.program.on_vllm.engine import Adapters, Errors, VllmEngine
from modserve.backends.generation.program.on_vllm.sampling import SamplingReader
from modserve.backends.generation.program.on_vllm.statistics import EngineStatistics, TritonsMetrics, logger_kind

OPTIONS = OutputOptions(True, False, True, True, True, True, True, True)
LIMIT_S = 20


class EngineDeadError(Exception):
    """As vLLM's."""


class QueueFullError(Exception):
    """As an error of vLLM's for which its own server says 503."""


class SamplingParams(SimpleNamespace):
    """A struct of msgspec with some of the fields."""

    __struct_fields__ = ("n", "max_tokens", "temperature", "structured_outputs", "logprobs", "output_kind", "_internal")
    n = 1
    max_tokens = 16


def convert(fields: Mapping[str, Any], kind: type[SamplingParams]) -> SamplingParams:
    if isinstance(fields.get("temperature"), str):
        raise TypeError("Expected `float`, got `str` - at `$.temperature`")
    return kind(**fields)


class Llm:
    """vLLM's AsyncLLM: each request has a token in each step of `step`, up to its `max_tokens`, on the test's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=2))
        self.tokenizer = SimpleNamespace(bos_token="<s>")
        self.output_handler: asyncio.Future[None] = loop.create_future()
        self.calls: dict[str, tuple[Any, Any, Mapping[str, Any]]] = {}
        self.aborted: list[str] = []
        self.closed = False
        self.ill: Exception | None = None
        self.queues: dict[str, asyncio.Queue[Exception | None]] = {}

    def generate(self, prompt: Any, sampling: Any, request_id: str, **options: Any) -> AsyncIterator[Any]:
        self.calls[request_id] = prompt, sampling, options
        self.queues[request_id] = asyncio.Queue()
        return self._stream(request_id, sampling)

    async def _stream(self, request_id: str, sampling: Any) -> AsyncIterator[Any]:
        try:
            for count in range(1, sampling.max_tokens + 1):
                if (error := await self.queues[request_id].get()) is not None:
                    raise error
                last = count == sampling.max_tokens
                yield SimpleNamespace(
                    prompt_token_ids=[7, 8, 9],
                    outputs=[_completion(index, count, last=last) for index in range(sampling.n)],
                )
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted.append(request_id)
            raise

    async def check_health(self) -> None:
        if self.ill is not None:
            raise self.ill

    def shutdown(self) -> None:
        self.closed = True
        self.output_handler.cancel()


def _completion(index: int, count: int, *, last: bool) -> SimpleNamespace:
    token = SimpleNamespace(logprob=-0.5, rank=1, decoded_token="x")
    return SimpleNamespace(
        index=index,
        text=chr(ord("a") + count - 1),
        token_ids=[count],
        logprobs=[{count: token}],
        cumulative_logprob=-0.5 * count,
        finish_reason="length" if last else None,
    )


class Client:
    """A request with its sender, and what it has been sent."""

    def __init__(self) -> None:
        self.cancelled = False
        self.slow = False
        self.responses: list[dict[str, Any]] = []
        self.error = ""
        self.received = threading.Semaphore(0)
        self.ended = threading.Event()

    def is_cancelled(self) -> bool:
        return self.cancelled

    def is_paused(self) -> bool:
        return self.slow

    def texts(self, output: int = 0) -> list[str]:
        return [each["text_output"][output].decode() for each in self.responses]


BEGUN_S = 1.0
"""Time at which each request has come, by the clock of the engine's program."""


class Bench:
    """An engine on a loop of its own thread, as a model has it. It stands in for `Replies` and `Figures`, too."""

    def __init__(self, *, folders: Mapping[str, str] | None = None, checks_health: bool = False) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.llm = Llm(self.loop)
        self.log: list[str] = []
        self.counts: list[tuple[Any, ...]] = []
        self.times: list[tuple[Any, ...]] = []
        self.is_due = False
        figures: Any = SimpleNamespace(
            count=lambda *values: self.counts.append(values),
            count_end=lambda *values: self.counts.append(values),
            report=lambda at: self.counts.append(("report",)),
            is_due=lambda at: self.is_due,
            first_token=lambda *values: self.times.append(("first_token", *values)),
            next_tokens=lambda *values: self.times.append(("next_tokens", *values)),
            observe=lambda *values: self.times.append(values),
        )
        self.engine = VllmEngine(
            self.llm,
            self.loop,
            SamplingReader(SamplingParams, convert, "DELTA"),
            Adapters(folders is not None, folders or {}, lambda *values: values),
            lambda files: [f"image of {file.decode()}" for file in files],
            Errors((EngineDeadError,), (ValueError,), (QueueFullError,)),
            figures,
            cast(Replies, self),
            self.log.append,
            checks_health=checks_health,
        )

    def send(self, client: Client, arrays: dict[str, Any], final: bool) -> None:
        client.responses.append(arrays)
        client.received.release()
        if final:
            client.ended.set()

    def fail(self, client: Client, code: str, message: str) -> None:
        client.error = f"{code}: {message}"
        client.ended.set()

    def end(self, client: Client) -> None:
        client.ended.set()

    def begin(
        self, text: str = "hello", *, images: Sequence[bytes] = (), strict: bool = True, **sampling: Any
    ) -> Client:
        client = Client()
        self.engine.begin(GenerationCall(client, client, text, images, sampling, strict, OPTIONS, BEGUN_S))
        self.on_loop(lambda: None)  # it has been handed over
        return client

    def on_loop(self, call: Callable[[], Any]) -> Any:
        """Runs a function between the engine's tasks; returns when those that are ready have run, too."""

        async def run() -> Any:
            result = call()
            for _ in range(10):
                await asyncio.sleep(0)
            return result

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(LIMIT_S)

    def step(self, *numbers: int, error: Exception | None = None) -> None:
        """A token for each of these requests, by number from 1, or for all; or an error in its place."""
        names = [f"modserve-{number}" for number in numbers] or list(self.llm.queues)

        def put() -> None:
            for name in names:
                self.llm.queues[name].put_nowait(error)

        self.on_loop(put)

    def close(self) -> None:
        for _ in range(100):
            self.step()
        self.engine.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LIMIT_S)
        self.loop.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def made(**options: Any) -> Bench:
        benches.append(Bench(**options))
        return benches[-1]

    yield made
    for bench in benches:
        bench.close()
        assert bench.llm.closed


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    return statuses


def test_a_stream(bench: Bench) -> None:
    client = bench.begin(max_tokens=3)
    bench.step()
    assert client.texts() == ["a"]
    assert not client.ended.is_set()
    bench.step()
    bench.step()
    assert client.texts() == ["a", "b", "c"]
    assert client.ended.is_set()
    last = {name: array.tolist() for name, array in client.responses[-1].items()}
    logprobs = last.pop("logprobs")
    assert json.loads(logprobs[0]) == [{"3": {"logprob": -0.5, "rank": 1, "decoded_token": "x"}}]
    assert last == {
        "text_output": [b"c"],
        "finish_reason": [b"length"],
        "cumulative_logprob": [-1.5],
        "num_input_tokens": [3],
        "num_output_tokens": [1],
        "token_ids": [b"[3]"],
    }
    assert bench.counts[:6] == [
        ("prompt_tokens_total", 3),
        *(("generation_tokens_total", 1),) * 3,
        ("length",),
        ("report",),
    ]
    assert bench.llm.aborted == []


def test_reports_come_now_and_then_and_at_the_end_of_an_abandoned_stream(bench: Bench) -> None:
    client = bench.begin(max_tokens=9)
    bench.step()
    assert bench.counts == [("prompt_tokens_total", 3), ("generation_tokens_total", 1)]
    bench.is_due = True
    bench.step()
    assert bench.counts[2:] == [("generation_tokens_total", 1), ("report",)]
    bench.is_due = False
    client.cancelled = True
    bench.step()
    bench.on_loop(lambda: None)
    assert bench.counts[4:] == [("generation_tokens_total", 1), ("report",)]


def test_outputs_of_one_request_stay_apart(bench: Bench) -> None:
    client = bench.begin(max_tokens=2, n=2)
    bench.step()
    bench.step()
    assert client.texts(0) == client.texts(1) == ["a", "b"]
    assert [each["num_output_tokens"].tolist() for each in client.responses] == [[1, 1], [1, 1]]


def test_a_slow_client_gets_all_of_it_later(bench: Bench) -> None:
    client = bench.begin(max_tokens=4)
    client.slow = True
    bench.step()
    bench.step()
    assert client.texts() == []
    client.slow = False
    bench.step()
    bench.step()
    assert client.texts() == ["abc", "d"]


def test_a_cancelled_stream_is_aborted_with_its_next_token(bench: Bench) -> None:
    client, other = bench.begin(max_tokens=9), bench.begin(max_tokens=2)
    bench.step()
    client.cancelled = True
    bench.step()
    assert client.error == "CANCELLED: the request was cancelled"
    assert bench.llm.aborted == ["modserve-1"]
    assert other.texts() == ["a", "b"]


def test_a_request_that_has_not_begun_is_aborted_in_the_next_step_of_others(bench: Bench) -> None:
    running, waiting = bench.begin(max_tokens=9), bench.begin(max_tokens=9)
    waiting.cancelled = True
    bench.step(1)
    assert waiting.error == "CANCELLED: the request was cancelled"
    assert bench.llm.aborted == ["modserve-2"]
    assert running.texts() == ["a"]


def test_what_is_cancelled_before_it_begins_never_begins(bench: Bench) -> None:
    client = Client()
    client.cancelled = True
    bench.engine.begin(GenerationCall(client, client, "hello", (), {}, True, OPTIONS, 0.0))
    bench.on_loop(lambda: None)
    assert client.ended.is_set()
    assert bench.llm.calls == {}
    assert (bench.engine.room, bench.engine.turn()) == (2, False)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"max_token": 1}, "unknown sampling parameter 'max_token'; did you mean 'max_tokens'?"),
        ({"zzz": 1}, "unknown sampling parameter 'zzz'; known ones are: guided_decoding, logprobs, lora_name, max_tok"),
        ({"output_kind": 1}, "unknown sampling parameter 'output_kind'"),
        ({"_internal": 1}, "unknown sampling parameter '_internal'"),
        ({"temperature": "hot"}, "sampling parameters: Expected `float`, got `str` for `temperature`"),
        ({"structured_outputs": "{"}, "sampling parameter 'structured_outputs' is not JSON: Expecting property name"),
        ({"lora_name": 1}, "sampling parameter 'lora_name' is 1, expected a string"),
        ({"lora_name": "a"}, "LoRA feature is not enabled."),
    ],
)
def test_what_is_wrong_with_sampling_parameters(bench: Bench, sampling: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as raised:
        bench.begin(**sampling)
    assert str(raised.value).startswith(message)
    assert bench.llm.calls == {}


def test_what_the_engine_gets(make: Callable[..., Bench]) -> None:
    bench = make(folders={"noise": "/noise"})
    bench.begin(guided_decoding='{"regex": "a+", "json": null, "choice": null}', logprobs=True, lora_name="noise")
    bench.begin("<s>hello", images=[b"one", b"two"], strict=False, tenant="a", logprobs=False)
    (prompt, sampling, options), other = bench.llm.calls.values()
    assert prompt == {"prompt": "hello"}
    assert vars(sampling) == {"structured_outputs": {"regex": "a+"}, "logprobs": 1, "output_kind": "DELTA"}
    assert options == {"lora_request": ("noise", 1, "/noise")}
    prompt, sampling, options = other
    assert prompt == {"prompt": "<s>hello", "multi_modal_data": {"image": ["image of one", "image of two"]}}
    assert vars(sampling) == {"logprobs": None, "output_kind": "DELTA"}
    assert options == {"tokenization_kwargs": {"add_special_tokens": False}}
    with pytest.raises(RequestError, match=r"LoRA loud is not supported, we currently support \['noise'\]"):
        bench.begin(lora_name="loud")


def wrapped(error: Exception) -> Exception:
    """As vLLM raises what it does not expect."""
    outer = Exception()
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("too long"), "INVALID_ARG: too long"),
        (wrapped(ValueError("too long")), "INVALID_ARG: too long"),
        (QueueFullError("no room"), "UNAVAILABLE: no room"),
        (wrapped(RuntimeError("it broke")), "INTERNAL: Error generating stream: it broke"),
        (RuntimeError(), "INTERNAL: Error generating stream: RuntimeError"),
    ],
)
def test_errors_of_a_request_leave_the_others_alone(bench: Bench, error: Exception, message: str) -> None:
    client, other = bench.begin(max_tokens=3), bench.begin(max_tokens=2)
    bench.step()
    bench.step(1, error=error)
    assert client.error == message
    bench.step(2)
    assert other.texts() == ["a", "b"]
    assert bench.log == []


def test_a_dead_engine_ends_the_process(bench: Bench, exits: list[int]) -> None:
    client = bench.begin(max_tokens=3)
    bench.step(1, error=EngineDeadError("EngineCore encountered an issue"))
    assert client.ended.is_set()
    assert exits == [70]
    assert bench.log == ["vLLM's engine has died, and its process ends"]


def test_an_engine_that_dies_while_idle_ends_the_process(bench: Bench, exits: list[int]) -> None:
    bench.on_loop(lambda: bench.llm.output_handler.set_exception(EngineDeadError()))
    assert exits == [70]
    bench.llm.output_handler.exception()


def test_the_end_of_a_model_is_no_death(make: Callable[..., Bench], exits: list[int]) -> None:
    bench = make()
    bench.begin(max_tokens=1)
    bench.step()
    bench.engine.close()
    bench.on_loop(lambda: None)
    assert bench.llm.output_handler.cancelled()
    assert (exits, bench.log) == ([], [])


def test_the_health_is_asked_before_each_request(make: Callable[..., Bench], exits: list[int]) -> None:
    bench = make(checks_health=True)
    bench.llm.ill = EngineDeadError("dead")
    client = bench.begin()
    assert client.ended.wait(LIMIT_S)
    assert exits == [70]
    bench.llm.ill = None
    healthy = bench.begin(max_tokens=1)
    bench.step(2)
    assert healthy.texts() == ["a"]


# Its statistics


class Metrics:
    """The module triton_python_backend_utils, as far as it makes metrics."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        values = self.values

        class MetricFamily:
            COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

            def __init__(self, name: str, description: str, kind: str) -> None:
                self.name = name

            def Metric(self, labels: Mapping[str, str], buckets: Any = None) -> SimpleNamespace:
                assert labels == {"model": "m"}
                mine = values.setdefault(self.name, [])
                assert buckets is None or buckets == sorted(buckets)
                return SimpleNamespace(increment=mine.append, observe=mine.append)

        self.MetricFamily = MetricFamily


def test_statistics_of_steps() -> None:
    gauges: dict[str, float] = {}
    statistics = EngineStatistics(cast(Any, SimpleNamespace(set=gauges.__setitem__)))
    metrics = Metrics()
    kind = logger_kind(object, statistics, lambda context: TritonsMetrics(metrics, {"model": "m"}, context))
    config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=64))
    loggers = [kind(config, 0), kind(config, 1)]
    step = SimpleNamespace(num_running_reqs=2, num_waiting_reqs=1, kv_cache_usage=0.25)
    request = SimpleNamespace(e2e_latency=2.0, num_prompt_tokens=3, num_generation_tokens=4)
    iteration = SimpleNamespace(
        num_prompt_tokens=3,
        num_generation_tokens=0,
        time_to_first_tokens_iter=[0.1],
        inter_token_latencies_iter=[0.2, 0.3],
        finished_requests=[request],
        n_params_iter=[1],
    )
    loggers[0].record(step, iteration, mm_cache_stats=None)
    loggers[1].record(SimpleNamespace(num_running_reqs=1, num_waiting_reqs=0, kv_cache_usage=0.5), None)
    loggers[1].record(None, None)
    loggers[0].log_engine_initialized()
    assert gauges == {"num_requests_running": 3, "num_requests_waiting": 1, "kv_cache_usage_perc": 0.5}
    assert metrics.values == {
        "vllm:prompt_tokens_total": [3],
        "vllm:generation_tokens_total": [],
        "vllm:time_to_first_token_seconds": [0.1],
        "vllm:time_per_output_token_seconds": [0.2, 0.3],
        "vllm:e2e_request_latency_seconds": [2.0],
        "vllm:request_prompt_tokens": [3],
        "vllm:request_generation_tokens": [4],
        "vllm:request_params_n": [1],
    }


def test_times_of_tokens_and_of_a_request(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 3.0
    monkeypatch.setattr("modserve.backends.generation.program.on_vllm.engine.clock", lambda: now_s)
    client = bench.begin(max_tokens=2)
    bench.step()
    now_s = 3.5
    bench.step()
    assert client.ended.is_set()
    assert bench.times == [("first_token", 2.0), ("next_tokens", 0.5), ("e2e_request_latency_seconds", 2.5)]
